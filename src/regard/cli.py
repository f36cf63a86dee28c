"""The command `regard`: one command is one public function."""

import json
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from regard.errors import RegardError
from regard.mechanism.catalogue import Catalogue, markdown
from regard.mechanism.catalogue import mechanisms as catalogue

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
