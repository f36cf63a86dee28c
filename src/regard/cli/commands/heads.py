"""`regard heads`: the metrics of every head of a recording or a model."""

from pathlib import Path
from typing import Annotated

import typer

from regard.cli.app import JsonOption, exit_on_error, print_json, show_spinner
from regard.errors import ArgumentError, LoadError
from regard.recording.metrics.head_table import HEAD_KINDS, MIN_SCORE, HeadTable, find_heads
from regard.recording.recording import Recording, load_recording


def heads(
    recording_or_model: Annotated[
        str, typer.Argument(help="a file that Recording.save wrote, or a model as in regard explore")
    ],
    text: Annotated[str | None, typer.Argument(help="the input text of the model")] = None,
    file: Annotated[Path | None, typer.Option(help="a file with that text")] = None,
    find: Annotated[str | None, typer.Option(help=f"only heads of a kind: {', '.join(HEAD_KINDS)}")] = None,
    min_score: Annotated[float, typer.Option(help="the smallest score of a head of the kind")] = MIN_SCORE,
    sort: Annotated[str | None, typer.Option(help="a column, largest value first")] = None,
    columns: Annotated[str | None, typer.Option(help="columns to print, separated by commas")] = None,
    as_json: JsonOption = False,
) -> None:
    """List every head with its metrics: entropy, distance, and its score for each head kind."""
    with exit_on_error():
        if find is not None and (sort is not None or columns is not None):
            raise ArgumentError(
                "--find prints heads with their scores and cannot be combined with --sort or --columns; got both."
            )
        recording = _load_or_record(recording_or_model, text, file)
        with show_spinner("measuring every head") as progress:
            table = recording.head_table(progress=progress)
        if find is not None:
            _print_matches(table, find, min_score, as_json)
            return
        if sort is not None:
            table = table.sort(sort)
        if columns is not None:
            table = _select_columns(table, columns.split(","))
    if as_json:
        print_json(list(table))
    else:
        typer.echo(repr(table))


def _load_or_record(name: str, text: str | None, file: Path | None) -> Recording:
    if Path(name).is_file():
        if text is not None or file is not None:
            raise ArgumentError(f"a recording has its own text; got {name} and another text. Use a model instead.")
        return load_recording(name)
    input_text = text_from_options(text, file)
    if input_text is None:
        raise ArgumentError(
            f"a model needs a text; got only {name}, which is not a recording file. Add a text or --file."
        )
    from regard.explorer.text_models.registry import load_text_model

    with show_spinner(f"running {name} on the text"):
        return load_text_model(name).record_text(input_text).recording


def text_from_options(text: str | None, file: Path | None) -> str | None:
    """Return the text argument, or the content of --file."""
    if file is None:
        return text
    if text is not None:
        raise ArgumentError("a text must be an argument or come from --file; got both.")
    try:
        return file.read_text(encoding="utf8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise LoadError(f"--file must be a text file; got {file}: {reason}.") from None


def _print_matches(table: HeadTable, kind: str, min_score: float, as_json: bool) -> None:
    matches = find_heads(table, kind, min_score)
    if as_json:
        print_json([vars(match) for match in matches])
    elif matches:
        typer.echo("\n".join(str(match) for match in matches))
    else:
        typer.echo(f"no head has a {kind} score of at least {min_score:g} and three times that of a uniform head")


def _select_columns(table: HeadTable, names: list[str]) -> HeadTable:
    names = [name.strip() for name in names]
    for name in names:
        table.check_column(name)
    return HeadTable([{name: row[name] for name in ("layer", "head", *names)} for row in table])
