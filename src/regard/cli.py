"""The command `regard`: one command is one public function."""

import json
import signal
from collections import deque
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from regard.errors import RegardError, SpecError
from regard.mechanism.catalogue import Catalogue, markdown
from regard.mechanism.catalogue import mechanisms as catalogue
from regard.models import tasks
from regard.models.shipped import ship
from regard.models.train import Report, Training, curve_json, shortened

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Attention as one exact definition.")


@app.callback()
def regard() -> None:
    """Attention as one exact definition."""


@app.command()
def mechanisms(
    name: Annotated[str, typer.Argument(help="one of them, or a part of its name: shows all about it")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="for machines")] = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="the page docs/mechanisms.md")] = False,
) -> None:
    """Lists every mechanism: what it computes, what it costs, where it comes from."""
    found = catalogue()
    try:
        chosen = Catalogue([found.named(name)] if name else found)
    except RegardError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from None
    if as_json:
        typer.echo(json.dumps([asdict(m) for m in chosen], indent=1, ensure_ascii=False))
    elif as_markdown:
        typer.echo(markdown(chosen), nl=False)
    elif name:
        typer.echo(str(chosen[0]))
    else:
        Console().print(_table(chosen))


@app.command()
def train(
    name: Annotated[str, typer.Argument(help=f"one of {', '.join(tasks.names())}")],
    data: Annotated[Path, typer.Option(help="the folder that `make data` fills")] = Path("data"),
    out: Annotated[Path | None, typer.Option(help="where the model goes; runs/NAME unless given")] = None,
    steps: Annotated[int | None, typer.Option(help="how many, if not those of the recipe")] = None,
    seed: Annotated[int | None, typer.Option(help="another one than the recipe's")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="begin anew, also where a checkpoint is")] = False,
    every: Annotated[int, typer.Option(help="steps from one checkpoint to the next")] = 200,
) -> None:
    """Trains a model, or goes on where it was stopped. Ctrl-C saves and stops."""
    try:
        folder = Path("runs") / name if out is None else out
        training = _begun(name, data, folder / "checkpoint.safetensors", steps, seed, fresh)
        finished = _trained(training, folder, every)
    except RegardError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from None
    if not finished:
        typer.echo(f"stopped and saved after {training.step} steps; the same command goes on", err=True)
        raise typer.Exit(130)


def _begun(name: str, data: Path, path: Path, steps: int | None, seed: int | None, fresh: bool) -> Training:
    chosen = tasks.task(name, data)
    recipe = shortened(chosen.recipe, steps, seed)
    if fresh or not path.exists():
        return Training(chosen, recipe)
    training = Training.resume(chosen, path)
    if training.recipe != recipe:
        raise SpecError(
            f"{path} was begun with {training.recipe.steps} steps and seed {training.recipe.seed}, and can only go on "
            f"with those; got {recipe.steps} and {recipe.seed}. Use --fresh to begin anew, or another --out."
        )
    typer.echo(f"going on after step {training.step}")
    return training


def _trained(training: Training, folder: Path, every: int) -> bool:
    """Whether it came to its end; with a bar, a checkpoint now and then, and the curve and the weights at the end."""
    stops = []
    before = signal.signal(signal.SIGINT, lambda *_: stops.append(True))  # a step is finished, not broken off
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    try:
        with Progress(*columns, console=Console(stderr=True)) as progress:
            bar = progress.add_task(training.task.name, total=training.recipe.steps, completed=training.step)
            recent: deque[Report] = deque(maxlen=50)
            while not training.is_over and not stops:
                recent.append(training.advance())
                loss, right = (sum(getattr(r, what) for r in recent) / len(recent) for what in ("loss", "accuracy"))
                progress.update(bar, advance=1, description=f"{training.task.name}  loss {loss:.3f}  right {right:.1%}")
                if training.step % every == 0:
                    training.save(folder / "checkpoint.safetensors")
    finally:
        signal.signal(signal.SIGINT, before)
    training.save(folder / "checkpoint.safetensors")
    if not training.is_over:
        return False
    results = training.test()
    ship(training, folder / "model.safetensors")
    (folder / "curve.json").write_text(curve_json(training, results), encoding="utf8")
    for what, number in results.items():
        typer.echo(f"{what}  {number:.4g}")
    return True


def _table(chosen: Catalogue) -> Table:
    table = Table("mechanism", "exact", "time", "memory", "paper", box=None, pad_edge=False)
    for family, members in chosen.families():
        table.add_row(f"[bold]{family}[/bold]")
        for m in members:
            first = m.paper.split(";")[0].rsplit(", arXiv", 1)
            paper = f"arXiv {first[1].split()[-1]}" if len(first) == 2 else first[0].split(",")[0]
            table.add_row(f"  {m.name}", "yes" if m.exact else "no", m.time, m.memory, paper)
    return table


def main() -> None:
    app()


if __name__ == "__main__":
    main()
