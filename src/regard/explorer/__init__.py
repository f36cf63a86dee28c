"""The explorer: a page that shows what a model attends to, in a browser, a notebook or a file."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from regard.recording.recording import Recording

if TYPE_CHECKING:
    from regard.explorer.widget import ExplorerWidget

__all__ = ["explore"]


def explore(
    recording: Recording, *, tokens: Sequence[str] | None = None, batch_index: int = 0, title: str = ""
) -> "ExplorerWidget":
    """Return a notebook widget that shows the heads of a recording, their maps, and how each weight is computed.

    `tokens` label the positions; None uses `recording.tokens`. `batch_index` selects one text of a batch. `title` is
    the name of the session in the page. The method `export("file.html")` of the widget writes a page that needs
    neither Python nor a network. Needs anywidget: `pip install '.[explorer]'` in the repository.

    Attention weights alone do not explain a prediction; `regard.patch` and `Recording.relevance` test a hypothesis.

        with regard.record(model) as recording:
            model(tokens)
        regard.explore(recording, tokens=["The", "whale", "swims"])  # the last line of a notebook cell
    """
    from regard.explorer.explorer import Explorer
    from regard.explorer.session_from_recording import session_from_recording
    from regard.explorer.widget import ExplorerWidget

    return ExplorerWidget(
        Explorer(session_from_recording(recording, tokens=tokens, title=title, batch_index=batch_index))
    )
