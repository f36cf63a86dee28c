"""The explorer: a page that shows what a model attends to, in a browser, a notebook or a file."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from regard.inside.tape import Tape

if TYPE_CHECKING:
    from regard.explorer.widget import Widget


def look(tape: Tape, *, tokens: Sequence[str] | None = None, text: int = 0, title: str = "") -> "Widget":
    """A recording to look into, in a notebook's cell: heads, maps, tokens, and every number of any weight.

    `tokens` name the positions, unless `tape.tokens` does; `text` is the number of one in a batch. The result has
    `export("file.html")`, which writes a file that needs neither Python nor a network.
    """
    from regard.explorer.explorer import Explorer
    from regard.explorer.recorded import of_tape
    from regard.explorer.widget import Widget

    return Widget(Explorer(of_tape(tape, tokens=tokens, title=title, text=text)))
