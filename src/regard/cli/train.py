"""`regard train`: a model from its recipe."""

import signal
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import fields
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from regard.cli.app import refusing, working
from regard.cli.ranks import among_ranks, check_ranks, end_with_parent, join, leave, run_together, started_here
from regard.distributed import Peers, SequenceParallel
from regard.errors import SpecError
from regard.files.atomic import write_text
from regard.files.lock import locked_folder
from regard.models import tasks
from regard.models.train import SCHEDULES, Recipe, Report, Spreading, Task, Training, changed, curve_json
from regard.models.trained import FILE, write_trained

BETWEEN_LINES = 30.0  # seconds, where no bar can be shown


def train(
    name: Annotated[str, typer.Argument(help=f"one of {', '.join(tasks.names())}")],
    data: Annotated[
        Path, typer.Option(help="the folder that `make data` fills; for language also a text, or a folder of texts")
    ] = Path("data"),
    out: Annotated[Path | None, typer.Option(help="where the model goes; runs/NAME unless given")] = None,
    steps: Annotated[int | None, typer.Option(help="how many, if not those of the recipe")] = None,
    seed: Annotated[int | None, typer.Option(help="another one than the recipe's")] = None,
    rate: Annotated[float | None, typer.Option(help="the highest learning rate, if not the recipe's")] = None,
    warmup: Annotated[int | None, typer.Option(help="steps until it is reached")] = None,
    schedule: Annotated[str | None, typer.Option(help=f"how it falls: {', '.join(SCHEDULES)}")] = None,
    smoothing: Annotated[float | None, typer.Option(help="probability that is spread over wrong answers")] = None,
    clip: Annotated[float | None, typer.Option(help="the longest gradient")] = None,
    decay: Annotated[float | None, typer.Option(help="how much matrices are pulled towards 0")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="begin anew, also where a checkpoint is")] = False,
    every: Annotated[int, typer.Option(min=1, help="steps from one checkpoint to the next")] = 200,
    ranks: Annotated[
        int, typer.Option(help="processes that share every text; under torchrun it is those that there are")
    ] = 1,
) -> None:
    """Trains a model, or goes on where it was stopped. Ctrl-C and the signal TERM save and stop."""
    folder = Path("runs") / name if out is None else out
    with refusing(), ExitStack() as locks:
        if ranks != 1 and not among_ranks():
            check_ranks(ranks)
            tasks.check_name(name)
            lock = locks.enter_context(locked_folder(_writable(folder), "training"))
            run_together(ranks, [lock.fileno()])
        end_with_parent()
        spread = _joined() if among_ranks() else None
        task = tasks.task(name, data)
        if _is_first() and not started_here():
            locks.enter_context(locked_folder(_writable(folder), "training"))
        wanted = {"steps": steps, "seed": seed, "rate": rate, "warmup": warmup, "schedule": schedule}
        wanted |= {"smoothing": smoothing, "clip": clip, "decay": decay}
        training = _begun(task, folder / "checkpoint.safetensors", wanted, fresh, spread)
        code = _trained(training, folder, every)
        if code and _is_first():
            typer.echo(f"stopped and saved after {training.step} steps; the same command goes on", err=True)
        if among_ranks():
            leave(code)
        raise typer.Exit(code)


def _joined() -> Spreading:
    join()
    return SequenceParallel


def _is_first() -> bool:
    """Whether this process is the one that writes and speaks."""
    return not among_ranks() or Peers.of().rank == 0


def _writable(path: Path) -> Path:
    """The folder, if it can be written into: a problem is better reported now than at the first checkpoint."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile(dir=path):
            return path
    except OSError as error:
        raise SpecError(f"--out must be a folder that can be written into; got {path}: {error.strerror}.") from None


def _begun(task: Task, path: Path, wanted: dict[str, Any], fresh: bool, spread: Spreading | None) -> Training:
    recipe = changed(task.recipe, wanted)
    if fresh or not path.exists():
        return Training(task, recipe, spread=spread)
    training = Training.resume(task, path, spread=spread)
    _check_same(training.recipe, recipe, path)
    if _is_first():
        typer.echo(f"going on after step {training.step}")
    return training


def _check_same(begun: Recipe, wanted: Recipe, path: Path) -> None:
    names = [each.name for each in fields(Recipe) if getattr(begun, each.name) != getattr(wanted, each.name)]
    if names:
        was, got = (", ".join(f"{name} {getattr(recipe, name)}" for name in names) for recipe in (begun, wanted))
        raise SpecError(
            f"{path} was begun with {was}, and can only go on so; got {got}. Give the same options, --fresh to begin "
            "anew, or another --out."
        )


def _trained(training: Training, folder: Path, every: int) -> int:
    """Trains with a bar and checkpoints, and writes the curve and the weights at the end. Returns the exit code: 0, or
    128 and the number of the signal that stopped it."""
    with _stop_signals() as signals:
        with _shown(training) as show:
            recent: deque[Report] = deque(maxlen=50)
            while not training.is_over and not training.any_rank(bool(signals)):
                recent.append(training.advance())
                show(recent)
                if training.step % every == 0 and _is_first():
                    training.save(folder / "checkpoint.safetensors")
        if _is_first():
            training.save(folder / "checkpoint.safetensors")
    if not training.is_over:
        return 128 + (signals[0] if signals else signal.SIGINT)
    if _is_first():
        _finish(training, folder)
    return 0


@contextmanager
def _stop_signals() -> Iterator[list[int]]:
    """Collects the signals that ask for an end, so that a step and a checkpoint are finished first."""
    received: list[int] = []
    before = {
        number: signal.signal(number, lambda number, _: received.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _shown(training: Training) -> Iterator[Callable[[Sequence[Report]], None]]:
    """How it goes, from the last steps: a bar in a terminal; a line now and then in a file, which nobody watches."""
    name, steps, console = training.task.name, training.recipe.steps, Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    told = time.monotonic()
    with Progress(*columns, console=console, disable=not (_is_first() and console.is_terminal)) as progress:
        bar = progress.add_task(name, total=steps, completed=training.step)

        def show(recent: Sequence[Report]) -> None:
            nonlocal told
            loss, right = (sum(getattr(r, what) for r in recent) / len(recent) for what in ("loss", "accuracy"))
            described = f"{name}  loss {loss:.3f}  right {right:.1%}"
            progress.update(bar, advance=1, description=described)
            if _is_first() and not console.is_terminal and time.monotonic() - told >= BETWEEN_LINES:
                told = time.monotonic()
                typer.echo(f"{described}  step {training.step} of {steps}", err=True)

        yield show


def _finish(training: Training, folder: Path) -> None:
    with working("testing on what was held out"):
        results = training.test()
    write_trained(training, folder / FILE)
    write_text(folder / "curve.json", curve_json(training, results))
    for what, number in results.items():
        typer.echo(f"{what}  {number:.4g}")
    typer.echo(f"the model is in {folder}", err=True)
