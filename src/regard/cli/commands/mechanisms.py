"""`regard mechanisms`: print the catalog of mechanisms."""

from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from regard.cli.app import JsonOption, exit_on_error, print_json
from regard.mechanisms.gallery_page import to_markdown
from regard.mechanisms.registry import Catalog, catalog


def mechanisms(
    name: Annotated[str, typer.Argument(help="a mechanism, or a part of its name: print its full entry")] = "",
    as_json: JsonOption = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="print the page docs/gallery/index.md")] = False,
) -> None:
    """List every mechanism with its cost and paper, or print the full entry of one."""
    entries = catalog()
    with exit_on_error():
        selected = Catalog([entries.find(name)] if name else entries)
    if as_json:
        print_json([{**asdict(m), "properties": m.properties} for m in selected])
    elif as_markdown:
        typer.echo(to_markdown(selected), nl=False)
    elif name:
        typer.echo(str(selected[0]))
    else:
        Console().print(_table(selected))


def _table(entries: Catalog) -> Table:
    table = Table("mechanism", "exact", "time", "memory", "paper", box=None, pad_edge=False)
    for family, members in entries.by_family():
        table.add_row(f"[bold]{family}[/bold]")
        for m in members:
            reference = m.paper.split(";")[0].rsplit(", arXiv", 1)
            paper = f"arXiv {reference[1].split()[-1]}" if len(reference) == 2 else reference[0].split(",")[0]
            table.add_row(f"  {m.name}", "yes" if m.exact else "no", m.time_complexity, m.memory_complexity, paper)
    return table
