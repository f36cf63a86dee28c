"""Tile coverage of a mask: which tiles of the query-key plane are empty, full or partial.

The search divides only regions that the bounds leave undecided, so its cost grows with the edge of the mask.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard.expr.bounds import Array, BoundsEvaluator, IndexBoxes, depends_on_batch
from regard.expr.evaluate import Evaluator, IndexGrid
from regard.expr.ir import FALSE, TRUE, Expr

ScoreShape = tuple[int, int, int, int]

BOXES_PER_CHUNK = 2**15


@dataclass(frozen=True, eq=False)
class TileCoverage:
    """The nonempty tiles of a mask as runs along a row, sorted by batch element, head, row and column.

    Run r covers the tiles from `col_start[r]` up to but not including `col_stop[r]` in row `row[r]`. `is_full[r]` is
    true if the mask allows every pair of the run. `batch_size` and `num_heads` are 1 if the mask does not depend on the
    batch element or the head; `b` and `h` are then 0. `grid_shape` is the number of tiles along queries and keys.
    """

    batch_size: int
    num_heads: int
    grid_shape: tuple[int, int]
    tile_shape: tuple[int, int]
    b: Array
    h: Array
    row: Array
    col_start: Array
    col_stop: Array
    is_full: Array

    @property
    def tile_counts(self) -> dict[str, int]:
        """Return the numbers of empty, partial and full tiles."""
        total = self.batch_size * self.num_heads * self.grid_shape[0] * self.grid_shape[1]
        sizes = self.col_stop - self.col_start
        full, partial = int(sizes[self.is_full].sum()), int(sizes[~self.is_full].sum())
        return {"empty": total - full - partial, "partial": partial, "full": full}

    def to_tile_list(self) -> "TileList":
        """Return every nonempty tile."""
        sizes = self.col_stop - self.col_start
        b, h, row, start, full = (np.repeat(x, sizes) for x in (self.b, self.h, self.row, self.col_start, self.is_full))
        run_offset = np.repeat(np.cumsum(sizes) - sizes, sizes)
        return TileList(b, h, row, start + np.arange(len(row)) - run_offset, full)


class TileList(NamedTuple):
    """Tiles: batch element, head, row, column, and whether the mask allows every pair of the tile."""

    b: Array
    h: Array
    row: Array
    column: Array
    is_full: Array


def tile_coverage(
    expr: Expr,
    tensors: Sequence[Tensor],
    score_shape: ScoreShape,
    query_offset: int | Tensor,
    tile_shape: tuple[int, int],
) -> TileCoverage:
    """Return the tiles in which the mask may allow a pair.

    `score_shape` is (batch, heads, n_q, n_k); `tile_shape` is the size of a tile in queries and keys.
    """
    batch, heads = _count_distinct_batches_and_heads(expr, score_shape, query_offset)
    grid = (-(-score_shape[2] // tile_shape[0]), -(-score_shape[3] // tile_shape[1]))
    if expr is FALSE or 0 in (batch, heads, *grid):
        return _assemble(batch, heads, grid, tile_shape, [])
    level = max(max(grid) - 1, 0).bit_length()
    b, h = (x.ravel() for x in np.meshgrid(np.arange(batch), np.arange(heads), indexing="ij"))
    # batch element, head, row and column of each region
    cells = np.stack([b, h, np.zeros_like(b), np.zeros_like(b)]).astype(np.int32)
    runs: list[tuple[Array, bool]] = []
    bounds = BoundsEvaluator(tensors, score_shape, query_offset)
    while True:
        full, some = _classify_cells(bounds, expr, cells, level, tile_shape, score_shape)
        runs.append((_cells_to_runs(cells[:, full], level, grid), True))
        cells = cells[:, some & ~full]
        if level == 0:
            break
        level -= 1
        cells = _subdivide(cells, level, grid)
    runs.append((_cells_to_runs(cells, 0, grid), False))
    return _assemble(batch, heads, grid, tile_shape, runs)


def _classify_cells(
    bounds: BoundsEvaluator, expr: Expr, cells: Array, level: int, tile_shape: tuple[int, int], score_shape: ScoreShape
) -> tuple[Array, Array]:
    """Return for each region whether the mask allows every pair, and whether it may allow some."""
    full, some = np.empty((2, cells.shape[1]), bool)
    for start in range(0, cells.shape[1], BOXES_PER_CHUNK):
        chunk = slice(start, start + BOXES_PER_CHUNK)
        low, high = bounds.bounds(
            expr, _cells_to_boxes(cells[:, chunk].astype(np.int64), level, tile_shape, score_shape)
        )
        full[chunk], some[chunk] = low == 1, high != 0
    return full, some


def _count_distinct_batches_and_heads(
    expr: Expr, score_shape: ScoreShape, query_offset: int | Tensor
) -> tuple[int, int]:
    batch = score_shape[0] if depends_on_batch(expr.free_variables, query_offset) else 1
    return batch, score_shape[1] if "h" in expr.free_variables else 1


def _cells_to_boxes(cells: Array, level: int, tile_shape: tuple[int, int], score_shape: ScoreShape) -> IndexBoxes:
    b, h, row, column = cells
    rows, columns = tile_shape[0] << level, tile_shape[1] << level
    return IndexBoxes(
        b=b,
        h=h,
        i_first=row * rows,
        i_last=np.minimum((row + 1) * rows, score_shape[2]) - 1,
        j_first=column * columns,
        j_last=np.minimum((column + 1) * columns, score_shape[3]) - 1,
    )


def _subdivide(cells: Array, level: int, grid_shape: tuple[int, int]) -> Array:
    split = np.tile(cells, 4)
    split[2:] *= 2
    split[2].reshape(4, -1)[2:] += 1
    split[3].reshape(4, -1)[1::2] += 1
    inside = (split[2] << level < grid_shape[0]) & (split[3] << level < grid_shape[1])
    return split[:, inside]


def _cells_to_runs(cells: Array, level: int, grid_shape: tuple[int, int]) -> Array:
    """Return regions as runs of tiles, one per row: batch element, head, row, first column, column after the last."""
    side = 1 << level
    b, h, row, column = np.repeat(cells, side, axis=1) if level else cells
    row, column = row * side + np.tile(np.arange(side, dtype=np.int32), cells.shape[1]), column * side
    runs = np.stack([b, h, row, column, np.minimum(column + side, grid_shape[1])])
    return runs[:, row < grid_shape[0]]


def _assemble(
    batch_size: int,
    num_heads: int,
    grid_shape: tuple[int, int],
    tile_shape: tuple[int, int],
    tile_runs: list[tuple[Array, bool]],
) -> TileCoverage:
    runs = np.concatenate([r for r, _ in tile_runs], axis=1) if tile_runs else np.zeros((5, 0), np.int64)
    full = (
        np.concatenate([np.full(r.shape[1], is_full) for r, is_full in tile_runs]) if tile_runs else np.zeros(0, bool)
    )
    order = np.lexsort(runs[3::-1])
    (b, h, row, start, stop), full = runs[:, order], full[order]
    continues = (start[1:] == stop[:-1]) & (full[1:] == full[:-1])
    for coordinate in (b, h, row):
        continues &= coordinate[1:] == coordinate[:-1]
    begins = np.concatenate([np.ones(min(1, len(b)), bool), ~continues])
    ends = np.concatenate([~continues, np.ones(min(1, len(b)), bool)])
    b, h, row, start = (x[begins].astype(np.int64) for x in (b, h, row, start))
    stop = stop[ends].astype(np.int64)
    return TileCoverage(batch_size, num_heads, grid_shape, tile_shape, b, h, row, start, stop, full[begins])


def density(
    expr: Expr, tensors: Sequence[Tensor], score_shape: ScoreShape, query_offset: int | Tensor, tile_size: int = 128
) -> float:
    """Return the exact fraction of pairs that the mask allows; only partial tiles are evaluated."""
    _, _, n_q, n_k = score_shape
    if expr is TRUE or 0 in score_shape:
        return float(expr is TRUE)
    coverage = tile_coverage(expr, tensors, score_shape, query_offset, (tile_size, tile_size))
    visible = 0
    for b, h, row, column, full in zip(*coverage.to_tile_list(), strict=True):
        queries = range(row * tile_size, min((row + 1) * tile_size, n_q))
        keys = range(column * tile_size, min((column + 1) * tile_size, n_k))
        if full:
            visible += len(queries) * len(keys)
            continue
        grid = IndexGrid(
            range(int(b), int(b) + 1),
            range(int(h), int(h) + 1),
            queries,
            keys,
            query_offset=query_offset,
            n_q=n_q,
            n_k=n_k,
            device=torch.device("cpu"),
        )
        mask = Evaluator(tensors, grid).mask_value(expr)
        visible += int(mask.expand(grid.shape).sum())
    return visible / (coverage.batch_size * coverage.num_heads * n_q * n_k)
