"""The Typer application, and the options, error handling, tables and spinners that commands share."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from regard.errors import RegardError
from regard.files.json_values import to_json_value

app = typer.Typer(
    no_args_is_help=True, add_completion=False, help="Exact attention for PyTorch, with every weight in view."
)

JsonOption = Annotated[bool, typer.Option("--json", help="print JSON")]
MaskOption = Annotated[
    str | None, typer.Option("--mask", help="which keys each query may attend to, as in 'causal & sliding_window(256)'")
]
ScoreOption = Annotated[
    str | None, typer.Option("--score", help="as in 'cosine(10)', 'alibi', 'dot.then(softcap(30))'")
]
NormalizerOption = Annotated[str | None, typer.Option("--normalizer", help="as in 'entmax(1.5)', 'sink', 'topk(3)'")]


@app.callback()
def regard() -> None:
    """Exact attention for PyTorch, with every weight in view."""


@contextmanager
def exit_on_error() -> Iterator[None]:
    """Print the message of a `RegardError` and exit with code 2."""
    try:
        yield
    except RegardError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from None


@contextmanager
def show_spinner(description: str) -> Iterator[Callable[[float], None]]:
    """Show a spinner with a description and the elapsed time inside the `with` block.

    Yields a function that takes the completed fraction of the work and turns the spinner into a progress bar.
    """
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(description, total=None)
        yield lambda fraction: progress.update(task, total=1.0, completed=fraction)


def format_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table as text, with the first column left-aligned and the others right-aligned."""
    lines = [headers, *rows]
    widths = [max(len(line[n]) for line in lines) for n in range(len(headers))]
    cells = (
        [line[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(line[1:], widths[1:], strict=True))]
        for line in lines
    )
    return "\n".join("  ".join(row) for row in cells)


def print_json(data: Any) -> None:
    """Print data as indented JSON; NaN and infinities become null."""
    typer.echo(json.dumps(to_json_value(data), indent=1, ensure_ascii=False))
