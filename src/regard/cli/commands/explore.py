"""`regard explore`: open the explorer in a browser."""

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from regard.cli.app import exit_on_error, show_spinner
from regard.cli.commands.heads import text_from_options
from regard.errors import ArgumentError, MissingDependencyError
from regard.recording.recording import load_recording


def explore(
    text: Annotated[str | None, typer.Argument(help="the first text; others can be entered in the page")] = None,
    model: Annotated[
        str, typer.Option(help="language, dates, a folder that regard train wrote, or a Hugging Face directory or name")
    ] = "language",
    recording: Annotated[Path | None, typer.Option(help="a file that Recording.save wrote, instead of a text")] = None,
    file: Annotated[Path | None, typer.Option(help="a file with the text")] = None,
    port: Annotated[
        int, typer.Option(help="0 chooses a free port; any other port keeps its address across restarts")
    ] = 0,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="open the page")] = True,
) -> None:
    """Open a page that shows the attention of a model, down to every number. Ctrl-C stops the server.

    Only this machine can reach the page. Its address is printed on its own line.

    Attention weights alone do not explain a prediction: regard.patch and Recording.relevance test what a map suggests.
    """
    with exit_on_error():
        input_text = text_from_options(text, file)
        if recording is not None and input_text is not None:
            raise ArgumentError(
                f"a recording has its own text; got --recording {recording} and another text. Leave one of them out."
            )
        _check_installed()
        from regard.explorer.server.app import serve
        from regard.explorer.server.listener import listen
        from regard.explorer.session_factory import create_explorer

        listener = listen(port)  # a port in use is reported before a model is loaded
        source = input_text if recording is None else load_recording(recording)
        with show_spinner("opening the recording" if recording is not None else f"running {model} on the text"):
            explorer = create_explorer(source, model=model)
        serve(explorer, port=listener, open_browser=browser)


def _check_installed() -> None:
    """Raise `MissingDependencyError` if a package that serves the page is missing."""
    for package in ("starlette", "uvicorn"):
        if find_spec(package) is None:
            raise MissingDependencyError(
                f"regard explore serves its page with starlette and uvicorn, and {package} is not installed. "
                "Use pip install 'regard[explorer]'."
            )
