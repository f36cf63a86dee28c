"""What all commands share: the application, refusals as sentences, JSON, and bars for long work."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from regard.errors import RegardError

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Attention as one exact definition.")

Json = Annotated[bool, typer.Option("--json", help="for machines")]
MaskText = Annotated[str | None, typer.Option("--mask", help="who may look at whom, as in 'causal & window(256)'")]
ScoreText = Annotated[str | None, typer.Option("--score", help="as in 'cosine(10)', 'alibi', 'dot.then(softcap(30))'")]
WeighText = Annotated[str | None, typer.Option("--weigh", help="as in 'entmax(1.5)', 'sink', 'top(3)'")]


@app.callback()
def regard() -> None:
    """Attention as one exact definition."""


@contextmanager
def refusing() -> Iterator[None]:
    """What the library refuses ends the command with its sentence and the code 2."""
    try:
        yield
    except RegardError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from None


@contextmanager
def working(what: str) -> Iterator[Callable[[float], None]]:
    """Says what is being done, and for how long already, while it is; nothing of it stays. Who can tell the share that
    is done makes a bar of it."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=None)
        yield lambda share: progress.update(task, total=1.0, completed=share)


def aligned(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table as text: the first column begins, the others end at the same place."""
    lines = [titles, *rows]
    widths = [max(len(line[n]) for line in lines) for n in range(len(titles))]
    cells = (
        [line[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(line[1:], widths[1:], strict=True))] for line in lines
    )
    return "\n".join("  ".join(row) for row in cells)


def say_json(found: Any) -> None:
    typer.echo(json.dumps(found, indent=1, ensure_ascii=False))
