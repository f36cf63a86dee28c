"""What a plan costs, and how it is printed."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from regard.plan.blocks import Tiles
from regard.spec.regions import Cover
from regard.spec.spec import Spec
from regard.spec.term import TRUE


@dataclass(frozen=True)
class Estimate:
    """Predicted cost of the forward pass. `visited` counts the pairs whose score is computed, of `pairs` in all."""

    pairs: int
    visited: int
    flops: int
    bytes_moved: int
    extra_memory: int
    second_order_memory: int


def estimate(spec: Spec, tiles: Tiles, linear_memory: bool, cover: Cover | None) -> Estimate:
    """Matmul FLOPs over the visited tiles, bytes read and written once a strip, and memory beyond inputs and output."""
    pairs = spec.batch * spec.heads * spec.n_q * spec.n_k
    visited = pairs if cover is None else _visited(spec, cover)
    width = spec.width + spec.value_width
    number = torch.empty((), dtype=spec.dtype).element_size()
    exact = torch.empty((), dtype=spec.precision).element_size()
    rows = spec.batch * spec.heads * spec.n_q
    strips = -(-spec.n_q // (tiles.queries * tiles.sharing))
    share = visited / pairs if pairs else 0.0
    keys_read = int(spec.batch * spec.key_heads * spec.n_k * width * strips * share)
    bytes_moved = number * (rows * width + keys_read)
    keys = max(tiles.keys, tiles.row)
    tile = min(tiles.numbers, tiles.queries * keys * spec.group * spec.heads * spec.batch)
    working = 4 * max(tile, tiles.queries * min(keys, max(spec.n_k, 1))) * exact
    extra = working + rows * exact if linear_memory else 4 * pairs * 8
    if spec.score != "dot":
        extra += working * spec.width
    return Estimate(
        pairs=pairs,
        visited=visited,
        flops=2 * visited * width if spec.score == "dot" else visited * (3 * spec.width + 2 * spec.value_width),
        bytes_moved=bytes_moved,
        extra_memory=extra,
        second_order_memory=48 * exact * max(2**18, spec.batch * spec.heads * spec.n_k),
    )


def _visited(spec: Spec, cover: Cover) -> int:
    """Pairs inside the tiles that are not empty; border tiles are smaller."""
    heights = [min(cover.tile[0], spec.n_q - r * cover.tile[0]) for r in range(cover.grid[0])]
    widths = [min(cover.tile[1], spec.n_k - c * cover.tile[1]) for c in range(cover.grid[1])]
    rows, columns = np.asarray(heights), np.concatenate([[0], np.cumsum(widths)]).astype(np.int64)
    each = int((rows[cover.row] * (columns[cover.last] - columns[cover.first])).sum()) if len(cover.row) else 0
    return each * (spec.batch // max(1, cover.batch)) * (spec.heads // max(1, cover.heads))


def report(
    spec: Spec,
    engine: str,
    variant: str,
    tiles: Tiles,
    objections: Mapping[str, tuple[str, ...]],
    cost: Estimate,
    cover: Cover | None,
) -> str:
    """A plan as a page of text."""
    heads = f"batch {spec.batch}, heads {spec.heads}" + (f" ({spec.key_heads} of keys)" if spec.group > 1 else "")
    sizes = f"{spec.n_q} queries, {spec.n_k} keys, width {spec.width}, values {spec.value_width}"
    kind = str(spec.dtype).removeprefix("torch.") + ("" if spec.device == "meta" else f" on {spec.device}")
    share = f"{cost.visited / cost.pairs:.1%}" if cost.pairs else "none"
    backward, second = _count(5 * cost.flops // 2, "FLOP"), in_bytes(cost.second_order_memory)
    memory = f"{in_bytes(cost.bytes_moved)} moved, {in_bytes(cost.extra_memory)} beyond inputs and output"
    lines = [
        f"formula  {spec.formula}",
        f"shape    {heads}, {sizes}, {kind}",
        f"engine   {engine}{f' for {variant}' if variant else ''}, tiles of {tiles.queries} x {tiles.keys}",
    ]
    for name, reasons in objections.items():
        if name != engine:
            lines.append(f"         not {name}: {'; '.join(reasons) if reasons else 'it could as well'}")
    lines += [
        f"blocks   {_blocks(spec, cover)}",
        f"cost     {_count(cost.flops, 'FLOP')}, {memory}; {share} of the pairs visited",
        f"         backward {backward}; second order and forward mode about {second}",
    ]
    return "\n".join(lines)


def _blocks(spec: Spec, cover: Cover | None) -> str:
    if spec.mask is TRUE and spec.rule is None:
        return "all full: there is no mask"
    if cover is None:
        return "depend on the mask's data, which was not given; all are counted"
    counts = cover.counts
    total = sum(counts.values())
    skipped = counts["empty"] / total if total else 0.0
    return f"{counts['full']} full, {counts['partial']} partial, {counts['empty']} empty and skipped ({skipped:.1%})"


def _count(number: int, unit: str) -> str:
    for power, prefix in ((12, "T"), (9, "G"), (6, "M"), (3, "k")):
        if number >= 10**power:
            return f"{number / 10**power:.3g} {prefix}{unit}"
    return f"{number} {unit}"


def in_bytes(number: int) -> str:
    """A number of bytes as people say it."""
    for power, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if number >= 1 << power:
            return f"{number / (1 << power):.3g} {unit}"
    return f"{number} B"


def in_seconds(seconds: float) -> str:
    """A time as people say it."""
    for factor, unit in ((1.0, "s"), (1e3, "ms")):
        if seconds * factor >= 1.0:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"
