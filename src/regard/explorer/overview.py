"""Questions about all that is shown: what there is, its heads in numbers, and a small map of each."""

from importlib.metadata import version

import numpy as np

from regard.explorer.asked import Asked
from regard.explorer.examples import EXAMPLES
from regard.explorer.explorer import Explorer
from regard.explorer.packing import Answer, numbers
from regard.explorer.sources import CHARACTERS, TITLES, TOKENS
from regard.inside.table import KINDS, LEAST, found


def state(explorer: Explorer, asked: Asked) -> Answer:
    """Everything that is shown, without weights."""
    shown = [
        {"id": number, "can_generate": explorer.writer(each) is not None, **each.said()}
        for number, each in list(explorer.shown.items())
    ]
    models = [{"name": name, "title": TITLES.get(name, name)} for name in explorer.models]
    limits = {"tokens": TOKENS, "characters": CHARACTERS}
    values = {"shown": shown, "models": models, "limits": limits, "examples": list(EXAMPLES.values())}
    return Answer({"version": version("regard"), "session": explorer.session, **values})


def run(explorer: Explorer, asked: Asked) -> Answer:
    """Lets a model read a text, and adds it to the history."""
    text = asked.text("text", CHARACTERS)
    model = explorer.model(asked.text("model", 400, "language"))
    tell = explorer.tell(asked)
    tell("waiting for another text", None)
    with explorer.running:
        tell("the model reads", None)
        made = model.shown(text)
    return Answer({"id": explorer.add(made)})


def progress(explorer: Explorer, asked: Asked) -> Answer:
    """How far a long question is that was given the same `id` as its `progress`."""
    text, share = explorer.progress(asked.text("id", 64))
    return Answer({"text": text, "share": share})


def heads(explorer: Explorer, asked: Asked) -> Answer:
    """The table of all heads, and those that are of a kind."""
    shown = explorer.find(asked)
    table = shown.table(explorer.tell(asked))
    known = {kind: words for kind, words in KINDS.items() if kind in table.columns}
    of_kind = {kind: [[f.layer, f.head, f.score] for f in found(table, kind, LEAST)] for kind in known}
    return Answer({"columns": table.columns, "rows": list(table), "kinds": known, "found": of_kind})


def thumbnails(explorer: Explorer, asked: Asked) -> Answer:
    """A small map of every head of a layer, (heads, rows, columns): at most `size` cells a side.

    Of a long text some rows of each cell are looked at, and `rows` says how many; else it is None.
    """
    shown = explorer.find(asked)
    layer = asked.whole("layer", 0, 10**6)
    size = asked.whole("size", 8, 256, 64)
    hidden = asked.wholes("hide", 0, 10**9, ())
    tell = explorer.tell(asked)
    names = shown.layer(layer).heads
    small = []
    for place, head in enumerate(names):
        tell(f"head {head} of layer {layer}", place / len(names))
        small.append(shown.small(layer, head, size, hidden))
    arrays = {"mean": np.stack([numbers(s.mean) for s in small]), "max": np.stack([numbers(s.max) for s in small])}
    return Answer({"heads": names, "size": size, "rows": shown.sampled(layer)}, arrays)
