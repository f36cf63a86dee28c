"""The map of a head at every scale: a cell of level L has the mean and the maximum of 2^L x 2^L weights.

One level, the base, is computed in one pass over tiles of the matrix. Coarser levels are pooled from it. Tiles of finer
levels are computed on request from single weights. The full matrix is never stored.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from regard.errors import ArgumentError
from regard.explorer.head_weights import HeadWeights
from regard.measure import pooled_map

TILE_SIZE = 256  # cells per side; the sizes below have the same unit
PREFERRED_BASE_SIZE, MAX_BASE_SIZE = 1024, 4096
MIN_LEVEL_SIZE = 8  # of the coarsest level
MAX_PREFERRED_BASE_LEVEL = 4  # with a coarser base, a tile of a finer level would pool too many pairs
MAX_PAIRS_AT_ONCE = 2**22  # weights in memory at a time


class MapCells(NamedTuple):
    """The mean and the maximum of each cell, (rows, columns)."""

    mean: Tensor
    max: Tensor


def choose_base_level(length: int) -> int:
    """Return the base level for a map of this side length.

    >>> choose_base_level(1000), choose_base_level(16_384), choose_base_level(100_000)
    (0, 4, 5)
    """
    return max(
        min(_level_with_at_most(length, PREFERRED_BASE_SIZE), MAX_PREFERRED_BASE_LEVEL),
        _level_with_at_most(length, MAX_BASE_SIZE),
    )


def _level_with_at_most(length: int, max_cells: int) -> int:
    """Return the finest level with at most `max_cells` cells per side."""
    return max(0, (-(-length // max_cells) - 1).bit_length())


@dataclass(eq=False)
class MapPyramid:
    """The map of a head. Levels are numbered from 0, the single weights, to `num_levels` - 1, which fits one tile."""

    head_weights: HeadWeights
    cells_by_level: dict[int, MapCells] = field(init=False)

    def __post_init__(self) -> None:
        length = max(self.head_weights.shape)
        self.base_level, self.num_levels = choose_base_level(length), _level_with_at_most(length, TILE_SIZE) + 1
        self.cells_by_level = {self.base_level: self._base_cells()}
        counts = [torch.ones(n, dtype=torch.float64) for n in self.head_weights.shape]
        for _ in range(self.base_level):
            counts = [_sum_pairs(c, 0) for c in counts]
        for level in range(self.base_level + 1, _level_with_at_most(length, MIN_LEVEL_SIZE) + 1):
            self.cells_by_level[level] = _coarsen(self.cells_by_level[level - 1], *counts)
            counts = [_sum_pairs(c, 0) for c in counts]

    @property
    def nbytes(self) -> int:
        return sum(cells.mean.nbytes + cells.max.nbytes for cells in self.cells_by_level.values())

    def tile(self, level: int, row: int, column: int) -> MapCells:
        """Return the cells [256 row, 256 row + 256) x [256 column, 256 column + 256) of a level, fewer at its edges."""
        rows, columns = (-(-n // 2**level) for n in self.head_weights.shape)
        if not 0 <= level < self.num_levels or not 0 <= row * TILE_SIZE < rows or not 0 <= column * TILE_SIZE < columns:
            raise ArgumentError(
                f"a tile must lie on the map, which has {self.num_levels} levels and {rows} x {columns} cells at level "
                f"{level}; got row {row} and column {column} of tiles of {TILE_SIZE} x {TILE_SIZE} cells."
            )
        i, j = (slice(n * TILE_SIZE, min((n + 1) * TILE_SIZE, end)) for n, end in ((row, rows), (column, columns)))
        if level >= self.base_level:
            return MapCells(*(x[i, j] for x in self.cells_by_level[level]))
        return self._fine_cells(level, i, j)

    def thumbnail(self, max_size: int) -> MapCells:
        """Return the whole map with at most `max_size` cells per side, where `max_size` is 8 or more."""
        return self.cells_by_level[max(self.base_level, _level_with_at_most(max(self.head_weights.shape), max_size))]

    def _base_cells(self) -> MapCells:
        if self.base_level == 0:
            weights = self.head_weights.weights(slice(None), slice(None))
            return MapCells(weights, weights)
        size = 2**self.base_level
        sizes = [_num_pool_cells(n, size) for n in self.head_weights.shape]
        pooled = self.head_weights.measure(pooled_map(*sizes)).pooled_map
        mean, largest = (x[0, self.head_weights.head_index] for x in (pooled.mean, pooled.max))
        for dim, cell in enumerate(pooled.cell_size):
            if cell == 1:
                mean, largest = _pool_dim(mean, dim, size)[0], _pool_dim(largest, dim, size)[1]
        return MapCells(mean.float(), largest.float())

    def _fine_cells(self, level: int, rows: slice, columns: slice) -> MapCells:
        """Return cells finer than the base, from single weights, some rows at a time."""
        size, (n_q, n_k) = 2**level, self.head_weights.shape
        keys = slice(columns.start * size, min(columns.stop * size, n_k))
        if self._is_empty(level, rows, columns):
            zeros = torch.zeros(rows.stop - rows.start, columns.stop - columns.start)
            return MapCells(zeros, zeros)
        step = max(1, MAX_PAIRS_AT_ONCE // max(1, (keys.stop - keys.start) * size)) * size
        last = min(rows.stop * size, n_q)
        parts = []
        for first in range(rows.start * size, last, step):
            parts.append(_pool_cells(self.head_weights.weights(slice(first, min(first + step, last)), keys), size))
        return MapCells(*(torch.cat(x) for x in zip(*parts, strict=True)))

    def _is_empty(self, level: int, rows: slice, columns: slice) -> bool:
        """Whether all weights in this region are 0, as above the diagonal of a causal head."""
        shift = self.base_level - level
        i, j = (slice(x.start >> shift, -(-x.stop >> shift)) for x in (rows, columns))
        return not bool(self.cells_by_level[self.base_level].max[i, j].any())


def _pool_cells(weights: Tensor, cell_size: int) -> MapCells:
    """Pool single weights in cells of `cell_size` x `cell_size`; cells at the edges may be smaller."""
    mean = torch.nn.functional.avg_pool2d(weights[None], cell_size, ceil_mode=True)[0]
    return MapCells(mean, torch.nn.functional.max_pool2d(weights[None], cell_size, ceil_mode=True)[0])


def _num_pool_cells(length: int, cell_size: int) -> int:
    """Return the number of cells that gives `pooled_map` cells of `cell_size`, or of 1 if no number does."""
    return -(-length // cell_size) if length <= cell_size or length > (cell_size - 1) ** 2 else length


def _pool_dim(x: Tensor, dim: int, cell_size: int) -> tuple[Tensor, Tensor]:
    """Return mean and maximum of cells of `cell_size` along one dimension; the last cell may be smaller."""
    parts = x.split(cell_size, dim)
    return torch.stack([p.mean(dim) for p in parts], dim), torch.stack([p.amax(dim) for p in parts], dim)


def sampled_thumbnail(head: HeadWeights, max_size: int, rows_per_cell: int) -> MapCells:
    """Estimate the map of a head with at most `max_size` cells per side from `rows_per_cell` rows of each cell."""
    n_q, n_k = head.shape
    cell_size = 2 ** _level_with_at_most(max(n_q, n_k), max_size)
    first_rows = torch.arange(0, n_q, cell_size)
    offsets = (torch.arange(rows_per_cell) * cell_size + cell_size // 2) // rows_per_cell
    rows = (first_rows[:, None] + offsets).clamp(max=n_q - 1)
    weights = head.weights(rows.flatten(), slice(None)).unflatten(0, rows.shape)
    cells = torch.nn.functional.pad(weights, (0, -n_k % cell_size)).unflatten(-1, (-1, cell_size))
    widths = torch.full((cells.shape[2],), float(cell_size))
    widths[-1] = n_k - (len(widths) - 1) * cell_size
    return MapCells(cells.sum((1, 3)) / (rows_per_cell * widths), cells.amax((1, 3)))


def _coarsen(cells: MapCells, row_counts: Tensor, column_counts: Tensor) -> MapCells:
    """Return cells of twice the side length; `row_counts` and `column_counts` are the sizes of the given cells."""
    total = cells.mean.double() * row_counts[:, None] * column_counts
    total = _sum_pairs(_sum_pairs(total, 0), 1)
    mean = total / (_sum_pairs(row_counts, 0)[:, None] * _sum_pairs(column_counts, 0))
    return MapCells(mean.float(), _max_pairs(_max_pairs(cells.max, 0), 1))


def _sum_pairs(x: Tensor, dim: int) -> Tensor:
    """Sum neighbors along a dimension; the last element stays alone if their number is odd."""
    return _reshape_to_pairs(x, dim).sum(dim + 1)


def _max_pairs(x: Tensor, dim: int) -> Tensor:
    return _reshape_to_pairs(x, dim).amax(dim + 1)


def _reshape_to_pairs(x: Tensor, dim: int) -> Tensor:
    if x.shape[dim] % 2:
        padding = torch.zeros([1 if d == dim else n for d, n in enumerate(x.shape)], dtype=x.dtype)
        x = torch.cat((x, padding), dim)
    paired: Tensor = x.unflatten(dim, (-1, 2))
    return paired
