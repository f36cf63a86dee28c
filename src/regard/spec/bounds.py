"""Reading a term: the least and greatest value it can take over a region of positions.

Bounds are sound: the true value always lies between them. They are found by interval arithmetic, but a part that
depends on the query alone or on the key alone is evaluated exactly once for all positions and reduced to block
minima and maxima, and so are the tensors that are looked up. Floats are bounded by the very operations that will
compute them, in the same precision: rounding is monotone, so it cannot carry a value out of its bounds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import product
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.spec.evaluate import Evaluation, Positions
from regard.spec.interval import FAR, Interval, combine, exactly, whole
from regard.spec.term import Term, postorder, slot_of

Array = NDArray[Any]

HOIST_LIMIT = 2**25  # numbers: a one-sided part larger than this over batch, heads and positions stays an interval


@dataclass(frozen=True, eq=False)
class Regions:
    """Rectangles of positions: one entry each in six arrays; ends are inclusive."""

    b: Array
    h: Array
    i_first: Array
    i_last: Array
    j_first: Array
    j_last: Array

    def __len__(self) -> int:
        return len(self.i_first)


class Extremes:
    """Minima and maxima of a table over boxes of indices, from copies of it that are halved as often as needed.

    A range is covered by at most three cells of the copy that resolves it, so an answer may look a little beyond the
    range: sound, and exact for single indices and for ranges aligned to powers of two.
    """

    def __init__(self, table: Array, unknown: Array | None = None) -> None:
        low = high = table
        if table.dtype.kind == "f" and np.isnan(table).any():  # a NaN could be anything
            unknown = np.isnan(table) if unknown is None else unknown | np.isnan(table)
        if unknown is not None:
            least, most = {"f": (-np.inf, np.inf), "i": (0, 1) if table.dtype == np.int8 else (-FAR, FAR)}[
                table.dtype.kind
            ]
            low, high = np.where(unknown, least, table), np.where(unknown, most, table)
            low, high = low.astype(table.dtype), high.astype(table.dtype)
        self._copies = {(0,) * table.ndim: (low, high)}

    def over(self, first: Sequence[Array], last: Sequence[Array]) -> Interval:
        """Bounds over the boxes [first, last]: one pair of equally long arrays a dimension, within the table."""
        levels = np.stack([np.frexp((z - a + 1).astype(np.float64))[1] - 1 for a, z in zip(first, last, strict=True)])
        low = np.empty(levels.shape[1], self._copies[(0,) * len(first)][0].dtype)
        high = np.empty_like(low)
        kinds = reduce(lambda code, level: code * 64 + level, levels, np.zeros(levels.shape[1], np.int64))
        left = np.arange(len(kinds))
        while len(left):  # boxes of one size at a time; there are few sizes, and sorting them would take longer
            same = kinds[left] == kinds[left[0]]
            chosen, left = left[same], left[~same]
            level = levels[:, chosen[0]]
            boxes = [(a[chosen] >> n, z[chosen] >> n) for a, z, n in zip(first, last, level, strict=True)]
            low[chosen], high[chosen] = self._covered(tuple(int(n) for n in level), boxes)
        return low, high

    def _covered(self, level: tuple[int, ...], boxes: list[tuple[Array, Array]]) -> Interval:
        lows, highs = self._copy(level)
        along = [[a] if np.array_equal(a, z) else [a, np.minimum(a + 1, z), z] for a, z in boxes]
        cells = list(product(*along))
        return reduce(np.minimum, (lows[c] for c in cells)), reduce(np.maximum, (highs[c] for c in cells))

    def _copy(self, level: tuple[int, ...]) -> Interval:
        if level not in self._copies:
            axis = int(np.argmax(level))
            low, high = self._copy(tuple(n - (a == axis) for a, n in enumerate(level)))
            self._copies[level] = (_halved(low, axis, np.minimum), _halved(high, axis, np.maximum))
        return self._copies[level]


def _halved(table: Array, axis: int, least: np.ufunc) -> Array:
    """The least or greatest of each pair of neighbours along an axis; a last one without neighbour stays."""
    even, odd = (table[(slice(None),) * axis + (slice(n, None, 2),)] for n in (0, 1))
    result = even.copy()
    paired = result[(slice(None),) * axis + (slice(odd.shape[axis]),)]
    least(paired, odd, out=paired)
    return result


class Bounds:
    """Bounds of terms over any regions; what is one-sided is evaluated once and kept.

    `lengths` is (batch, heads, n_q, n_k).
    """

    def __init__(self, tensors: Sequence[Tensor], lengths: tuple[int, int, int, int], start: int | Tensor) -> None:
        self.tensors = [t.detach().cpu() for t in tensors]
        self.lengths = lengths
        self.start = start if isinstance(start, int) else start.cpu()
        self._one_sided: dict[Term, Extremes] = {}
        self._tables: dict[int, Extremes] = {}
        self._orders: dict[Term, list[tuple[Term, bool]]] = {}

    def of(self, term: Term, regions: Regions) -> Interval:
        """The least and greatest value over each region, one entry a region. Conditions count as 0 and 1."""
        low, high = self._of(term, regions)
        return np.broadcast_to(low, len(regions)), np.broadcast_to(high, len(regions))

    def _of(self, term: Term, regions: Regions) -> Interval:
        known: dict[Term, Interval] = {}
        for node, is_one_sided in self._order(term):
            if node.op == "constant":
                known[node] = exactly(np.asarray(node.value))
            elif node.op == "variable":
                known[node] = self._variable(str(node.value), regions)
            elif is_one_sided:
                known[node] = self._hoisted(node, regions)
            else:
                args = [known[a] for a in node.args]
                known[node] = self._looked_up(node, args) if node.op == "lookup" else combine(node, args)
            if node.kind == "int":
                known[node] = whole(*known[node])
        return known[term]

    def _order(self, term: Term) -> list[tuple[Term, bool]]:
        """The parts that are bounded one after another, and whether each depends on one side alone."""
        if term not in self._orders:
            order = postorder((term,), lambda n: () if self._is_one_sided(n) else n.args)
            self._orders[term] = [(node, self._is_one_sided(node)) for node in order]
        return self._orders[term]

    def _variable(self, name: str, regions: Regions) -> Interval:
        if name == "s":
            return np.asarray(-np.inf), np.asarray(np.inf)
        if name in ("n_q", "n_k"):
            return exactly(np.asarray(self.lengths[2 if name == "n_q" else 3]))
        if name in ("b", "h"):
            return exactly(regions.b if name == "b" else regions.h)
        if name == "j":
            return regions.j_first, regions.j_last
        shift = 0 if name == "i" else self.start if isinstance(self.start, int) else self.start.numpy()[regions.b]
        return regions.i_first + shift, regions.i_last + shift

    def _is_one_sided(self, node: Term) -> bool:
        if not node.args or "s" in node.depends or ("j" in node.depends and node.depends & {"i", "p"}):
            return False
        if node.op in ("add", "sub") and all(a.op in ("constant", "variable") for a in node.args):
            return False  # intervals are exact here and cost nothing
        return int(np.prod([len(r) for r in self._extent(node)])) <= HOIST_LIMIT

    def _extent(self, node: Term) -> tuple[range, range, range, range]:
        """The positions a one-sided part has to be evaluated at; dimensions it does not depend on have length 1."""
        batch, heads, n_q, n_k = self.lengths
        moves = "b" in node.depends or ("p" in node.depends and not isinstance(self.start, int))
        return (
            range(batch if moves else 1),
            range(heads if "h" in node.depends else 1),
            range(n_q if node.depends & {"i", "p"} else 1),
            range(n_k if "j" in node.depends else 1),
        )

    def _hoisted(self, node: Term, regions: Regions) -> Interval:
        extent = self._extent(node)
        if node not in self._one_sided:
            positions = Positions(
                *extent,
                start=self.start,
                n_q=self.lengths[2],
                n_k=self.lengths[3],
                device=torch.device("cpu"),
            )
            evaluation = Evaluation(self.tensors, positions)
            value = evaluation.condition(node).expand(positions.shape)
            outside = evaluation.out_of_range  # whether it is seen is for the tile to find out
            unknown = None if outside is None else outside.expand(positions.shape).numpy()
            self._one_sided[node] = Extremes(as_array(value), unknown)
        zero = np.zeros(len(regions), np.int64)
        first = (regions.b, regions.h, regions.i_first, regions.j_first)
        last = (regions.b, regions.h, regions.i_last, regions.j_last)
        return self._one_sided[node].over(
            [a if len(r) > 1 else zero for a, r in zip(first, extent, strict=True)],
            [z if len(r) > 1 else zero for z, r in zip(last, extent, strict=True)],
        )

    def _looked_up(self, node: Term, args: list[Interval]) -> Interval:
        slot = slot_of(node)
        if not node.args:  # a single number; one that is NaN could be anything
            number = np.atleast_1d(as_array(self.tensors[slot]))
            return (np.asarray(-np.inf), np.asarray(np.inf)) if np.isnan(number).any() else exactly(number)
        if slot not in self._tables:
            self._tables[slot] = Extremes(as_array(self.tensors[slot]))
        first, last = [], []
        outside: Array = np.asarray(False)
        for (low, high), size in zip(args, self.tensors[slot].shape, strict=True):
            outside = outside | (low < -size) | (high >= size)
            # an index below zero counts from the end; one that lies outside is moved inside
            low, high = np.clip(low, -size, size - 1), np.clip(high, -size, size - 1)
            wraps = (low < 0) & (high >= 0)
            first.append(np.atleast_1d(np.where(wraps, 0, low % size)))
            last.append(np.atleast_1d(np.where(wraps, size - 1, high % size)))
        together = np.broadcast_arrays(*first, *last)
        low, high = self._tables[slot].over(together[: len(first)], together[len(first) :])
        if not np.any(outside):
            return low, high
        # whether such a pair is seen is for the tile to find out
        least, most = {"bool": (0, 1), "int": (-FAR, FAR), "float": (-np.inf, np.inf)}[node.kind]
        return np.where(outside, least, low).astype(low.dtype), np.where(outside, most, high).astype(high.dtype)


def as_array(tensor: Tensor) -> Array:
    """A tensor as the numbers terms are bounded with: conditions as int8, halves as float32."""
    if tensor.dtype == torch.bool:
        return tensor.to(torch.int8).numpy()
    if tensor.is_floating_point():
        return (tensor if tensor.dtype == torch.float64 else tensor.float()).numpy()
    return tensor.long().numpy()
