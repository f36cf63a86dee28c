"""One HTML file with the page and the answers it needs: it opens from disk, without a network and without Python."""

import json
import zlib
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from html import escape
from typing import Any

import numpy as np

from regard.errors import SpecError
from regard.explorer import pages
from regard.explorer.asked import Asked
from regard.explorer.costs import LENGTHS, SIZES
from regard.explorer.explorer import Explorer
from regard.explorer.maps import TILE
from regard.explorer.packing import Answer, packed
from regard.explorer.prices import EVERY
from regard.explorer.shown import Shown
from regard.worked.examples import EXAMPLES

BUDGET, LARGEST = 12 * 2**20, 200 * 2**20  # bytes of answers: what is taken unless it is said, and at most
HEADS = 64  # whose maps are held, at most
ARITHMETIC_PAIRS = 2**18  # of a head whose arithmetic is held, at most
CELLS = 2**12  # of a head whose cells are held one by one, at most
THUMBNAIL = 64

Key = tuple[str, dict[str, Any]]  # a question and its parameters
Ask = Callable[[Explorer, str, Any], Answer]  # `questions.ask`, which knows this file


def exported(
    explorer: Explorer, ask: Ask, number: int, heads: Sequence[tuple[int, int]], budget: int, cells: Sequence[Any]
) -> tuple[str, list[str]]:
    """The file, and what it had to leave out; `heads` are (layer, head), those first that matter most.

    Small maps of every head are always there. Of `heads` the coarsest level comes first, for all of them, then finer
    ones until `budget` bytes are used, then the vectors from which the page computes the arithmetic.
    """
    held = _Held(explorer, ask, budget)
    shown = explorer.shown[number]
    held.put([("state{}", _state(explorer, ask, number))])
    for key in _common(shown, number):
        held.add(*key)
    for layer, head, query, key in cells:
        held.add("cell", {"shown": number, "layer": layer, "head": head, "query": query, "key": key})
    _add_maps(held, shown, number, heads)
    for ran in ask(explorer, "experiments", {}).values["ran"]:
        held.all(f"the experiment {ran['name']}", [("experiment", ran)])
    for layer, head in heads:
        keys = _arithmetic(held, shown, {"shown": number, "layer": layer, "head": head})
        if not held.all(f"layer {layer}, head {head}, the arithmetic, also of heads after it", keys):
            break
    return _page(shown.title, held.answers), held.left_out


def _add_maps(held: "_Held", shown: Shown, number: int, heads: Sequence[tuple[int, int]]) -> None:
    """Levels of all heads in turn, from the coarsest to the finest, until one does not fit.

    A head without any level is shown by its small map.
    """
    finest: dict[tuple[int, int], int] = {}
    levels = {(layer, head): shown.map(layer, head).levels for layer, head in heads}
    for level in reversed(range(max(levels.values(), default=0))):
        for layer, head in (each for each in heads if level < levels[each]):
            about, shape = {"shown": number, "layer": layer, "head": head}, shown.map(layer, head).head.shape
            size = f"cells of {2**level} x {2**level}" if level else "single weights"
            more = ", also of heads after it" if (layer, head) != heads[-1] else ""
            if not held.all(f"layer {layer}, head {head}, {size}{more}", _tiles(about, shape, level)):
                return _add_levels(held, number, finest)
            finest[layer, head] = level
    return _add_levels(held, number, finest)


def _add_levels(held: "_Held", number: int, finest: dict[tuple[int, int], int]) -> None:
    """The sizes of each map, with the finest level that the file holds."""
    for (layer, head), level in finest.items():
        held.add("levels", {"shown": number, "layer": layer, "head": head}, finest=level)


class _Held:
    """Answers by question, as long as they fit."""

    def __init__(self, explorer: Explorer, ask: Ask, budget: int) -> None:
        self.explorer, self.ask, self.left = explorer, ask, budget
        self.answers: dict[str, str] = {}
        self.left_out: list[str] = []

    def add(self, name: str, params: dict[str, Any], **more: Any) -> None:
        """One answer, with more values where some are given."""
        answer = self.ask(self.explorer, name, params)
        self.put([(question(name, params), _written(Answer({**answer.values, **more}, answer.arrays)))])

    def all(self, what: str, keys: Sequence[Key] | Iterator[Key]) -> bool:
        """All of these, or none of them where they do not fit; whether they did."""
        found, left = [], self.left
        for name, params in keys:
            made = self._packed(name, params)
            left -= len(made)
            if left < 0:
                self.left_out.append(f"{what}: does not fit into the file")
                return False
            found.append((question(name, params), made))
        self.put(found)
        return True

    def _packed(self, name: str, params: dict[str, Any]) -> str:
        answer = self.ask(self.explorer, name, params)
        if name == "tile" and params["level"] == 0:  # a single weight is its own mean and maximum
            return _written(Answer(answer.values, {"mean": answer.arrays["mean"]}))
        return _written(answer)

    def put(self, found: list[tuple[str, str]]) -> None:
        for key, made in found:
            if key not in self.answers:
                self.answers[key] = made
                self.left -= len(made)


