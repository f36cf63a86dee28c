"""`regard heads`: every head of a recording or a model in numbers."""

import math
from pathlib import Path
from typing import Annotated, Any

import typer

from regard.cli.app import Json, refusing, say_json, working
from regard.errors import LoadError, SpecError
from regard.inside.table import KINDS, LEAST, HeadTable, found
from regard.inside.tape import Tape, load_tape


def heads(
    tape_or_model: Annotated[str, typer.Argument(help="a file that Tape.save wrote, or a model as in regard look")],
    text: Annotated[str | None, typer.Argument(help="what the model reads")] = None,
    file: Annotated[Path | None, typer.Option(help="a file with that text")] = None,
    find: Annotated[str | None, typer.Option(help=f"only heads of a kind: {', '.join(KINDS)}")] = None,
    least: Annotated[float, typer.Option(help="the score from which on a head is of the kind")] = LEAST,
    sort: Annotated[str | None, typer.Option(help="a column; the largest first")] = None,
    columns: Annotated[str | None, typer.Option(help="those to show, divided by commas")] = None,
    as_json: Json = False,
) -> None:
    """Lists every head with its measures: entropy, distance, and how much it is of each kind."""
    with refusing():
        if find is not None and (sort is not None or columns is not None):
            raise SpecError("--find lists heads with their evidence, and takes no --sort or --columns; got both.")
        tape = _recorded(tape_or_model, text, file)
        with working("measuring every head") as progress:
            table = tape.heads(progress=progress)
        if find is not None:
            _say_found(table, find, least, as_json)
            return
        if sort is not None:
            table = table.sort(sort)
        if columns is not None:
            table = _some(table, columns.split(","))
    if as_json:
        say_json([_spoken(row) for row in table])
    else:
        typer.echo(repr(table))


def _recorded(name: str, text: str | None, file: Path | None) -> Tape:
    if Path(name).is_file():
        if text is not None or file is not None:
            raise SpecError(f"a recording has its own text; got {name} and another one. Name a model instead.")
        return load_tape(name)
    words = given_text(text, file)
    if words is None:
        raise SpecError(f"{name} is a model, or a recording that is not there: give it a text to read, or --file.")
    from regard.explorer.sources import of_name

    with working(f"{name} reads the text"):
        return of_name(name).shown(words).tape


def given_text(text: str | None, file: Path | None) -> str | None:
    """The text of the command or of the file it names."""
    if file is None:
        return text
    if text is not None:
        raise SpecError("a text must come from the command or from --file; got both.")
    try:
        return file.read_text(encoding="utf8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise LoadError(f"--file must be a text file; got {file}: {why}.") from None


def _say_found(table: HeadTable, kind: str, least: float, as_json: bool) -> None:
    chosen = found(table, kind, least)
    if as_json:
        say_json([vars(each) for each in chosen])
    elif chosen:
        typer.echo("\n".join(str(each) for each in chosen))
    else:
        typer.echo(f"no head has {least:g} or more on {KINDS[kind]}, and three times as much as a uniform one")


def _some(table: HeadTable, names: list[str]) -> HeadTable:
    names = [name.strip() for name in names]
    for name in names:
        table.check(name)
    return HeadTable([{name: row[name] for name in ("layer", "head", *names)} for row in table])


def _spoken(row: dict[str, Any]) -> dict[str, Any]:
    return {k: None if isinstance(x, float) and not math.isfinite(x) else x for k, x in row.items()}
