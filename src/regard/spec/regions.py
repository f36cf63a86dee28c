"""Reading a mask: which tiles of the position plane are empty, full or partial, without visiting every position.

Only regions about which the bounds leave a doubt are divided, so a structured mask costs about as much as its edge.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard.spec.bounds import Array, Bounds, Regions
from regard.spec.evaluate import Evaluation, Positions
from regard.spec.term import FALSE, TRUE, Term

Lengths = tuple[int, int, int, int]

AT_ONCE = 2**15  # regions


@dataclass(frozen=True, eq=False)
class Cover:
    """The tiles of a mask that are not empty, as runs along a row, sorted by batch element, head, row and column.

    Run number r has the tiles from `first[r]` up to but not including `last[r]` in row `row[r]`; `full[r]` marks runs
    in which every pair is seen. `batch` and `heads` are 1 where the mask is the same for all; `b`, `h` then hold
    zeros. `grid` counts the tiles along queries and keys, `tile` is their size.
    """

    batch: int
    heads: int
    grid: tuple[int, int]
    tile: tuple[int, int]
    b: Array
    h: Array
    row: Array
    first: Array
    last: Array
    full: Array

    @property
    def counts(self) -> dict[str, int]:
        """How many tiles are empty, partial and full."""
        total = self.batch * self.heads * self.grid[0] * self.grid[1]
        sizes = self.last - self.first
        full, partial = int(sizes[self.full].sum()), int(sizes[~self.full].sum())
        return {"empty": total - full - partial, "partial": partial, "full": full}

    def tiles(self) -> "Tiles":
        """Every single tile that is not empty."""
        sizes = self.last - self.first
        b, h, row, first, full = (np.repeat(x, sizes) for x in (self.b, self.h, self.row, self.first, self.full))
        begin = np.repeat(np.cumsum(sizes) - sizes, sizes)
        return Tiles(b, h, row, first + np.arange(len(row)) - begin, full)


class Tiles(NamedTuple):
    """Single tiles: batch element, head, row, column, and whether every pair in it is seen."""

    b: Array
    h: Array
    row: Array
    column: Array
    full: Array


def cover(term: Term, tensors: Sequence[Tensor], lengths: Lengths, start: int | Tensor, tile: tuple[int, int]) -> Cover:
    """The tiles of size (queries, keys) in which some pair may be seen. `lengths` is (batch, heads, n_q, n_k)."""
    batch, heads = _varying(term, lengths, start)
    grid = (-(-lengths[2] // tile[0]), -(-lengths[3] // tile[1]))
    if term is FALSE or 0 in (batch, heads, *grid):
        return _assemble(batch, heads, grid, tile, [])
    level = max(max(grid) - 1, 0).bit_length()
    b, h = (x.ravel() for x in np.meshgrid(np.arange(batch), np.arange(heads), indexing="ij"))
    # batch, head, row, column of each region
    cells = np.stack([b, h, np.zeros_like(b), np.zeros_like(b)]).astype(np.int32)
    found: list[tuple[Array, bool]] = []
    bounds = Bounds(tensors, lengths, start)
    while True:
        full, some = _sight(bounds, term, cells, level, tile, lengths)
        found.append((_runs_of(cells[:, full], level, grid), True))
        cells = cells[:, some & ~full]
        if level == 0:
            break
        level -= 1
        cells = _divide(cells, level, grid)
    found.append((_runs_of(cells, 0, grid), False))
    return _assemble(batch, heads, grid, tile, found)


def _sight(
    bounds: Bounds, term: Term, cells: Array, level: int, tile: tuple[int, int], lengths: Lengths
) -> tuple[Array, Array]:
    """Of each region whether every pair in it is seen, and whether some may be; a part at a time, to save memory."""
    full, some = np.empty((2, cells.shape[1]), bool)
    for first in range(0, cells.shape[1], AT_ONCE):
        here = slice(first, first + AT_ONCE)
        low, high = bounds.of(term, _regions(cells[:, here].astype(np.int64), level, tile, lengths))
        full[here], some[here] = low == 1, high != 0
    return full, some


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
    split = np.tile(cells, 4)
    split[2:] *= 2
    split[2].reshape(4, -1)[2:] += 1
    split[3].reshape(4, -1)[1::2] += 1
    inside = (split[2] << level < grid[0]) & (split[3] << level < grid[1])
    return split[:, inside]


def _runs_of(cells: Array, level: int, grid: tuple[int, int]) -> Array:
    """Regions as runs of tiles, one for each row: batch element, head, row, first column, column after the last."""
    side = 1 << level
    b, h, row, column = np.repeat(cells, side, axis=1) if level else cells
    row, column = row * side + np.tile(np.arange(side, dtype=np.int32), cells.shape[1]), column * side
    runs = np.stack([b, h, row, column, np.minimum(column + side, grid[1])])
    return runs[:, row < grid[0]]


def _assemble(
    batch: int, heads: int, grid: tuple[int, int], tile: tuple[int, int], found: list[tuple[Array, bool]]
) -> Cover:
    runs = np.concatenate([r for r, _ in found], axis=1) if found else np.zeros((5, 0), np.int64)
    full = np.concatenate([np.full(r.shape[1], sure) for r, sure in found]) if found else np.zeros(0, bool)
    order = np.lexsort(runs[3::-1])
    (b, h, row, first, last), full = runs[:, order], full[order]
    goes_on = (first[1:] == last[:-1]) & (full[1:] == full[:-1])
    for same in (b, h, row):
        goes_on &= same[1:] == same[:-1]
    begins = np.concatenate([np.ones(min(1, len(b)), bool), ~goes_on])
    ends = np.concatenate([~goes_on, np.ones(min(1, len(b)), bool)])
    b, h, row, first, last = (
        x[which].astype(np.int64) for x, which in zip((b, h, row, first, last), [begins] * 4 + [ends], strict=True)
    )
    return Cover(batch, heads, grid, tile, b, h, row, first, last, full[begins])


def density(term: Term, tensors: Sequence[Tensor], lengths: Lengths, start: int | Tensor, tile: int = 128) -> float:
    """The share of pairs that is seen, exactly: full tiles are counted by their area, partial ones looked at."""
    _, _, n_q, n_k = lengths
    if term is TRUE or 0 in lengths:
        return float(term is TRUE)
    found = cover(term, tensors, lengths, start, (tile, tile))
    seen = 0
    for b, h, row, column, full in zip(*found.tiles(), strict=True):
        queries = range(row * tile, min((row + 1) * tile, n_q))
        keys = range(column * tile, min((column + 1) * tile, n_k))
        if full:
            seen += len(queries) * len(keys)
            continue
        one = range(int(b), int(b) + 1), range(int(h), int(h) + 1)
        positions = Positions(*one, queries, keys, start=start, n_q=n_q, n_k=n_k, device=torch.device("cpu"))
        condition = Evaluation(tensors, positions).condition(term)
        seen += int(condition.expand(positions.shape).sum())
    return seen / (found.batch * found.heads * n_q * n_k)
