"""The predicted cost of a plan, and its text."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from regard.cache import cache_info
from regard.call.spec import CallSpec
from regard.expr.ir import TRUE
from regard.expr.tile_coverage import TileCoverage
from regard.plan.tiling import Tiling
from regard.tensors.precision import dtype_name


@dataclass(frozen=True)
class CostEstimate:
    """The predicted cost of the forward pass. `visited_pairs` of all `pairs` of queries and keys are computed."""

    pairs: int
    visited_pairs: int
    flops: int
    bytes_moved: int
    extra_memory: int
    second_order_memory: int


def estimate_cost(spec: CallSpec, tiling: Tiling, linear_memory: bool, coverage: TileCoverage | None) -> CostEstimate:
    """Predict matmul FLOPs over the visited tiles, bytes moved once per strip, and memory beyond inputs and output."""
    pairs = spec.batch_size * spec.num_heads * spec.n_q * spec.n_k
    visited = pairs if coverage is None else _count_visited_pairs(spec, coverage)
    width = spec.head_dim + spec.value_dim
    itemsize, score_itemsize = spec.dtype.itemsize, spec.score_dtype.itemsize
    rows = spec.batch_size * spec.num_heads * spec.n_q
    strips = -(-spec.n_q // (tiling.tile_queries * tiling.tiles_per_strip))
    share = visited / pairs if pairs else 0.0
    keys_read = int(spec.batch_size * spec.num_kv_heads * spec.n_k * width * strips * share)
    bytes_moved = itemsize * (rows * width + keys_read)
    keys = max(tiling.tile_keys, tiling.max_row_keys)
    tile = min(
        tiling.max_tile_numel, tiling.tile_queries * keys * spec.queries_per_kv_head * spec.num_heads * spec.batch_size
    )
    working = 4 * max(tile, tiling.tile_queries * min(keys, max(spec.n_k, 1))) * score_itemsize
    extra = working + rows * score_itemsize if linear_memory else 4 * pairs * 8
    if spec.score_kind != "dot":
        extra += working * spec.head_dim
    return CostEstimate(
        pairs=pairs,
        visited_pairs=visited,
        flops=2 * visited * width if spec.score_kind == "dot" else visited * (3 * spec.head_dim + 2 * spec.value_dim),
        bytes_moved=bytes_moved,
        extra_memory=extra,
        second_order_memory=48 * score_itemsize * max(2**18, spec.batch_size * spec.num_heads * spec.n_k),
    )


def _count_visited_pairs(spec: CallSpec, coverage: TileCoverage) -> int:
    """The pairs in tiles that are not empty; tiles at the border are smaller."""
    heights = [
        min(coverage.tile_shape[0], spec.n_q - r * coverage.tile_shape[0]) for r in range(coverage.grid_shape[0])
    ]
    widths = [min(coverage.tile_shape[1], spec.n_k - c * coverage.tile_shape[1]) for c in range(coverage.grid_shape[1])]
    rows, columns = np.asarray(heights), np.concatenate([[0], np.cumsum(widths)]).astype(np.int64)
    pairs = (
        int((rows[coverage.row] * (columns[coverage.col_stop] - columns[coverage.col_start])).sum())
        if len(coverage.row)
        else 0
    )
    return pairs * (spec.batch_size // max(1, coverage.batch_size)) * (spec.num_heads // max(1, coverage.num_heads))


def format_plan(
    spec: CallSpec,
    backend: str,
    variant: str,
    tiling: Tiling,
    unsupported_reasons: Mapping[str, tuple[str, ...]],
    cost: CostEstimate,
    coverage: TileCoverage | None,
    debug: bool = False,
) -> str:
    """A plan as a page of text; with `debug`, followed by the sizes of the caches."""
    kv_heads = f" ({spec.num_kv_heads} key-value heads)" if spec.queries_per_kv_head > 1 else ""
    heads = f"batch {spec.batch_size}, heads {spec.num_heads}{kv_heads}"
    sizes = f"{spec.n_q} queries, {spec.n_k} keys, head dim {spec.head_dim}, value dim {spec.value_dim}"
    dtype = dtype_name(spec.dtype) + ("" if spec.device == "meta" else f" on {spec.device}")
    share = f"{cost.visited_pairs / cost.pairs:.1%}" if cost.pairs else "none"
    backward, second = _format_count(5 * cost.flops // 2, "FLOP"), format_bytes(cost.second_order_memory)
    memory = f"{format_bytes(cost.bytes_moved)} moved, {format_bytes(cost.extra_memory)} beyond inputs and output"
    lines = [
        f"formula  {spec.formula}",
        f"shape    {heads}, {sizes}, {dtype}",
        f"backend  {backend}{f' ({variant})' if variant else ''}, tiles of {tiling.tile_queries} x {tiling.tile_keys}",
    ]
    for name, reasons in unsupported_reasons.items():
        if name != backend and not _is_variant(name, unsupported_reasons):
            lines.append(f"         not {name}: {'; '.join(reasons) if reasons else 'supported, but not chosen'}")
    lines += [
        f"tiles    {_format_coverage(spec, coverage)}",
        f"cost     {_format_count(cost.flops, 'FLOP')}, {memory}; {share} of the pairs visited",
        f"         backward {backward}; second order and forward mode about {second}",
    ]
    return "\n".join(lines + (_format_caches() if debug else []))


def _is_variant(name: str, names: Collection[str]) -> bool:
    """Whether a backend is named after another one, which the plan lists already: native_float32 after native."""
    return any(name.startswith(f"{other}_") for other in names)


def _format_caches() -> list[str]:
    infos = cache_info()
    if not infos:
        return ["caches   all empty"]
    rows = [f"{x.name}: {x.num_entries} of {x.max_entries} entries, {format_bytes(x.num_bytes)}" for x in infos]
    return [f"{'caches' if n == 0 else '':8} {row}" for n, row in enumerate(rows)]


def _format_coverage(spec: CallSpec, coverage: TileCoverage | None) -> str:
    if spec.mask is TRUE and spec.score_mod is None:
        return "all full (no mask)"
    if coverage is None:
        return "depend on the mask's tensors, which are not known here; all are counted"
    counts = coverage.tile_counts
    total = sum(counts.values())
    skipped = counts["empty"] / total if total else 0.0
    return f"{counts['full']} full, {counts['partial']} partial, {counts['empty']} empty and skipped ({skipped:.1%})"


def _format_count(number: int, unit: str) -> str:
    for power, prefix in ((12, "T"), (9, "G"), (6, "M"), (3, "k")):
        if number >= 10**power:
            return f"{number / 10**power:.3g} {prefix}{unit}"
    return f"{number} {unit}"


def format_bytes(number: int) -> str:
    """A number of bytes with its unit, such as 1.5 MiB."""
    for power, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if number >= 1 << power:
            return f"{number / (1 << power):.3g} {unit}"
    return f"{number} B"


def format_seconds(seconds: float) -> str:
    """A time with its unit, such as 1.5 ms."""
    for factor, unit in ((1.0, "s"), (1e3, "ms"), (1e6, "µs")):
        if seconds * factor >= 1.0:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"
