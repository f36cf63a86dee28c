"""Tiles and strips: every pair that is seen is visited once, in an order given by the shape alone."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from regard import mask, score
from regard.plan import blocks as blocks_module
from regard.plan.blocks import Tiles, blocks, blocks_without_data, ranges, strips
from regard.spec import regions
from regard.spec.bounds import Bounds
from regard.spec.read import read
from regard.spec.spec import Question


def question(
    batch: int = 1, heads: int = 1, n_q: int = 20, n_k: int = 20, key_heads: int | None = None, **options: Any
) -> Question:
    key_heads = heads if key_heads is None else key_heads
    shapes = (batch, heads, n_q, 4), (batch, key_heads, n_k, 4), (batch, key_heads, n_k, 4)
    return read(*(torch.zeros(s) for s in shapes), **options)


def cover_of(asked: Question, tiles: Tiles) -> regions.Cover:
    return blocks(asked.spec, asked.captured(), asked.start, tiles)


CASES: dict[str, Callable[[], Question]] = {
    "no mask": lambda: question(2, 4, 20, 30),
    "causal": lambda: question(3, 2, 25, 25, mask=mask.causal()),
    "more keys than queries": lambda: question(1, 2, 7, 33, mask=mask.causal() & mask.window(9)),
    "more queries than keys": lambda: question(1, 1, 33, 7, mask=mask.causal()),
    "a start of its own": lambda: question(1, 1, 12, 24, mask=mask.causal(), start=3),
    "a start a batch element": lambda: question(3, 2, 12, 24, mask=mask.causal(), start=[0, 5, 12]),
    "by batch": lambda: question(3, 2, mask=mask.padding([3, 20, 0])),
    "by head": lambda: question(2, 4, mask=lambda b, h, i, j: (i - j) % 4 == h),
    "by head, grouped": lambda: question(2, 4, key_heads=2, mask=lambda b, h, i, j: (i - j) % 4 <= h),
    "by batch and head": lambda: question(2, 3, mask=lambda b, h, i, j: i - j > b + 5 * h),
    "grouped": lambda: question(2, 6, key_heads=2, mask=mask.causal()),
    "one key head": lambda: question(2, 6, key_heads=1, mask=mask.causal()),
    "many heads": lambda: question(5, 8, mask=mask.blocks(6)),
    "documents": lambda: question(2, 2, mask=mask.documents(torch.arange(20) // 7)),
    "a rule that hides": lambda: question(1, 2, score=torch.full((20, 20), -torch.inf).triu(1)),
    "nothing seen": lambda: question(2, 2, mask=lambda b, h, i, j: j < 0),
    "no queries": lambda: question(2, 2, 0, 9, mask=mask.causal()),
    "no keys": lambda: question(2, 2, 9, 0, mask=mask.causal()),
    "no batch": lambda: question(0, 2, 9, 9, mask=mask.causal()),
}  # fmt: skip
SIZES = [Tiles(4, 8, 64), Tiles(8, 4, 10**6), Tiles(256, 512, 2**18), Tiles(7, 5, 1), Tiles(3, 2, 64, 7)]


def seen_pairs(asked: Question) -> torch.Tensor:
    """Which pairs count, by looking at each."""
    chosen = asked.score.rule
    batch, heads, n_q, n_k = asked.spec.lengths
    seen = mask.Mask(asked.spec.mask, asked.captured()).dense(n_q, n_k, batch=batch, heads=heads, start=asked.start)
    if chosen is not None and chosen.names == ("bias",):
        seen = seen & (chosen.tensors[0] != -torch.inf)
    return seen


@pytest.mark.parametrize("tiles", SIZES, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_strips_visit_every_query_once_and_every_seen_pair_once(name: str, tiles: Tiles) -> None:
    asked = CASES[name]()
    spec = asked.spec
    rows = torch.zeros(spec.lengths[:3], dtype=torch.int64)
    pairs = torch.zeros(spec.lengths, dtype=torch.int64)
    full = torch.zeros(spec.lengths, dtype=torch.bool)
    for strip in strips(spec, cover_of(asked, tiles), tiles):
        at = tuple(slice(r.start, r.stop) for r in (strip.b, strip.h, strip.i))
        rows[at] += 1
        for keys, is_full in strip.keys:
            pairs[(*at, slice(keys.start, keys.stop))] += 1
            full[(*at, slice(keys.start, keys.stop))] |= is_full
    seen = seen_pairs(asked)
    assert (rows == 1).all()
    assert pairs.numel() == 0 or int(pairs.max()) <= 1
    assert not (seen & (pairs == 0)).any(), "a pair that is seen is not visited"
    assert not (full & ~seen).any(), "a tile that is called full hides something"


@pytest.mark.parametrize("name", CASES)
def test_a_strip_never_mixes_heads_or_batch_elements_that_see_differently(name: str) -> None:
    asked = CASES[name]()
    tiles = Tiles(4, 8, 10**6)
    found = cover_of(asked, tiles)
    for strip in strips(asked.spec, found, tiles):
        assert found.batch == 1 or len(strip.b) == 1
        assert found.heads == 1 or len(strip.h) == 1


@pytest.mark.parametrize("key_heads", [1, 2, 6])
@pytest.mark.parametrize("numbers", [1, 200, 10**6])
def test_a_strip_holds_whole_groups_of_heads_and_stays_within_its_numbers(key_heads: int, numbers: int) -> None:
    asked = question(4, 6, key_heads=key_heads, mask=mask.causal())
    tiles = Tiles(4, 8, numbers)
    group = 6 // key_heads
    for strip in strips(asked.spec, cover_of(asked, tiles), tiles):
        assert strip.h.start % group == 0 and len(strip.h) % group == 0
        smallest = len(strip.h) == group and len(strip.b) == 1
        assert smallest or len(strip.b) * len(strip.h) * 4 * 8 <= numbers


def test_strips_of_whole_batches_are_joined_where_there_is_room() -> None:
    asked = question(4, 6, mask=mask.causal())
    found = list(strips(asked.spec, cover_of(asked, Tiles(32, 32, 10**6)), Tiles(32, 32, 10**6)))
    assert len(found) == 1 and len(found[0].b) == 4 and len(found[0].h) == 6


def test_the_order_of_strips_is_given_by_the_shape_alone() -> None:
    tiles = Tiles(4, 8, 64)
    orders = []
    for lengths in ([3, 20], [20, 1]):
        asked = question(2, 2, mask=mask.padding(lengths))
        orders.append([(s.b, s.h, s.i) for s in strips(asked.spec, cover_of(asked, tiles), tiles)])
    assert orders[0] == orders[1]


def test_keys_of_a_strip_come_in_order() -> None:
    asked = question(2, 2, mask=mask.dilated(3, 6))
    for strip in strips(asked.spec, cover_of(asked, Tiles(4, 2, 64)), Tiles(4, 2, 64)):
        firsts = [keys.start for keys, _ in strip.keys]
        assert firsts == sorted(set(firsts))


def test_full_tiles_side_by_side_are_taken_together_and_partial_ones_one_by_one() -> None:
    asked = question(n_q=8, n_k=32, mask=mask.where(lambda b, h, i, j: (j < 20) & ((j != 9) | (i != 3))))
    tiles = Tiles(8, 2, 10**6, 7)  # three tiles of two keys fit in a row of seven

    (strip,) = strips(asked.spec, cover_of(asked, tiles), tiles)

    full = [range(6), range(6, 8), range(10, 16), range(16, 20)]
    assert strip.keys == ((full[0], True), (full[1], True), (range(8, 10), False), (full[2], True), (full[3], True))


def test_a_mask_without_data_is_searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    search = blocks_module.cover
    monkeypatch.setattr(blocks_module, "cover", lambda *args: calls.append(args) or search(*args))
    blocks_module._recent.clear()
    tiles = Tiles(4, 4, 64)
    one, other = (cover_of(question(mask=mask.causal() & mask.window(5)), tiles) for _ in range(2))
    assert one is other and len(calls) == 1
    cover_of(question(mask=mask.causal() & mask.window(6)), tiles)
    cover_of(question(mask=mask.causal() & mask.window(5), start=1), tiles)
    cover_of(question(mask=mask.causal() & mask.window(5)), Tiles(8, 4, 64))
    cover_of(question(n_k=21, mask=mask.causal() & mask.window(5)), tiles)
    assert len(calls) == 5


def test_a_mask_with_data_is_searched_anew_when_its_data_change() -> None:
    tiles = Tiles(4, 4, 64)
    lengths = torch.tensor([20])
    before = cover_of(question(mask=mask.padding(lengths)), tiles)
    assert before.counts["full"] == 25
    assert cover_of(question(mask=mask.padding([4])), tiles).counts == {"empty": 20, "partial": 0, "full": 5}


def test_a_table_changed_in_place_is_looked_at_again() -> None:
    tiles = Tiles(4, 4, 64)
    table = torch.ones(20, 20, dtype=torch.bool)
    chosen = mask.tensor(table)
    assert cover_of(question(mask=chosen), tiles).counts["full"] == 25
    table[:, 10:] = False
    assert cover_of(question(mask=chosen), tiles).counts == {"empty": 10, "partial": 5, "full": 10}


def test_the_spec_alone_tells_the_tiles_of_a_mask_without_data() -> None:
    tiles = Tiles(4, 4, 64)
    found = blocks_without_data(question(mask=mask.causal()).spec, tiles)
    assert found is not None and found.counts == {"empty": 10, "partial": 5, "full": 10}
    assert blocks_without_data(question(mask=mask.padding([3])).spec, tiles) is None
    assert blocks_without_data(question(score=score.bias(torch.zeros(20, 20))).spec, tiles) is None
    assert blocks_without_data(question(2, mask=mask.causal(), start=[0, 1]).spec, tiles) is None


def test_a_rule_of_minus_infinity_empties_tiles() -> None:
    hidden = torch.full((20, 20), -torch.inf).triu(1)
    found = cover_of(question(score=score.bias(hidden)), Tiles(4, 4, 64))
    assert found.counts == {"empty": 10, "partial": 5, "full": 10}


def test_planning_a_long_window_visits_few_regions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted, not timed: at 262,144 there are half a million tiles, of which about two a row are visited."""
    asked: list[int] = []
    bounded = Bounds.of

    def counted(self: Bounds, term: Any, where: Any) -> Any:
        asked.append(len(where))
        return bounded(self, term, where)

    monkeypatch.setattr(regions.Bounds, "of", counted)
    blocks_module._recent.clear()
    n = 262144
    shape = (1, 1, n, 64)
    spec = read(shape, shape, shape, mask=mask.causal() & mask.window(256)).spec
    tiles = Tiles(256, 512, 2**18)
    found = blocks_without_data(spec, tiles)
    assert found is not None
    rows, tiles_in_all = n // 256, (n // 256) * (n // 512)
    visited = found.counts["partial"] + found.counts["full"]
    assert visited <= 2 * rows
    assert sum(asked) < 12 * rows < tiles_in_all / 40
    assert sum(len(s.keys) for s in strips(spec, found, tiles)) == visited


@pytest.mark.parametrize("length, step", [(0, 4), (1, 4), (4, 4), (9, 4), (3, 1)])
def test_ranges_make_up_the_length(length: int, step: int) -> None:
    found = ranges(length, step)
    assert [n for r in found for n in r] == list(range(length))
    assert all(0 < len(r) <= step for r in found) and len(found) == int(np.ceil(length / step))
