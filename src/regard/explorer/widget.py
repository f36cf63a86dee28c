"""The explorer as a notebook widget: the page in a cell, which sends its requests to the kernel as messages."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from regard.errors import MissingDependencyError, RegardError
from regard.explorer import bundle
from regard.explorer.api.packing import pack
from regard.explorer.api.registry import dispatch
from regard.explorer.explorer import Explorer
from regard.explorer.html_export import DEFAULT_EXPORT_BYTES, build_html_file, default_exported_heads
from regard.files.atomic import write_text

try:
    import anywidget
except ImportError:
    raise MissingDependencyError(
        "regard.explore needs anywidget, which is not installed. Use pip install 'regard[explorer]'."
    ) from None


class ExplorerWidget(anywidget.AnyWidget):
    """The widget of `regard.explore`, which shows the page in a cell. `export` writes a file that needs no kernel."""

    _esm = ""
    _css = ""

    def __init__(self, explorer: Explorer) -> None:
        super().__init__(
            _esm=f"{bundle.bundle_script('app/widget-entry.js')}\nexport default page.default;", _css=_stylesheet()
        )
        self.explorer = explorer
        self.on_msg(self._handle_message)

    def __repr__(self) -> str:
        """Return the text that a notebook without a kernel shows instead of the page."""
        session = next(iter(self.explorer.sessions.values()))
        num_layers = len(session.layers)
        return f"regard.explore: {session.title or 'a recording'}, {num_layers} layers. Run this cell to explore it."

    def _handle_message(self, _: Any, message: Any, buffers: Any) -> None:
        """Handle a request of the page: send its id and the packed response, or an error message."""
        if not isinstance(message, dict) or not isinstance(message.get("name"), str):
            return
        request_id = message.get("id")
        try:
            response = pack(dispatch(self.explorer, message["name"], message.get("params")))
        except RegardError as error:
            self.send({"id": request_id, "error": str(error)})
        else:
            self.send({"id": request_id}, buffers=[response])

    def export(
        self, path: str | Path, *, heads: Sequence[tuple[int, int]] | None = None, max_bytes: int = DEFAULT_EXPORT_BYTES
    ) -> list[str]:
        """Write one HTML file that needs neither a kernel nor a network; return a list of omitted parts.

        `heads` are pairs (layer, head), the most important first; None exports the first 64 heads. `max_bytes` limits
        the stored responses, by default to 12 MiB.
        """
        session_id = next(iter(self.explorer.sessions))
        session = self.explorer.sessions[session_id]
        pairs = default_exported_heads(session) if heads is None else [(layer, head) for layer, head in heads]
        text, omitted = build_html_file(self.explorer, dispatch, session_id, pairs, max_bytes, ())
        write_text(path, text)
        return omitted


def _stylesheet() -> str:
    return bundle.read_frontend_file("styles/style.css").decode()
