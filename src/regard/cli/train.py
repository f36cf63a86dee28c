"""`regard train`: a model from its recipe."""

import signal
from collections import deque
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from regard.cli.app import refusing
from regard.cli.ranks import among_ranks, join, leave, run_together
from regard.distributed import Peers, SequenceParallel
from regard.errors import SpecError
from regard.models import tasks
from regard.models.shipped import ship
from regard.models.train import Report, Spreading, Training, curve_json, shortened


def train(
    name: Annotated[str, typer.Argument(help=f"one of {', '.join(tasks.names())}")],
    data: Annotated[Path, typer.Option(help="the folder that `make data` fills")] = Path("data"),
    out: Annotated[Path | None, typer.Option(help="where the model goes; runs/NAME unless given")] = None,
    steps: Annotated[int | None, typer.Option(help="how many, if not those of the recipe")] = None,
    seed: Annotated[int | None, typer.Option(help="another one than the recipe's")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="begin anew, also where a checkpoint is")] = False,
    every: Annotated[int, typer.Option(help="steps from one checkpoint to the next")] = 200,
    ranks: Annotated[
        int, typer.Option(help="processes that share every text; under torchrun it is those that there are")
    ] = 1,
) -> None:
    """Trains a model, or goes on where it was stopped. Ctrl-C saves and stops."""
    with refusing():
        if ranks != 1 and not among_ranks():
            run_together(ranks)
        spread = _joined() if among_ranks() else None
        folder = Path("runs") / name if out is None else out
        training = _begun(name, data, folder / "checkpoint.safetensors", steps, seed, fresh, spread)
        finished = _trained(training, folder, every)
    if not finished:
        if _is_first():
            typer.echo(f"stopped and saved after {training.step} steps; the same command goes on", err=True)
        if among_ranks():
            leave(130)
        raise typer.Exit(130)
    if among_ranks():
        leave(0)


def _joined() -> Spreading:
    join()
    return SequenceParallel


def _is_first() -> bool:
    """Whether this process is the one that writes and speaks."""
    return not among_ranks() or Peers.of().rank == 0


def _begun(
    name: str, data: Path, path: Path, steps: int | None, seed: int | None, fresh: bool, spread: Spreading | None
) -> Training:
    chosen = tasks.task(name, data)
    recipe = shortened(chosen.recipe, steps, seed)
    if fresh or not path.exists():
        return Training(chosen, recipe, spread=spread)
    training = Training.resume(chosen, path, spread=spread)
    if training.recipe != recipe:
        raise SpecError(
            f"{path} was begun with {training.recipe.steps} steps and seed {training.recipe.seed}, and can only go on "
            f"with those; got {recipe.steps} and {recipe.seed}. Use --fresh to begin anew, or another --out."
        )
    if _is_first():
        typer.echo(f"going on after step {training.step}")
    return training


def _trained(training: Training, folder: Path, every: int) -> bool:
    """Whether it came to its end; with a bar, a checkpoint now and then, and the curve and the weights at the end."""
    stops = []
    before = signal.signal(signal.SIGINT, lambda *_: stops.append(True))  # a step is finished, not broken off
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    try:
        with Progress(*columns, console=Console(stderr=True), disable=not _is_first()) as progress:
            bar = progress.add_task(training.task.name, total=training.recipe.steps, completed=training.step)
            recent: deque[Report] = deque(maxlen=50)
            while not training.is_over and not training.any_rank(bool(stops)):
                recent.append(training.advance())
                loss, right = (sum(getattr(r, what) for r in recent) / len(recent) for what in ("loss", "accuracy"))
                progress.update(bar, advance=1, description=f"{training.task.name}  loss {loss:.3f}  right {right:.1%}")
                if training.step % every == 0 and _is_first():
                    training.save(folder / "checkpoint.safetensors")
    finally:
        signal.signal(signal.SIGINT, before)
    if _is_first():
        training.save(folder / "checkpoint.safetensors")
    if not training.is_over:
        return False
    return _finished(training, folder) if _is_first() else True


def _finished(training: Training, folder: Path) -> bool:
    results = training.test()
    ship(training, folder / "model.safetensors")
    (folder / "curve.json").write_text(curve_json(training, results), encoding="utf8")
    for what, number in results.items():
        typer.echo(f"{what}  {number:.4g}")
    return True
