"""Lower and upper bounds of an expression over boxes of positions.

Bounds are sound: every value lies between them. They come from interval arithmetic, with two exceptions that are exact:
subexpressions of the query alone or of the key alone are evaluated once at all positions and reduced to block minima
and maxima, and so are captured tensors. Floats are bounded by the same operations in the same precision that compute
them: rounding is monotone, so a rounded value stays within its bounds.
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

from regard.expr.affine import is_pairwise
from regard.expr.evaluate import Evaluator, IndexGrid
from regard.expr.interval import MAX_TRACKED_INT, Interval, int_interval, op_interval, point_interval
from regard.expr.ir import Expr, postorder, slot_of

Array = NDArray[Any]

# a query-only or key-only subexpression with more values over batch, heads and positions is bounded by intervals
MAX_HOISTED_NUMEL = 2**25


@dataclass(frozen=True, eq=False)
class IndexBoxes:
    """Boxes of positions, one entry of each array per box. First and last indices are inclusive."""

    b: Array
    h: Array
    i_first: Array
    i_last: Array
    j_first: Array
    j_last: Array

    def __len__(self) -> int:
        return len(self.i_first)

    @classmethod
    def all_pairs(cls, score_shape: tuple[int, int, int, int]) -> "IndexBoxes":
        """Return one box for each batch element and head, with all of its pairs."""
        batch, heads, n_q, n_k = score_shape
        b, h = (x.ravel() for x in np.meshgrid(np.arange(batch), np.arange(heads), indexing="ij"))
        zero = np.zeros_like(b)
        return cls(b, h, zero, zero + n_q - 1, zero, zero + n_k - 1)


class MinMaxPyramid:
    """Minima and maxima of a table over boxes of indices, from copies of the table that are halved repeatedly.

    A range is covered by at most three cells of one level. The cells may extend beyond the range, so the bounds are
    sound but not always tight; they are exact for single indices and for ranges aligned to powers of two.
    """

    def __init__(self, table: Array, unknown: Array | None = None) -> None:
        low = high = table
        if table.dtype.kind == "f" and np.isnan(table).any():  # NaN counts as unknown
            unknown = np.isnan(table) if unknown is None else unknown | np.isnan(table)
        if unknown is not None:
            min_value, max_value = {
                "f": (-np.inf, np.inf),
                "i": (0, 1) if table.dtype == np.int8 else (-MAX_TRACKED_INT, MAX_TRACKED_INT),
            }[table.dtype.kind]
            low, high = np.where(unknown, min_value, table), np.where(unknown, max_value, table)
            low, high = low.astype(table.dtype), high.astype(table.dtype)
        self._levels = {(0,) * table.ndim: (low, high)}

    def range_bounds(self, first: Sequence[Array], last: Sequence[Array]) -> Interval:
        """Return the bounds over the boxes [first, last], given one array of indices per dimension."""
        levels = np.stack([np.frexp((b - a + 1).astype(np.float64))[1] - 1 for a, b in zip(first, last, strict=True)])
        low = np.empty(levels.shape[1], self._levels[(0,) * len(first)][0].dtype)
        high = np.empty_like(low)
        codes = reduce(lambda code, level: code * 64 + level, levels, np.zeros(levels.shape[1], np.int64))
        remaining = np.arange(len(codes))
        while len(remaining):  # boxes of one level at a time; there are few levels, and sorting would take longer
            same = codes[remaining] == codes[remaining[0]]
            group, remaining = remaining[same], remaining[~same]
            level = levels[:, group[0]]
            boxes = [(a[group] >> n, b[group] >> n) for a, b, n in zip(first, last, level, strict=True)]
            low[group], high[group] = self._bounds_at_level(tuple(int(n) for n in level), boxes)
        return low, high

    def _bounds_at_level(self, level: tuple[int, ...], boxes: list[tuple[Array, Array]]) -> Interval:
        lows, highs = self._level(level)
        indices = [[a] if np.array_equal(a, b) else [a, np.minimum(a + 1, b), b] for a, b in boxes]
        cells = list(product(*indices))
        return reduce(np.minimum, (lows[c] for c in cells)), reduce(np.maximum, (highs[c] for c in cells))

    def _level(self, level: tuple[int, ...]) -> Interval:
        if level not in self._levels:
            axis = int(np.argmax(level))
            low, high = self._level(tuple(n - (a == axis) for a, n in enumerate(level)))
            self._levels[level] = (_reduce_adjacent(low, axis, np.minimum), _reduce_adjacent(high, axis, np.maximum))
        return self._levels[level]


def _reduce_adjacent(table: Array, axis: int, reduce_op: np.ufunc) -> Array:
    """Reduce each pair of neighbors along an axis; a last entry without a neighbor is kept."""
    even, odd = (table[(slice(None),) * axis + (slice(n, None, 2),)] for n in (0, 1))
    result = even.copy()
    paired = result[(slice(None),) * axis + (slice(odd.shape[axis]),)]
    reduce_op(paired, odd, out=paired)
    return result


class BoundsEvaluator:
    """Computes bounds of expressions over boxes; query-only and key-only subexpressions are evaluated once and cached.

    `score_shape` is (batch, heads, n_q, n_k).
    """

    def __init__(
        self, tensors: Sequence[Tensor], score_shape: tuple[int, int, int, int], query_offset: int | Tensor
    ) -> None:
        self.tensors = [t.detach().cpu() for t in tensors]
        self.score_shape = score_shape
        self.query_offset = query_offset if isinstance(query_offset, int) else query_offset.cpu()
        self._hoisted_pyramids: dict[Expr, MinMaxPyramid] = {}
        self._tensor_pyramids: dict[int, MinMaxPyramid] = {}
        self._evaluation_orders: dict[Expr, list[tuple[Expr, bool]]] = {}

    def bounds(self, expr: Expr, boxes: IndexBoxes) -> Interval:
        """Return the lower and upper bounds over each box, one entry per box. Booleans count as 0 and 1."""
        low, high = self._bounds(expr, boxes)
        return np.broadcast_to(low, len(boxes)), np.broadcast_to(high, len(boxes))

    def _bounds(self, expr: Expr, boxes: IndexBoxes) -> Interval:
        bounds: dict[Expr, Interval] = {}
        for node, is_hoisted in self._evaluation_order(expr):
            if node.op == "constant":
                bounds[node] = point_interval(np.asarray(node.value))
            elif node.op == "variable":
                bounds[node] = self._variable_bounds(str(node.value), boxes)
            elif is_hoisted:
                bounds[node] = self._hoisted_bounds(node, boxes)
            else:
                args = [bounds[a] for a in node.args]
                bounds[node] = self._lookup_bounds(node, args) if node.op == "lookup" else op_interval(node, args)
            if node.kind == "int":
                bounds[node] = int_interval(*bounds[node])
        return bounds[expr]

    def _evaluation_order(self, expr: Expr) -> list[tuple[Expr, bool]]:
        """Return the nodes in evaluation order, and whether each depends on the query alone or on the key alone."""
        if expr not in self._evaluation_orders:
            order = postorder((expr,), lambda n: () if self._is_query_or_key_only(n) else n.args)
            self._evaluation_orders[expr] = [(node, self._is_query_or_key_only(node)) for node in order]
        return self._evaluation_orders[expr]

    def _variable_bounds(self, name: str, boxes: IndexBoxes) -> Interval:
        if name == "s":
            return np.asarray(-np.inf), np.asarray(np.inf)
        if name in ("n_q", "n_k"):
            return point_interval(np.asarray(self.score_shape[2 if name == "n_q" else 3]))
        if name in ("b", "h"):
            return point_interval(boxes.b if name == "b" else boxes.h)
        if name == "j":
            return boxes.j_first, boxes.j_last
        if name == "i":
            return boxes.i_first, boxes.i_last
        offset = self.query_offset if isinstance(self.query_offset, int) else self.query_offset.numpy()[boxes.b]
        return boxes.i_first + offset, boxes.i_last + offset

    def _is_query_or_key_only(self, node: Expr) -> bool:
        if not node.args or is_pairwise(node):
            return False
        if node.op in ("add", "sub") and all(a.op in ("constant", "variable") for a in node.args):
            return False  # intervals are exact here and cheaper
        return int(np.prod([len(r) for r in self._index_ranges(node)])) <= MAX_HOISTED_NUMEL

    def _index_ranges(self, node: Expr) -> tuple[range, range, range, range]:
        """Return the index ranges at which a hoisted node is evaluated; other dimensions have length 1."""
        batch, heads, n_q, n_k = self.score_shape
        return (
            range(batch if depends_on_batch(node.free_variables, self.query_offset) else 1),
            range(heads if "h" in node.free_variables else 1),
            range(n_q if node.free_variables & {"i", "p"} else 1),
            range(n_k if "j" in node.free_variables else 1),
        )

    def _hoisted_bounds(self, node: Expr, boxes: IndexBoxes) -> Interval:
        ranges = self._index_ranges(node)
        if node not in self._hoisted_pyramids:
            grid = IndexGrid(
                *ranges,
                query_offset=self.query_offset,
                n_q=self.score_shape[2],
                n_k=self.score_shape[3],
                device=torch.device("cpu"),
            )
            evaluator = Evaluator(self.tensors, grid)
            value = evaluator.mask_value(node).expand(grid.shape)
            outside = evaluator.out_of_range  # an error only if the pair is visible, which the tile decides
            unknown = None if outside is None else outside.expand(grid.shape).numpy()
            self._hoisted_pyramids[node] = MinMaxPyramid(as_bounds_array(value), unknown)
        zero = np.zeros(len(boxes), np.int64)
        first = (boxes.b, boxes.h, boxes.i_first, boxes.j_first)
        last = (boxes.b, boxes.h, boxes.i_last, boxes.j_last)
        return self._hoisted_pyramids[node].range_bounds(
            [index if len(r) > 1 else zero for index, r in zip(first, ranges, strict=True)],
            [index if len(r) > 1 else zero for index, r in zip(last, ranges, strict=True)],
        )

    def _lookup_bounds(self, node: Expr, args: list[Interval]) -> Interval:
        slot = slot_of(node)
        if not node.args:  # a scalar tensor; NaN counts as unknown
            value = np.atleast_1d(as_bounds_array(self.tensors[slot]))
            return (np.asarray(-np.inf), np.asarray(np.inf)) if np.isnan(value).any() else point_interval(value)
        if slot not in self._tensor_pyramids:
            self._tensor_pyramids[slot] = MinMaxPyramid(as_bounds_array(self.tensors[slot]))
        first, last = [], []
        outside: Array = np.asarray(False)
        for (low, high), size in zip(args, self.tensors[slot].shape, strict=True):
            outside = outside | (low < -size) | (high >= size)
            # a negative index counts from the end; an index out of range is clamped
            low, high = np.clip(low, -size, size - 1), np.clip(high, -size, size - 1)
            wraps = (low < 0) & (high >= 0)
            first.append(np.atleast_1d(np.where(wraps, 0, low % size)))
            last.append(np.atleast_1d(np.where(wraps, size - 1, high % size)))
        corners = np.broadcast_arrays(*first, *last)
        low, high = self._tensor_pyramids[slot].range_bounds(corners[: len(first)], corners[len(first) :])
        if not np.any(outside):
            return low, high
        # an error only if the pair is visible, which the tile decides
        ranges = {"bool": (0, 1), "int": (-MAX_TRACKED_INT, MAX_TRACKED_INT), "float": (-np.inf, np.inf)}
        min_value, max_value = ranges[node.kind]
        return np.where(outside, min_value, low).astype(low.dtype), np.where(outside, max_value, high).astype(
            high.dtype
        )


def depends_on_batch(variables: frozenset[str], query_offset: int | Tensor) -> bool:
    """Return whether an expression of these variables differs by batch element."""
    return "b" in variables or ("p" in variables and not isinstance(query_offset, int))


def as_bounds_array(tensor: Tensor) -> Array:
    """Return a tensor as an array for bounds: booleans as int8, half precision as float32, integers as int64."""
    if tensor.dtype == torch.bool:
        return tensor.to(torch.int8).numpy()
    if tensor.is_floating_point():
        return (tensor if tensor.dtype == torch.float64 else tensor.float()).numpy()
    return tensor.long().numpy()
