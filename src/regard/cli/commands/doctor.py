"""`regard doctor`: check the installation."""

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from regard.cli.app import JsonOption, print_json, show_spinner
from regard.cli.installation import Core, Extra, Installation, Package, TimedCall, inspect_installation

Row = tuple[str, str | Text]


def doctor(as_json: JsonOption = False) -> None:
    """Check the installation: versions, the compiled core, threads, optional packages, and one timed call.

    The exit code is 1 if the compiled core could not be built or loaded, or if a result is wrong.
    """
    with show_spinner("timing a call"):
        installation = inspect_installation()
    if as_json:
        print_json(_to_json(installation))
    else:
        _print(installation, Console())
    if installation.problems:
        raise typer.Exit(1)


def _to_json(installation: Installation) -> dict[str, Any]:
    timed = installation.timed_call
    return asdict(installation) | {
        "timed_call": asdict(timed) | {"speedup": timed.speedup},
        "problems": list(installation.problems),
        "warnings": list(installation.warnings),
    }


def _print(installation: Installation, console: Console) -> None:
    sections = (
        ("Versions", _version_rows(installation)),
        ("Compiled core", _core_rows(installation.core)),
        ("Threads", [("torch", f"{installation.torch_threads} of {installation.num_cpus} processors")]),
        ("Optional parts", [_extra_row(extra) for extra in installation.extras]),
        ("One call", _timed_rows(installation.timed_call)),
    )
    for title, rows in sections:
        if rows:
            console.print(Text(title, style="bold"))
            console.print(_table(rows))
            console.print()
    messages = [(Text("warning", style="bold yellow"), text) for text in installation.warnings]
    messages += [(Text("problem", style="bold red"), text) for text in installation.problems]
    if messages:
        console.print(_grid(messages))
    if not installation.problems:
        console.print(Text("regard is healthy.", style="bold green"))


def _table(rows: Iterable[Row]) -> Table:
    return _grid([(Text(f"  {name}"), value) for name, value in rows], min_width=18)


def _grid(rows: Iterable[tuple[Text, str | Text]], min_width: int = 0) -> Table:
    """Two columns; a long second cell continues below its own start."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(min_width=min_width, no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in rows:
        grid.add_row(name, value if isinstance(value, Text) else Text(value))
    return grid


def _version_rows(installation: Installation) -> list[Row]:
    packages = (installation.python, *installation.required)
    return [
        ("regard", f"{installation.regard_version or 'without package metadata'}, {installation.regard_path}"),
        *((package.name, _version_text(package)) for package in packages),
        ("system", installation.system),
        ("processor", installation.processor),
    ]


def _version_text(package: Package) -> Text:
    text = Text(package.version or "not installed", style="yellow" if package.is_supported is not True else "")
    if package.is_supported is False:
        text.append(f", outside of {package.supported}")
    elif package.supported:
        text.append(f" ({package.supported})", style="dim")
    return text


def _core_rows(core: Core) -> list[Row]:
    if not core.is_built:
        state = Text("not used", style="bold red") if core.error else Text("not built", style="yellow")
        return [
            ("state", state),
            ("reason", core.error or "regard was installed without building it"),
            *([("path", core.path)] if core.path else []),
        ]
    others = [name for name in core.available_instruction_sets if name != core.instruction_set]
    return [
        ("state", Text("built", style="green")),
        ("instruction set", f"{core.instruction_set}; also available: {', '.join(others) or 'none'}"),
        ("threads", core.thread_runtime or ""),
        ("path", core.path or ""),
    ]


def _extra_row(extra: Extra) -> Row:
    text = Text()
    for package in extra.packages:
        if package.version is not None:
            text.append(", " if text else "")
            text.append(f"{package.name} {package.version}", style="" if package.is_supported else "yellow")
    if extra.missing:
        text.append("; " if text else "")
        text.append(f"missing: {', '.join(extra.missing)}. Use {extra.install_command}", style="yellow")
    return extra.name, text


def _timed_rows(timed: TimedCall) -> list[Row]:
    shape = "x".join(str(size) for size in timed.shape)
    return [
        ("call", f"attention {shape}, float32, causal; median of {timed.rounds} interleaved calls"),
        ("regard", f"{timed.regard_ms:.2f} ms"),
        ("torch", f"{timed.torch_ms:.2f} ms (scaled_dot_product_attention)"),
        ("ratio", f"regard is {timed.speedup:.2f} times as fast as torch"),
        ("difference", f"{timed.max_difference:.1e} at most"),
    ]
