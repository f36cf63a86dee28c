"""`regard train`: train a model with its recipe."""

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

from regard.cli.app import exit_on_error, show_spinner
from regard.cli.rank_launcher import (
    check_world_size,
    exit_rank,
    exit_with_parent,
    handle_signals,
    init_ranks,
    is_launched_rank,
    is_rank,
    launch_ranks,
)
from regard.distributed import Communicator, ContextParallel
from regard.errors import ArgumentError
from regard.files.atomic import write_text
from regard.files.lock import locked_folder
from regard.models import tasks
from regard.models.trained_model import MODEL_FILE, save_trained
from regard.models.training import (
    SCHEDULES,
    ParallelWrapper,
    Recipe,
    StepReport,
    Task,
    Trainer,
    curve_json,
    override_recipe,
)

LOG_INTERVAL_S = 30.0  # between lines, if the output is not a terminal


def train(
    name: Annotated[str, typer.Argument(help=f"one of {', '.join(tasks.task_names())}")],
    data: Annotated[
        Path, typer.Option(help="the folder of the datasets; for language also a text file, or a folder of text files")
    ] = Path("data"),
    out: Annotated[Path | None, typer.Option(help="folder of the model; runs/NAME by default")] = None,
    steps: Annotated[int | None, typer.Option(help="number of steps; that of the recipe by default")] = None,
    seed: Annotated[int | None, typer.Option(help="random seed; that of the recipe by default")] = None,
    lr: Annotated[float | None, typer.Option(help="highest learning rate; that of the recipe by default")] = None,
    warmup_steps: Annotated[int | None, typer.Option(help="steps until the highest learning rate")] = None,
    schedule: Annotated[str | None, typer.Option(help=f"learning rate schedule: {', '.join(SCHEDULES)}")] = None,
    label_smoothing: Annotated[float | None, typer.Option(help="probability spread evenly over all classes")] = None,
    max_grad_norm: Annotated[float | None, typer.Option(help="gradients are clipped to this norm")] = None,
    weight_decay: Annotated[float | None, typer.Option(help="weight decay of matrices")] = None,
    from_scratch: Annotated[bool, typer.Option("--from-scratch", help="ignore an existing checkpoint")] = False,
    save_steps: Annotated[int, typer.Option(min=1, help="steps between checkpoints")] = 200,
    world_size: Annotated[int, typer.Option(help="processes that share each sequence; torchrun sets it")] = 1,
) -> None:
    """Train a model, or resume from its checkpoint. Ctrl-C and SIGTERM save and stop."""
    folder = Path("runs") / name if out is None else out
    with exit_on_error(), ExitStack() as locks:
        if world_size != 1 and not is_rank():
            check_world_size(world_size)
            tasks.check_task_name(name)
            lock = locks.enter_context(locked_folder(_writable_folder(folder), "training"))
            launch_ranks(world_size, [lock.fileno()])
        exit_with_parent()
        parallelize = _init_context_parallel() if is_rank() else None
        task = tasks.get_task(name, data)
        if _is_rank_zero() and not is_launched_rank():
            locks.enter_context(locked_folder(_writable_folder(folder), "training"))
        overrides = {"steps": steps, "seed": seed, "lr": lr, "warmup_steps": warmup_steps, "schedule": schedule}
        overrides |= {
            "label_smoothing": label_smoothing,
            "max_grad_norm": max_grad_norm,
            "weight_decay": weight_decay,
        }
        training = _start_or_resume(task, folder / "checkpoint.safetensors", overrides, from_scratch, parallelize)
        code = _run_training(training, folder, save_steps)
        if code and _is_rank_zero():
            typer.echo(f"saved after {training.step} steps; run the same command to resume", err=True)
        if is_rank():
            exit_rank(code)
        raise typer.Exit(code)


def _init_context_parallel() -> ParallelWrapper:
    init_ranks()
    return ContextParallel


def _is_rank_zero() -> bool:
    """Return whether this process writes files and prints."""
    return not is_rank() or Communicator.from_group().rank == 0


