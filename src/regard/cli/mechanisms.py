"""`regard mechanisms`: the catalogue."""

from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from regard.cli.app import Json, refusing, say_json
from regard.mechanism.catalogue import Catalogue, markdown
from regard.mechanism.catalogue import mechanisms as catalogue


def mechanisms(
    name: Annotated[str, typer.Argument(help="one of them, or a part of its name: shows all about it")] = "",
    as_json: Json = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="the page docs/mechanisms.md")] = False,
) -> None:
    """Lists every mechanism: what it computes, what it costs, where it comes from."""
    found = catalogue()
    with refusing():
        chosen = Catalogue([found.named(name)] if name else found)
    if as_json:
        say_json([asdict(m) for m in chosen])
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
