"""`regard look`: the explorer, in a browser."""

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from regard.cli.app import refusing, working
from regard.cli.heads import given_text
from regard.errors import MissingError, SpecError
from regard.inside.tape import load_tape


def look(
    text: Annotated[str | None, typer.Argument(help="what the model reads first; the page takes more")] = None,
    model: Annotated[
        str, typer.Option(help="language, dates, a folder that regard train filled, a Hugging Face directory or name")
    ] = "language",
    tape: Annotated[Path | None, typer.Option(help="a recording that Tape.save wrote, in the place of a text")] = None,
    file: Annotated[Path | None, typer.Option(help="a file with the text")] = None,
    port: Annotated[int, typer.Option(help="0 takes a free one; any other has the same address at each start")] = 0,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="open the page")] = True,
) -> None:
    """Opens a page that shows what a model attends to, down to every number. Ctrl-C ends it.

    The page is served to this machine alone. Its address is printed alone on a line.
    """
    with refusing():
        words = given_text(text, file)
        if tape is not None and words is not None:
            raise SpecError(f"a recording has its own text; got --tape {tape} and another text. Leave one of them out.")
        _check_installed()
        from regard.explorer.listener import listen
        from regard.explorer.opened import opened
        from regard.explorer.server import serve

        listener = listen(port)  # a port in use is said before a model is loaded
        what = words if tape is None else load_tape(tape)
        with working("the recording is opened" if tape is not None else f"{model} reads the text"):
            explorer = opened(what, model=model)
        serve(explorer, port=listener, open_browser=browser)


def _check_installed() -> None:
    """Refuses with a sentence where the packages that serve the page are missing."""
    for package in ("starlette", "uvicorn"):
        if find_spec(package) is None:
            raise MissingError(
                f"regard look serves its page with starlette and uvicorn, and {package} is not installed. "
                "Use pip install regard[explorer]."
            )