def _writable_folder(path: Path) -> Path:
    """Create the folder and return it. Raises before training, not at the first checkpoint, if it is not writable."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile(dir=path):
            return path
    except OSError as error:
        raise ArgumentError(f"--out must be a writable folder; got {path}: {error.strerror}.") from None


def _start_or_resume(
    task: Task, path: Path, overrides: dict[str, Any], from_scratch: bool, parallelize: ParallelWrapper | None
) -> Trainer:
    recipe = override_recipe(task.recipe, overrides)
    if from_scratch or not path.exists():
        return Trainer(task, recipe, parallel_wrapper=parallelize)
    training = Trainer.resume(task, path, parallel_wrapper=parallelize)
    _check_same_recipe(training.recipe, recipe, path)
    if _is_rank_zero():
        typer.echo(f"resuming after step {training.step}")
    return training


def _check_same_recipe(saved: Recipe, requested: Recipe, path: Path) -> None:
    names = [field.name for field in fields(Recipe) if getattr(saved, field.name) != getattr(requested, field.name)]
    if names:
        saved_text, requested_text = (
            ", ".join(f"{name} {getattr(recipe, name)}" for name in names) for recipe in (saved, requested)
        )
        raise ArgumentError(
            f"{path} must be resumed with {saved_text}; got {requested_text}. Use the same options, --from-scratch to "
            "start again, or another --out."
        )


def _run_training(training: Trainer, folder: Path, save_steps: int) -> int:
    """Train with a progress bar and checkpoints, write the results and return the exit code.

    The exit code is 0, or 128 plus the number of the signal that stopped the training.
    """
    with _stop_signals() as signals:
        with _show_progress(training) as show:
            recent: deque[StepReport] = deque(maxlen=50)
            while not training.is_done and not training.any_rank(bool(signals)):
                recent.append(training.advance())
                show(recent)
                if training.step % save_steps == 0 and _is_rank_zero():
                    training.save(folder / "checkpoint.safetensors")
        if _is_rank_zero():
            training.save(folder / "checkpoint.safetensors")
    if not training.is_done:
        return 128 + (signals[0] if signals else signal.SIGINT)
    if _is_rank_zero():
        _test_and_save_results(training, folder)
    return 0


@contextmanager
def _stop_signals() -> Iterator[list[int]]:
    """Collect SIGINT and SIGTERM in a list, so that the current step and a checkpoint are finished first."""
    received: list[int] = []
    with handle_signals((signal.SIGINT, signal.SIGTERM), lambda number, _: received.append(number)):
        yield received


@contextmanager
def _show_progress(training: Trainer) -> Iterator[Callable[[Sequence[StepReport]], None]]:
    """Yield a function that shows the last steps: a bar in a terminal, otherwise a line every 30 seconds."""
    task_name, steps, console = training.task.name, training.recipe.steps, Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    last_log = time.monotonic()
    with Progress(*columns, console=console, disable=not (_is_rank_zero() and console.is_terminal)) as progress:
        bar = progress.add_task(task_name, total=steps, completed=training.step)

        def show(recent: Sequence[StepReport]) -> None:
            nonlocal last_log
            loss, accuracy = (sum(getattr(r, name) for r in recent) / len(recent) for name in ("loss", "accuracy"))
            description = f"{task_name}  loss {loss:.3f}  accuracy {accuracy:.1%}"
            progress.update(bar, advance=1, description=description)
            if _is_rank_zero() and not console.is_terminal and time.monotonic() - last_log >= LOG_INTERVAL_S:
                last_log = time.monotonic()
                typer.echo(f"{description}  step {training.step} of {steps}", err=True)

        yield show


def _test_and_save_results(training: Trainer, folder: Path) -> None:
    with show_spinner("evaluating on held-out data"):
        results = training.test()
    save_trained(training, folder / MODEL_FILE)
    write_text(folder / "curve.json", curve_json(training, results))
    for name, value in results.items():
        typer.echo(f"{name}  {value:.4g}")
    typer.echo(f"the model is in {folder}", err=True)
