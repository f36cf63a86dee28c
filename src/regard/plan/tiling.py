"""The tiles that a backend visits: the coverage of the mask, in strips of queries that share their keys."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from regard.cache import BoundedCache
from regard.call.spec import CallSpec
from regard.expr.closed_expr import QueryOffset
from regard.expr.hidden_pairs import effective_mask
from regard.expr.ir import Expr
from regard.expr.tile_coverage import ScoreShape, TileCoverage, tile_coverage


@dataclass(frozen=True)
class Tiling:
    """The number of queries and keys of a tile, and the number of elements that a tile of several heads may have.

    Adjacent full tiles are merged up to `max_row_keys` keys, since each tile has a fixed overhead. `tiles_per_strip`
    tiles of queries read the same keys one after another, while the keys are in the cache.
    """

    tile_queries: int
    tile_keys: int
    max_tile_numel: int
    max_row_keys: int = 0
    tiles_per_strip: int = 1


@dataclass(frozen=True, eq=False)
class QueryStrip:
    """A range of queries of some batch elements and heads, with the ranges of keys that they attend to.

    Each range of keys has a flag: whether the mask allows all of its pairs. `h` counts query heads: whole
    groups that share key-value heads, or a single head if the mask differs by head.
    """

    b: range
    h: range
    i: range
    keys: tuple[tuple[range, bool], ...]


def call_coverage(spec: CallSpec, tensors: Sequence[Tensor], query_offset: QueryOffset, tiling: Tiling) -> TileCoverage:
    """The tiles in which the mask and the score modifier allow some pair."""
    return condition_coverage(
        effective_mask(spec.mask, spec.score_mod, tensors), tensors, spec.score_shape, query_offset, tiling
    )


def condition_coverage(
    expr: Expr, tensors: Sequence[Tensor], score_shape: ScoreShape, query_offset: QueryOffset, tiling: Tiling
) -> TileCoverage:
    """The tiles in which a condition may hold; cached."""
    size = (tiling.tile_queries, tiling.tile_keys)
    contents = [tensors[n] for n in sorted(expr.captured_slots)]
    key: tuple[object, ...] = (expr, score_shape, size)
    if isinstance(query_offset, int):
        key = (*key, query_offset)
    else:
        contents.append(query_offset)
    return _cache.get_or_create(key, lambda: tile_coverage(expr, tensors, score_shape, query_offset, size), contents)


def static_call_coverage(spec: CallSpec, tiling: Tiling) -> TileCoverage | None:
    """The coverage from the spec alone; None if the mask or the score modifier captures tensors."""
    if (
        spec.query_offset is None
        or spec.mask.captured_slots
        or (spec.score_mod is not None and spec.score_mod.captured_slots)
    ):
        return None
    return call_coverage(spec, (), spec.query_offset, tiling)


_cache: BoundedCache[TileCoverage] = BoundedCache("mask coverage")


def query_strips(spec: CallSpec, coverage: TileCoverage, tiling: Tiling) -> Iterator[QueryStrip]:
    """All queries once, in an order that depends on the shape alone; heads with the same mask share a strip."""
    if not spec.batch_size * spec.num_heads * spec.n_q:
        return
    numel_per_head = max(
        1, min(tiling.tile_queries, spec.n_q) * min(max(tiling.tile_keys, tiling.max_row_keys), spec.n_k)
    )
    groups = max(1, tiling.max_tile_numel // (numel_per_head * spec.queries_per_kv_head))
    heads_per_strip = 1 if coverage.num_heads > 1 else spec.queries_per_kv_head * min(groups, spec.num_kv_heads)
    batch_per_strip = (
        1 if coverage.batch_size > 1 or heads_per_strip < spec.num_heads else max(1, groups // spec.num_kv_heads)
    )
    row_of_run = (coverage.b * coverage.num_heads + coverage.h) * coverage.grid_shape[0] + coverage.row
    run_offsets = np.searchsorted(
        row_of_run, np.arange(coverage.batch_size * coverage.num_heads * coverage.grid_shape[0] + 1)
    ).tolist()
    runs = list(zip(coverage.col_start.tolist(), coverage.col_stop.tolist(), coverage.is_full.tolist(), strict=True))
    key_ranges = [_key_ranges(run, tiling, spec.n_k) for run in runs]
    for b in ranges(spec.batch_size, batch_per_strip):
        for h in ranges(spec.num_heads, heads_per_strip):
            first = (
                b.start % coverage.batch_size * coverage.num_heads + h.start % coverage.num_heads
            ) * coverage.grid_shape[0]
            for row, i in enumerate(ranges(spec.n_q, tiling.tile_queries)):
                row_runs = key_ranges[run_offsets[first + row] : run_offsets[first + row + 1]]
                yield QueryStrip(b, h, i, tuple(keys for run in row_runs for keys in run))


def _key_ranges(run: tuple[int, int, bool], tiling: Tiling, n_k: int) -> list[tuple[range, bool]]:
    """A run of tiles as ranges of keys: partial tiles one by one, full tiles merged."""
    first, last, full = run
    step = max(1, tiling.max_row_keys // tiling.tile_keys) if full else 1
    stops = [min(c + step, last) for c in range(first, last, step)]
    return [
        (range(c * tiling.tile_keys, min(stop * tiling.tile_keys, n_k)), full)
        for c, stop in zip(range(first, last, step), stops, strict=True)
    ]


def ranges(length: int, step: int) -> list[range]:
    """Split `length` into consecutive ranges of at most `step`."""
    return [range(first, min(first + step, length)) for first in range(0, length, step)]
