"""The reference page of the command line, generated from the signatures of the commands."""

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_type_hints

from typer.models import ArgumentInfo, ParameterInfo

from regard.cli import app

TYPE_NAMES = {
    int: "integer",
    list[int]: "integer, repeatable",
    float: "number",
    Path: "path",
    bool: "flag",
}  # else text


def pages() -> dict[str, str]:
    """Return the text of the page by its path."""
    commands = [command.callback for command in app.registered_commands if command.callback]
    lines = ["# Command line", "", "`regard COMMAND --help` prints the same in a terminal.", ""]
    lines += ["| command | what the command does |", "|---|---|"]
    for command in commands:
        summary = " ".join(_help(command).partition("\n\n")[0].split())
        lines.append(f"| [`regard {command.__name__}`](#regard-{command.__name__}) | {summary} |")
    for command in commands:
        lines += _section(command)
    return {"reference/command-line.md": "\n".join(lines) + "\n"}


def _help(command: Callable[..., Any]) -> str:
    return inspect.getdoc(command) or ""


def _section(command: Callable[..., Any]) -> Iterator[str]:
    """Return the lines of one command: what it does, how it is called, and a table of its parameters."""
    parameters = list(_parameters(command))
    arguments = [_usage(name, default) for name, _, info, default in parameters if isinstance(info, ArgumentInfo)]
    options = ["[OPTIONS]"] if len(arguments) < len(parameters) else []
    title = f"regard {command.__name__}"
    yield from ("", f"## `{title}` {{#{title.replace(' ', '-')}}}", "", _help(command), "")
    yield from ("```sh", " ".join([title, *arguments, *options]), "```", "")
    if parameters:
        yield from ("| parameter | type | default | meaning |", "|---|---|---|---|")
    for name, kind, info, default in parameters:
        text = " ".join((info.help or "").split()).replace("|", "\\|")
        yield f"| {_names(name, info)} | {TYPE_NAMES.get(kind, 'text')} | {_default(default)} | {text} |"


def _parameters(command: Callable[..., Any]) -> Iterator[tuple[str, type, ParameterInfo, Any]]:
    """Return name, type, typer's description and default of each parameter."""
    hints = get_type_hints(command, include_extras=True)
    for name, parameter in inspect.signature(command).parameters.items():
        annotation, info = get_args(hints[name])
        kind, *_ = [kind for kind in get_args(annotation) or (annotation,) if kind is not NoneType]
        yield name, kind, info, parameter.default


def _usage(name: str, default: Any) -> str:
    return name.upper() if default is inspect.Parameter.empty else f"[{name.upper()}]"


def _names(name: str, info: ParameterInfo) -> str:
    if isinstance(info, ArgumentInfo):
        return f"`{name.upper()}`"
    # In an annotation, the first declared name is in the field for the default.
    declared = [n for n in (info.default, *(info.param_decls or ())) if isinstance(n, str)]
    return ", ".join(f"`{option}`" for option in declared or ["--" + name.replace("_", "-")])


def _default(default: Any) -> str:
    if default is inspect.Parameter.empty:
        return "required"
    return "" if default in (None, False) or default is True else f"`{default}`"
