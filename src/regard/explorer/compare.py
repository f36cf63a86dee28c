"""Two things that are shown, one less the other: which heads look elsewhere, and where."""

import torch

from regard.errors import SpecError
from regard.explorer.asked import Asked
from regard.explorer.explorer import Explorer
from regard.explorer.maps import Cells, Pyramid
from regard.explorer.packing import Answer, numbers
from regard.explorer.shown import Shown


def compare(explorer: Explorer, asked: Asked) -> Answer:
    """Whether two can be compared, in what way, and the heads that changed most."""
    one, other = explorer.find(asked, "one"), explorer.find(asked, "other")
    explorer.tell(asked)("heads are compared", None)
    try:
        table = one.tape.compare(other.tape).heads
    except SpecError as error:
        return Answer({"fits": False, "why": str(error), "heads": [], "columns": []})
    why = _why(one, other)
    return Answer({"fits": not why, "why": why, "heads": list(table), "columns": table.columns})


def _why(one: Shown, other: Shown) -> str:
    """Why maps cannot be subtracted weight by weight; nothing if they can."""
    lengths = [[(x.take.q.shape[2], x.take.k.shape[2]) for x in shown.layers] for shown in (one, other)]
    if lengths[0] == lengths[1]:
        return ""
    (a, b), (c, d) = next(pair for pair in zip(*lengths, strict=False) if pair[0] != pair[1])
    return (
        f"the texts have {a} x {b} and {c} x {d} pairs, so single weights do not correspond; maps of as many cells are "
        "compared, each cell with its share of all weight."
    )


def difference_tile(explorer: Explorer, asked: Asked) -> Answer:
    """A tile of one map less the other: the difference of means, and the one of largest size in each cell.

    The second is of single weights at level 0, and of the maxima of cells above it.
    """
    one, other = (_map(explorer, asked, name) for name in ("one", "other"))
    if one.head.shape != other.head.shape:
        (a, b), (c, d) = one.head.shape, other.head.shape
        raise SpecError(f"maps must be of one size to be subtracted; got {a} x {b} and {c} x {d}. Use difference_map.")
    place = [asked.whole(name, 0, 10**9) for name in ("level", "row", "column")]
    left, right = one.tile(*place), other.tile(*place)
    return Answer({}, {"mean": numbers(left.mean - right.mean), "max": numbers(left.max - right.max)})


def difference_map(explorer: Explorer, asked: Asked) -> Answer:
    """Two maps of any sizes on as many cells, each with its share of all weight: one less the other."""
    cells = asked.whole("cells", 8, 64, 64)
    one, other = (_shares(_map(explorer, asked, name), cells) for name in ("one", "other"))
    return Answer({"cells": cells}, {"mean": numbers(one - other)})


def _shares(whole: Pyramid, cells: int) -> torch.Tensor:
    """The share of all weight in each of cells x cells parts; a text that is shorter than that is stretched."""
    small: Cells = whole.small(256)
    spread = torch.nn.functional.interpolate(small.mean[None, None].double(), size=(cells, cells), mode="area")[0, 0]
    return spread / spread.sum().clamp(min=1e-30)


def _map(explorer: Explorer, asked: Asked, name: str) -> Pyramid:
    layer, head = asked.whole("layer", 0, 10**6), asked.whole("head", 0, 10**6)
    if name == "other":  # of another model, another head may be the one to compare with
        layer, head = asked.whole("other_layer", 0, 10**6, layer), asked.whole("other_head", 0, 10**6, head)
    return explorer.find(asked, name).map(layer, head, asked.wholes("hide", 0, 10**9, ()))
