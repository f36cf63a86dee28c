"""The map of a head at every scale: a cell of level L has the mean and the maximum of 2^L x 2^L weights.

One level, the base, is made in one pass over tiles of the matrix. Coarser ones are made of it; of finer ones the part
that is asked for is computed from single weights. No matrix is ever there.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from regard.errors import SpecError
from regard.explorer.head import Head
from regard.measure import pool

TILE = 256  # cells a side
SMALL, LARGE = 1024, 4096  # cells a side that a base has where it can, and at most
LEAST = 8  # cells a side of the coarsest level, for small maps
FINE = 4  # the coarsest base that a long text would rather have: finer tiles then take few pairs
PAIRS = 2**22  # that are there at a time


class Cells(NamedTuple):
    """Mean and maximum of each cell, (rows, columns)."""

    mean: Tensor
    max: Tensor


def base_level(longest: int) -> int:
    """The level that is made in one pass.

    >>> base_level(1000), base_level(16_384), base_level(100_000)
    (0, 4, 5)
    """
    return max(min(_level(longest, SMALL), FINE), _level(longest, LARGE))


def _level(longest: int, cells: int) -> int:
    """The finest level with at most so many cells a side."""
    return max(0, (-(-longest // cells) - 1).bit_length())


@dataclass(eq=False)
class Pyramid:
    """The map of a head. `levels` are numbered from 0, single weights; the last one fits one tile."""

    head: Head
    coarse: dict[int, Cells] = field(init=False)

    def __post_init__(self) -> None:
        self.base, self.levels = base_level(max(self.head.shape)), _level(max(self.head.shape), TILE) + 1
        self.coarse = {self.base: self._made()}
        counts = [torch.ones(n, dtype=torch.float64) for n in self.head.shape]
        for _ in range(self.base):
            counts = [_halved(c, 0) for c in counts]
        for level in range(self.base + 1, _level(max(self.head.shape), LEAST) + 1):
            self.coarse[level] = _coarser(self.coarse[level - 1], *counts)
            counts = [_halved(c, 0) for c in counts]

    @property
    def nbytes(self) -> int:
        return sum(cells.mean.nbytes + cells.max.nbytes for cells in self.coarse.values())

    def tile(self, level: int, row: int, column: int) -> Cells:
        """The cells [256 row, 256 row + 256) x [256 column, ...) of a level, fewer at its edges."""
        rows, columns = (-(-n // 2**level) for n in self.head.shape)
        if not 0 <= level < self.levels or not 0 <= row * TILE < rows or not 0 <= column * TILE < columns:
            raise SpecError(
                f"a tile must lie on the map of {self.levels} levels, level {level} of which has {rows} x {columns} "
                f"cells; got row {row} and column {column} of tiles of {TILE}."
            )
        i, j = (slice(n * TILE, min((n + 1) * TILE, most)) for n, most in ((row, rows), (column, columns)))
        if level >= self.base:
            return Cells(*(x[i, j] for x in self.coarse[level]))
        return self._fine(level, i, j)

    def small(self, size: int) -> Cells:
        """All of it in at most `size` cells a side, 8 or more."""
        return self.coarse[max(self.base, _level(max(self.head.shape), size))]

    def _made(self) -> Cells:
        if self.base == 0:
            weights = self.head.weights(slice(None), slice(None))
            return Cells(weights, weights)
        size = 2**self.base
        found = self.head.measure(pool(*(_parts(n, size) for n in self.head.shape))).pool
        mean, largest = (x[0, self.head.place] for x in (found.mean, found.max))
        for dim, cell in enumerate(found.cell):
            if cell == 1:
                mean, largest = _joined(mean, dim, size)[0], _joined(largest, dim, size)[1]
        return Cells(mean.float(), largest.float())

    def _fine(self, level: int, rows: slice, columns: slice) -> Cells:
        """Cells finer than the base, from single weights, some rows at a time."""
        size, (n_q, n_k) = 2**level, self.head.shape
        keys = slice(columns.start * size, min(columns.stop * size, n_k))
        if self._is_empty(level, rows, columns):
            nothing = torch.zeros(rows.stop - rows.start, columns.stop - columns.start)
            return Cells(nothing, nothing)
        step = max(1, PAIRS // max(1, (keys.stop - keys.start) * size)) * size
        last = min(rows.stop * size, n_q)
        parts = []
        for first in range(rows.start * size, last, step):
            parts.append(_pooled(self.head.weights(slice(first, min(first + step, last)), keys), size))
        return Cells(*(torch.cat(x) for x in zip(*parts, strict=True)))

    def _is_empty(self, level: int, rows: slice, columns: slice) -> bool:
        """Whether the base has nothing there, as in the half that is hidden from a causal head."""
        over = self.base - level
        i, j = (slice(x.start >> over, -(-x.stop >> over)) for x in (rows, columns))
        return not bool(self.coarse[self.base].max[i, j].any())


def _pooled(weights: Tensor, size: int) -> Cells:
    """Single weights in cells of size x size, those at the edges with what is left."""
    mean = torch.nn.functional.avg_pool2d(weights[None], size, ceil_mode=True)[0]
    return Cells(mean, torch.nn.functional.max_pool2d(weights[None], size, ceil_mode=True)[0])


def _parts(length: int, size: int) -> int:
    """How many cells to ask for so that each is of `size`, or where no number gives that, so that each is of 1."""
    return -(-length // size) if length <= size or length > (size - 1) ** 2 else length


def _joined(x: Tensor, dim: int, size: int) -> tuple[Tensor, Tensor]:
    """Mean and maximum of cells of `size` along one dimension, the last with what is left."""
    parts = x.split(size, dim)
    return torch.stack([p.mean(dim) for p in parts], dim), torch.stack([p.amax(dim) for p in parts], dim)


def glimpsed(head: Head, size: int, rows: int) -> Cells:
    """The map of a head in at most size x size cells, from `rows` rows of each: quick, and not exact."""
    n_q, n_k = head.shape
    cell = 2 ** _level(max(n_q, n_k), size)
    firsts = torch.arange(0, n_q, cell)
    inside = (torch.arange(rows) * cell + cell // 2) // rows
    taken = (firsts[:, None] + inside).clamp(max=n_q - 1)
    each = head.weights(taken.flatten(), slice(None)).unflatten(0, taken.shape)
    whole = torch.nn.functional.pad(each, (0, -n_k % cell)).unflatten(-1, (-1, cell))
    widths = torch.full((whole.shape[2],), float(cell))
    widths[-1] = n_k - (len(widths) - 1) * cell
    return Cells(whole.sum((1, 3)) / (rows * widths), whole.amax((1, 3)))


def _coarser(cells: Cells, rows: Tensor, columns: Tensor) -> Cells:
    """Cells twice as large a side; `rows` and `columns` say how many pairs the cells are high and wide."""
    total = cells.mean.double() * rows[:, None] * columns
    total = _halved(_halved(total, 0), 1)
    mean = total / (_halved(rows, 0)[:, None] * _halved(columns, 0))
    return Cells(mean.float(), _larger(_larger(cells.max, 0), 1))


def _halved(x: Tensor, dim: int) -> Tensor:
    """Sums of neighbours, the last alone where their number is odd."""
    return _paired(x, dim).sum(dim + 1)


def _larger(x: Tensor, dim: int) -> Tensor:
    return _paired(x, dim).amax(dim + 1)


def _paired(x: Tensor, dim: int) -> Tensor:
    if x.shape[dim] % 2:
        more = torch.zeros([1 if d == dim else n for d, n in enumerate(x.shape)], dtype=x.dtype)
        x = torch.cat((x, more), dim)
    paired: Tensor = x.unflatten(dim, (-1, 2))
    return paired
