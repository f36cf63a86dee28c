"""Reading a mask: which tiles of the position plane are empty, full or partial, without visiting every position.

Only regions about which the bounds leave a doubt are divided, so a structured mask costs about as much as its edge.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from regard.spec.bounds import Array, Bounds, Regions
from regard.spec.evaluate import Evaluation, Positions
from regard.spec.term import FALSE, TRUE, Term

Lengths = tuple[int, int, int, int]


@dataclass(frozen=True, eq=False)
class Cover:
    """The tiles of a mask that are not empty, sorted by batch element, head, row and column.

    `batch` and `heads` are 1 where the mask is the same for all of them; `b`, `h` then hold zeros. `grid` counts the
    tiles along queries and keys, `tile` their size. `full` marks tiles in which every pair is seen.
    """

    batch: int
    heads: int
    grid: tuple[int, int]
    tile: tuple[int, int]
    b: Array
    h: Array
    row: Array
    column: Array
    full: Array

    def __len__(self) -> int:
        return len(self.row)

    @property
    def counts(self) -> dict[str, int]:
        """How many tiles are empty, partial and full."""
        total = self.batch * self.heads * self.grid[0] * self.grid[1]
        full = int(self.full.sum())
        return {"empty": total - len(self), "partial": len(self) - full, "full": full}


def cover(term: Term, tensors: Sequence[Tensor], lengths: Lengths, start: int | Tensor, tile: tuple[int, int]) -> Cover:
    """The tiles of size (queries, keys) in which some pair may be seen. `lengths` is (batch, heads, n_q, n_k)."""
    batch, heads = _varying(term, lengths, start)
    grid = (-(-lengths[2] // tile[0]), -(-lengths[3] // tile[1]))
    if term is FALSE or 0 in (batch, heads, *grid):
        return _assemble(batch, heads, grid, tile, [])
    level = max(max(grid) - 1, 0).bit_length()
    b, h = (x.ravel() for x in np.meshgrid(np.arange(batch), np.arange(heads), indexing="ij"))
    cells = np.stack([b, h, np.zeros_like(b), np.zeros_like(b)])  # batch, head, row, column of each region
    found: list[tuple[Array, bool]] = []
    bounds = Bounds(tensors, lengths, start)
    while True:
        low, high = bounds.of(term, _regions(cells, level, tile, lengths))
        found.append((_tiles_of(cells[:, low == 1], level, grid), True))
        cells = cells[:, (low != 1) & (high != 0)]
        if level == 0:
            break
        level -= 1
        cells = _divide(cells, level, grid)
    found.append((cells, False))
    return _assemble(batch, heads, grid, tile, found)


def _varying(term: Term, lengths: Lengths, start: int | Tensor) -> tuple[int, int]:
    by_batch = "b" in term.depends or ("p" in term.depends and not isinstance(start, int))
    return lengths[0] if by_batch else 1, lengths[1] if "h" in term.depends else 1


def _regions(cells: Array, level: int, tile: tuple[int, int], lengths: Lengths) -> Regions:
    b, h, row, column = cells
    rows, columns = tile[0] << level, tile[1] << level
    return Regions(
        b=b,
        h=h,
        i_first=row * rows,
        i_last=np.minimum((row + 1) * rows, lengths[2]) - 1,
        j_first=column * columns,
        j_last=np.minimum((column + 1) * columns, lengths[3]) - 1,
    )


def _divide(cells: Array, level: int, grid: tuple[int, int]) -> Array:
    quarters = [cells * [[1], [1], [2], [2]] + [[0], [0], [down], [right]] for down in (0, 1) for right in (0, 1)]
    split = np.concatenate(quarters, axis=1)
    inside = (split[2] << level < grid[0]) & (split[3] << level < grid[1])
    return split[:, inside]


def _tiles_of(cells: Array, level: int, grid: tuple[int, int]) -> Array:
    """The single tiles inside larger regions."""
    side = 1 << level
    down, right = (x.ravel() for x in np.meshgrid(np.arange(side), np.arange(side), indexing="ij"))
    b, h, row, column = (np.repeat(x, side * side) for x in cells * [[1], [1], [side], [side]])
    row, column = row + np.tile(down, cells.shape[1]), column + np.tile(right, cells.shape[1])
    inside = (row < grid[0]) & (column < grid[1])
    return np.stack([b, h, row, column])[:, inside]


def _assemble(
    batch: int, heads: int, grid: tuple[int, int], tile: tuple[int, int], found: list[tuple[Array, bool]]
) -> Cover:
    cells = np.concatenate([c for c, _ in found], axis=1) if found else np.zeros((4, 0), np.int64)
    full = np.concatenate([np.full(c.shape[1], sure) for c, sure in found]) if found else np.zeros(0, bool)
    order = np.lexsort(cells[::-1])
    b, h, row, column = cells[:, order]
    return Cover(batch, heads, grid, tile, b, h, row, column, full[order])


def density(term: Term, tensors: Sequence[Tensor], lengths: Lengths, start: int | Tensor, tile: int = 128) -> float:
    """The share of pairs that is seen, exactly: full tiles are counted by their area, partial ones looked at."""
    tiles = cover(term, tensors, lengths, start, (tile, tile))
    _, _, n_q, n_k = lengths
    if term is TRUE or not len(tiles):
        return float(term is TRUE)
    seen = 0
    for b, h, row, column, full in zip(tiles.b, tiles.h, tiles.row, tiles.column, tiles.full, strict=True):
        queries = range(row * tile, min((row + 1) * tile, n_q))
        keys = range(column * tile, min((column + 1) * tile, n_k))
        if full:
            seen += len(queries) * len(keys)
            continue
        one = range(int(b), int(b) + 1), range(int(h), int(h) + 1)
        positions = Positions(*one, queries, keys, start=start, n_q=n_q, n_k=n_k, device=torch.device("cpu"))
        condition = Evaluation(tensors, positions).condition(term)
        seen += int(condition.expand(positions.shape).sum())
    return seen / (tiles.batch * tiles.heads * n_q * n_k)