def question(name: str, params: dict[str, Any]) -> str:
    """A question as the page names it, too: parameters sorted, no spaces, none that is null.

    >>> question("tile", {"row": 0, "level": 1, "hide": None})
    'tile{"level":1,"row":0}'
    """
    given = {key: value for key, value in params.items() if value is not None and key != "progress"}
    return name + json.dumps(given, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _written(answer: Answer) -> str:
    return b64encode(zlib.compress(packed(answer))).decode()


def _state(explorer: Explorer, ask: Ask, number: int) -> str:
    """What there is in a file: one thing to look at, and no model."""
    values = ask(explorer, "state", {}).values
    shown = [{**each, "can_generate": False} for each in values["shown"] if each["id"] == number]
    return _written(Answer({**values, "shown": shown, "models": [], "examples": []}))


def _common(shown: Shown, number: int) -> Iterator[Key]:
    yield "heads", {"shown": number}
    for layer in shown.layers:
        yield "thumbnails", {"shown": number, "layer": layer.number, "size": THUMBNAIL}
    yield "examples", {}
    yield "forms", {}
    for example in EXAMPLES.values():
        given = {name: getattr(example, name) for name in ("x", "w_q", "w_k", "w_v")}
        yield "steps", {**_listed(given), "tokens": list(example.words), "mask": "none", "weigh": "softmax"}
    yield "experiments", {}
    yield "cost_names", {}
    for size in SIZES:
        sizes = {name: value for name, value in size.items() if name != "title"}
        yield "cost", {"mechanisms": [each.name for each in EVERY], "lengths": LENGTHS, **sizes}


def _listed(matrices: dict[str, Sequence[Sequence[float]]]) -> dict[str, list[list[float]]]:
    return {name: [list(row) for row in matrix] for name, matrix in matrices.items()}


def _tiles(about: dict[str, Any], shape: tuple[int, int], level: int) -> Iterator[Key]:
    rows, columns = (-(-n // (TILE * 2**level)) for n in shape)
    for row in range(rows):
        for column in range(columns):
            yield "tile", {**about, "level": level, "row": row, "column": column}


def _arithmetic(held: "_Held", shown: Shown, about: dict[str, Any]) -> Iterator[Key]:
    """The vectors of a head, from which the page computes any cell; where it cannot, the cells of a small map."""
    n_q, n_k = shown.map(about["layer"], about["head"]).head.shape
    if n_q * n_k > ARITHMETIC_PAIRS:
        return
    if held.ask(held.explorer, "head_vectors", about).values["supported"]:
        yield "head_vectors", about
    elif n_q * n_k <= CELLS:
        yield from (("cell", {**about, "query": query, "key": key}) for query in range(n_q) for key in range(n_k))


def _page(title: str, answers: dict[str, str]) -> str:
    policy = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
    packed_answers = json.dumps({"answers": answers})  # base64 and numbers: nothing that HTML would read
    script = pages.joined("boot.js").replace("</script", "<\\/script").replace("<!--", "<\\!--")
    style = pages.content("style.css").decode().replace("</style", "<\\/style")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(title)}</title>\n<style>\n{style}\n</style>\n</head>\n"
        '<body class="regard-page">\n<div id="regard"></div>\n'
        f'<script type="application/json" id="regard-answers">{packed_answers}</script>\n'
        f'<script type="module">\n{script}\n</script>\n</body>\n</html>\n'
    )


def export(explorer: Explorer, asked: Asked, ask: Ask) -> Answer:
    """The file as bytes, for a page to save."""
    shown = explorer.find(asked)
    number = asked.whole("shown", 0, 10**9, 0)
    budget = asked.whole("budget", 2**16, LARGEST, BUDGET)
    heads = [(a, b) for a, b in pairs(asked.any("heads"), "heads", 2)] or every_head(shown)
    explorer.tell(asked)("the file is written", None)
    made, left_out = exported(explorer, ask, number, heads, budget, pairs(asked.any("cells"), "cells", 4))
    values = {"heads": heads, "left_out": left_out}
    return Answer(values, {"html": np.frombuffer(made.encode(), dtype=np.uint8)})


def every_head(shown: Shown) -> list[tuple[int, int]]:
    return [(layer.number, head) for layer in shown.layers for head in layer.heads][:HEADS]


def pairs(given: Any, name: str, size: int) -> list[list[int]]:
    """A list of lists of so many whole numbers; none for None."""
    listed = [] if given is None else given
    ok = isinstance(listed, list) and len(listed) <= 4096
    if not ok or any(
        not isinstance(each, list) or len(each) != size or any(type(n) is not int or n < 0 for n in each)
        for each in listed
    ):
        raise SpecError(f"{name} must be a list of lists of {size} whole numbers; got {str(given)[:60]}.")
    return listed
