"""Two recordings side by side: which heads look elsewhere, by how much, and where.

A row's weights are shares, so two rows differ by ½ sum |a - b|: 0 if they are the same, 1 if they look at nothing in
common. A head's number is the mean over its rows. Recordings of texts of different lengths are compared on maps of as
many cells, each cell with its share of all weight.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from regard import measure
from regard.errors import OutOfRangeError, SpecError
from regard.inside import arguments
from regard.inside.layer import Layer
from regard.inside.matrix import Matrix
from regard.inside.table import HeadTable, Row

CELLS = 64  # a side, of maps by which texts of different lengths are compared

MAX_CELLS = 4096


class Comparison:
    """One recording against another, layer by layer.

    `heads` is a table of all heads, the one that changed most first; `difference(layer)` the matrix a - b, any part of
    it; `map(layer)` a small one of all of it.
    """

    def __init__(self, ours: Sequence[Layer], theirs: Sequence[Layer]) -> None:
        others = {layer.number: layer for layer in theirs}
        self._pairs = {layer.number: (layer, others[layer.number]) for layer in ours if layer.number in others}
        if not self._pairs:
            raise SpecError("recordings must have layers in common to be compared; these two have none.")
        for one, other in self._pairs.values():
            if one.heads != other.heads or one.take.q.shape[0] != other.take.q.shape[0]:
                raise SpecError(
                    f"recordings must have the same heads and as many texts to be compared; layer {one.number} has "
                    f"heads {one.heads} and {other.heads}, texts {one.take.q.shape[0]} and {other.take.q.shape[0]}."
                )

    @cached_property
    def heads(self) -> HeadTable:
        """For each head `changed`, from 0 to 1; where lengths are equal also the `largest` difference of a weight and
        the `query` and `key` it is at, in the text `batch`."""
        rows = [row for pair in self._pairs.values() for row in _changes(*pair)]
        return HeadTable(rows).sort("changed")

    def difference(self, layer: int) -> "Difference":
        return Difference(*self._pair(layer))

    def map(self, layer: int, *, cells: int = CELLS) -> Tensor:
        """(batch, heads, cells, cells): how much more of all weight lies in a cell of the first recording."""
        one, other = self._pair(layer)
        cells = arguments.whole(cells, "cells", 1, MAX_CELLS)
        return _pooled(one, cells) - _pooled(other, cells)

    def _pair(self, layer: int) -> tuple[Layer, Layer]:
        number = arguments.whole(layer, "a layer")
        if number not in self._pairs:
            known = ", ".join(map(str, self._pairs))
            raise OutOfRangeError(f"a layer must be in both recordings: {known}; got {layer}.")
        return self._pairs[number]


class Difference(Matrix):
    """a - b of two layers with as many queries and keys."""

    def __init__(self, one: Layer, other: Layer) -> None:
        self._one, self._other = one.attended.weights, other.attended.weights
        self.shape = self._one.shape
        if self.shape != self._other.shape:
            raise SpecError(
                f"weights must have one shape to be subtracted; got {self.shape} and {self._other.shape}. Use map."
            )

    def part(self, b: Any, h: Any, i: Any, j: Any) -> Tensor:
        return self._one[b, h, i, j] - self._other[b, h, i, j]  # type: ignore[no-any-return]  # tensors


def _changes(one: Layer, other: Layer) -> list[Row]:
    names = [{"layer": one.number, "head": head, "path": one.path} for head in one.heads]
    if one.attended.weights.shape != other.attended.weights.shape:
        changed = _pooled(one, CELLS).sub(_pooled(other, CELLS)).abs().sum((-2, -1)).mean(0) / 2
        return [{**name, "changed": float(c)} for name, c in zip(names, changed, strict=True)]
    difference = Difference(one, other)
    _, heads, n_q, n_k = difference.shape
    total = torch.zeros(heads, dtype=torch.float64)
    best, at = torch.full((heads,), -1.0), torch.zeros(heads, 3, dtype=torch.int64)
    for rows in difference.row_blocks():
        part = difference[:, :, rows].abs()
        total += part.double().sum((0, 2, 3)) / 2
        flat = part.transpose(0, 1).flatten(1)
        value, place = flat.max(1)
        count = part.shape[2]
        where = torch.stack((place // (count * n_k), place // n_k % count + rows.start, place % n_k), 1)
        at = torch.where((value > best)[:, None], where, at)
        best = torch.maximum(best, value)
    changed = total / (difference.shape[0] * n_q)
    return [
        {**name, "changed": float(c), "largest": float(b), "batch": int(p[0]), "query": int(p[1]), "key": int(p[2])}
        for name, c, b, p in zip(names, changed, best, at, strict=True)
    ]


def _pooled(layer: Layer, cells: int) -> Tensor:
    """The share of all weight that lies in each of cells x cells parts of the matrix."""
    pooled = layer.attended.weights.measure(measure.pool(4 * cells, 4 * cells)).pool.mean.float()
    whole = torch.nn.functional.interpolate(pooled, size=(cells, cells), mode="area")
    return whole / whole.sum((-2, -1), keepdim=True).clamp(min=1e-30)
