"""The explorer in a notebook: the same page in a cell, whose questions go to the kernel as messages."""

from pathlib import Path
from typing import Any

from regard.errors import MissingError, RegardError
from regard.explorer import pages
from regard.explorer.explorer import Explorer
from regard.explorer.export import BUDGET, every_head, exported
from regard.explorer.packing import packed
from regard.explorer.questions import ask
from regard.files.atomic import write_text

try:
    import anywidget
except ImportError:
    raise MissingError(
        "regard.look shows a widget by the package anywidget, which is not installed. Use pip install regard[explorer]."
    ) from None


class Widget(anywidget.AnyWidget):
    """What `regard.look` gives: a cell that shows the page. `export` writes it into a file that needs no kernel."""

    _esm = ""
    _css = ""

    def __init__(self, explorer: Explorer) -> None:
        super().__init__(_esm=f"{pages.joined('widget.js')}\nexport default page.default;", _css=_style())
        self.explorer = explorer
        self.on_msg(self._answer)

    def __repr__(self) -> str:
        """What a notebook that is opened without a kernel shows in the place of the page."""
        shown = next(iter(self.explorer.shown.values()))
        layers = len(shown.layers)
        return f"regard.look: {shown.title or 'a recording'}, {layers} layers. Run this cell to look into it."

    def _answer(self, _: Any, message: Any, buffers: Any) -> None:
        """Answers a question of the page: the same number with the packed answer, or with a sentence."""
        if not isinstance(message, dict) or not isinstance(message.get("name"), str):
            return
        number = message.get("id")
        try:
            found = packed(ask(self.explorer, message["name"], message.get("params")))
        except RegardError as error:
            self.send({"id": number, "error": str(error)})
        else:
            self.send({"id": number}, buffers=[found])

    def export(self, path: str | Path, *, heads: Any = None, budget: int = BUDGET) -> list[str]:
        """Writes one HTML file that opens without a kernel and without a network; says what it had to leave out.

        `heads` are pairs (layer, head), those first that matter most; None is all of them. `budget` is how many bytes
        of answers it may hold.
        """
        number = next(iter(self.explorer.shown))
        chosen = every_head(self.explorer.shown[number]) if heads is None else [(a, b) for a, b in heads]
        text, left_out = exported(self.explorer, ask, number, chosen, budget, ())
        write_text(path, text)
        return list(left_out)


def _style() -> str:
    return pages.content("style.css").decode()
