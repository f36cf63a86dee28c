"""Tiles and strips: every visible pair is visited once, in an order that depends on the shape only."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from regard import mask, score
from regard.call.attention_call import AttentionCall
from regard.call.parse import parse_call
from regard.call.spec import ParsedCall
from regard.expr import tile_coverage
from regard.expr.bounds import BoundsEvaluator
from regard.plan import tiling as tiling_module
from regard.plan.tiling import Tiling, call_coverage, query_strips, ranges, static_call_coverage


def make_call(
    batch: int = 1, heads: int = 1, n_q: int = 20, n_k: int = 20, kv_heads: int | None = None, **options: Any
) -> ParsedCall:
    kv_heads = heads if kv_heads is None else kv_heads
    shapes = (batch, heads, n_q, 4), (batch, kv_heads, n_k, 4), (batch, kv_heads, n_k, 4)
    return parse_call(AttentionCall(*(torch.zeros(s) for s in shapes), **options))


def coverage_of(call: ParsedCall, tiles: Tiling) -> tile_coverage.TileCoverage:
    return call_coverage(call.spec, call.captured_tensors(), call.query_offset, tiles)


CASES: dict[str, Callable[[], ParsedCall]] = {
    "no mask": lambda: make_call(2, 4, 20, 30),
    "causal": lambda: make_call(3, 2, 25, 25, mask=mask.causal()),
    "more keys than queries": lambda: make_call(1, 2, 7, 33, mask=mask.causal() & mask.sliding_window(9)),
    "more queries than keys": lambda: make_call(1, 1, 33, 7, mask=mask.causal()),
    "query offset": lambda: make_call(1, 1, 12, 24, mask=mask.causal(), query_offset=3),
    "query offset per batch element": lambda: make_call(3, 2, 12, 24, mask=mask.causal(), query_offset=[0, 5, 12]),
    "by batch": lambda: make_call(3, 2, mask=mask.padding([3, 20, 0])),
    "by head": lambda: make_call(2, 4, mask=lambda b, h, i, j: (i - j) % 4 == h),
    "by head, grouped": lambda: make_call(2, 4, kv_heads=2, mask=lambda b, h, i, j: (i - j) % 4 <= h),
    "by batch and head": lambda: make_call(2, 3, mask=lambda b, h, i, j: i - j > b + 5 * h),
    "grouped": lambda: make_call(2, 6, kv_heads=2, mask=mask.causal()),
    "one key head": lambda: make_call(2, 6, kv_heads=1, mask=mask.causal()),
    "many heads": lambda: make_call(5, 8, mask=mask.chunked(6)),
    "documents": lambda: make_call(2, 2, mask=mask.document(torch.arange(20) // 7)),
    "bias of minus infinity": lambda: make_call(1, 2, score=torch.full((20, 20), -torch.inf).triu(1)),
    "all hidden": lambda: make_call(2, 2, mask=lambda b, h, i, j: j < 0),
    "no queries": lambda: make_call(2, 2, 0, 9, mask=mask.causal()),
    "no keys": lambda: make_call(2, 2, 9, 0, mask=mask.causal()),
    "no batch": lambda: make_call(0, 2, 9, 9, mask=mask.causal()),
}  # fmt: skip
SIZES = [Tiling(4, 8, 64), Tiling(8, 4, 10**6), Tiling(256, 512, 2**18), Tiling(7, 5, 1), Tiling(3, 2, 64, 7)]


def visible_pairs(call: ParsedCall) -> torch.Tensor:
    """Which pairs are visible, evaluated one by one."""
    mask_option = call.score.score_mod
    batch, heads, n_q, n_k = call.spec.score_shape
    visible = mask.Mask(call.spec.mask, call.captured_tensors()).to_dense(
        n_q, n_k, batch_size=batch, num_heads=heads, query_offset=call.query_offset
    )
    if mask_option is not None and mask_option.tensor_names == ("bias",):
        visible = visible & (mask_option.tensors[0] != -torch.inf)
    return visible


@pytest.mark.parametrize("tiles", SIZES, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_strips_visit_every_query_and_every_visible_pair_once(name: str, tiles: Tiling) -> None:
    call = CASES[name]()
    spec = call.spec
    rows = torch.zeros(spec.score_shape[:3], dtype=torch.int64)
    pairs = torch.zeros(spec.score_shape, dtype=torch.int64)
    full = torch.zeros(spec.score_shape, dtype=torch.bool)
    for strip in query_strips(spec, coverage_of(call, tiles), tiles):
        rows_index = tuple(slice(r.start, r.stop) for r in (strip.b, strip.h, strip.i))
        rows[rows_index] += 1
        for keys, is_full in strip.keys:
            pairs[(*rows_index, slice(keys.start, keys.stop))] += 1
            full[(*rows_index, slice(keys.start, keys.stop))] |= is_full
    visible = visible_pairs(call)
    assert (rows == 1).all()
    assert pairs.numel() == 0 or int(pairs.max()) <= 1
    assert not (visible & (pairs == 0)).any(), "a visible pair is not visited"
    assert not (full & ~visible).any(), "a full tile hides a pair"


@pytest.mark.parametrize("name", CASES)
def test_strip_does_not_mix_heads_or_batch_elements_of_different_masks(name: str) -> None:
    call = CASES[name]()
    tiles = Tiling(4, 8, 10**6)
    actual = coverage_of(call, tiles)
    for strip in query_strips(call.spec, actual, tiles):
        assert actual.batch_size == 1 or len(strip.b) == 1
        assert actual.num_heads == 1 or len(strip.h) == 1


@pytest.mark.parametrize("kv_heads", [1, 2, 6])
@pytest.mark.parametrize("numbers", [1, 200, 10**6])
def test_strip_holds_whole_head_groups_within_its_size_limit(kv_heads: int, numbers: int) -> None:
    call = make_call(4, 6, kv_heads=kv_heads, mask=mask.causal())
    tiles = Tiling(4, 8, numbers)
    group = 6 // kv_heads
    for strip in query_strips(call.spec, coverage_of(call, tiles), tiles):
        assert strip.h.start % group == 0 and len(strip.h) % group == 0
        smallest = len(strip.h) == group and len(strip.b) == 1
        assert smallest or len(strip.b) * len(strip.h) * 4 * 8 <= numbers


def test_strips_of_several_batch_elements_are_joined() -> None:
    call = make_call(4, 6, mask=mask.causal())
    actual = list(query_strips(call.spec, coverage_of(call, Tiling(32, 32, 10**6)), Tiling(32, 32, 10**6)))
    assert len(actual) == 1 and len(actual[0].b) == 4 and len(actual[0].h) == 6


def test_order_of_strips_depends_on_the_shape_only() -> None:
    tiles = Tiling(4, 8, 64)
    orders = []
    for lengths in ([3, 20], [20, 1]):
        call = make_call(2, 2, mask=mask.padding(lengths))
        orders.append([(s.b, s.h, s.i) for s in query_strips(call.spec, coverage_of(call, tiles), tiles)])
    assert orders[0] == orders[1]


def test_keys_of_a_strip_are_sorted() -> None:
    call = make_call(2, 2, mask=mask.dilated(3, 6))
    for strip in query_strips(call.spec, coverage_of(call, Tiling(4, 2, 64)), Tiling(4, 2, 64)):
        firsts = [keys.start for keys, _ in strip.keys]
        assert firsts == sorted(set(firsts))


def test_adjacent_full_tiles_are_merged_and_partial_tiles_are_not() -> None:
    call = make_call(n_q=8, n_k=32, mask=mask.from_function(lambda b, h, i, j: (j < 20) & ((j != 9) | (i != 3))))
    tiles = Tiling(8, 2, 10**6, 7)  # three tiles of two keys fit in a row of seven

    (strip,) = query_strips(call.spec, coverage_of(call, tiles), tiles)

    full = [range(6), range(6, 8), range(10, 16), range(16, 20)]
    assert strip.keys == ((full[0], True), (full[1], True), (range(8, 10), False), (full[2], True), (full[3], True))


def test_coverage_of_a_mask_without_tensors_is_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    search = tiling_module.tile_coverage
    monkeypatch.setattr(tiling_module, "tile_coverage", lambda *args: calls.append(args) or search(*args))
    tiling_module._cache.clear()
    tiles = Tiling(4, 4, 64)
    one, other = (coverage_of(make_call(mask=mask.causal() & mask.sliding_window(5)), tiles) for _ in range(2))
    assert one is other and len(calls) == 1
    coverage_of(make_call(mask=mask.causal() & mask.sliding_window(6)), tiles)
    coverage_of(make_call(mask=mask.causal() & mask.sliding_window(5), query_offset=1), tiles)
    coverage_of(make_call(mask=mask.causal() & mask.sliding_window(5)), Tiling(8, 4, 64))
    coverage_of(make_call(n_k=21, mask=mask.causal() & mask.sliding_window(5)), tiles)
    assert len(calls) == 5


def test_coverage_of_a_mask_follows_its_tensors() -> None:
    tiles = Tiling(4, 4, 64)
    lengths = torch.tensor([20])
    before = coverage_of(make_call(mask=mask.padding(lengths)), tiles)
    assert before.tile_counts["full"] == 25
    assert coverage_of(make_call(mask=mask.padding([4])), tiles).tile_counts == {"empty": 20, "partial": 0, "full": 5}


def test_coverage_follows_a_tensor_changed_in_place() -> None:
    tiles = Tiling(4, 4, 64)
    table = torch.ones(20, 20, dtype=torch.bool)
    mask_option = mask.tensor(table)
    assert coverage_of(make_call(mask=mask_option), tiles).tile_counts["full"] == 25
    table[:, 10:] = False
    assert coverage_of(make_call(mask=mask_option), tiles).tile_counts == {"empty": 10, "partial": 5, "full": 10}


def test_static_coverage_needs_a_mask_without_tensors() -> None:
    tiles = Tiling(4, 4, 64)
    actual = static_call_coverage(make_call(mask=mask.causal()).spec, tiles)
    assert actual is not None and actual.tile_counts == {"empty": 10, "partial": 5, "full": 10}
    assert static_call_coverage(make_call(mask=mask.padding([3])).spec, tiles) is None
    assert static_call_coverage(make_call(score=score.bias(torch.zeros(20, 20))).spec, tiles) is None
    assert static_call_coverage(make_call(2, mask=mask.causal(), query_offset=[0, 1]).spec, tiles) is None


def test_bias_of_minus_infinity_makes_tiles_empty() -> None:
    hidden = torch.full((20, 20), -torch.inf).triu(1)
    actual = coverage_of(make_call(score=score.bias(hidden)), Tiling(4, 4, 64))
    assert actual.tile_counts == {"empty": 10, "partial": 5, "full": 10}


def test_planning_a_long_window_visits_few_regions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted, not timed: of half a million tiles, about two per row are visited."""
    call: list[int] = []
    bounded = BoundsEvaluator.bounds

    def counting_bounds(self: BoundsEvaluator, expr: Any, region: Any) -> Any:
        call.append(len(region))
        return bounded(self, expr, region)

    monkeypatch.setattr(tile_coverage.BoundsEvaluator, "bounds", counting_bounds)
    tiling_module._cache.clear()
    n = 262144
    shape = (1, 1, n, 64)
    spec = parse_call(AttentionCall(shape, shape, shape, mask=mask.causal() & mask.sliding_window(256))).spec
    tiles = Tiling(256, 512, 2**18)
    actual = static_call_coverage(spec, tiles)
    assert actual is not None
    rows, tiles_in_all = n // 256, (n // 256) * (n // 512)
    visited = actual.tile_counts["partial"] + actual.tile_counts["full"]
    assert visited <= 2 * rows
    assert sum(call) < 12 * rows < tiles_in_all / 40
    assert sum(len(s.keys) for s in query_strips(spec, actual, tiles)) == visited


@pytest.mark.parametrize("length, step", [(0, 4), (1, 4), (4, 4), (9, 4), (3, 1)])
def test_ranges_cover_the_length(length: int, step: int) -> None:
    actual = ranges(length, step)
    assert [n for r in actual for n in r] == list(range(length))
    assert all(0 < len(r) <= step for r in actual) and len(actual) == int(np.ceil(length / step))
