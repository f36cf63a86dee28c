"""What the explorer begins with: a text that a model reads, a recording, or an example."""

from regard.explorer.explorer import Explorer
from regard.explorer.recorded import of_tape
from regard.explorer.sources import of_name
from regard.inside.tape import Tape


def opened(what: str | Tape | None = None, *, model: str = "language") -> Explorer:
    """An explorer that shows a text, as `model` reads it, or a recording; None shows an example.

    The page may let "language", "dates" and this model read other texts, and no other.

    >>> opened("the twenty first of march nineteen eighty four", model="dates").shown[0].title
    'the twenty first of march nineteen eighty four → 1984-03-21'
    """
    if isinstance(what, Tape):
        return Explorer(of_tape(what))
    reader = of_name(model)
    return Explorer(reader.shown(reader.example if what is None else what), models=(model,))
