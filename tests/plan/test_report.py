"""Predicted costs against counting by hand, and the page a plan prints."""

from typing import Any

import pytest
import torch

from regard import mask, score, weigh
from regard.plan.blocks import Tiles
from regard.plan.choose import Plan, choose
from regard.plan.report import Estimate, estimate, report
from regard.spec.mask import Mask
from regard.spec.read import read
from regard.spec.spec import Spec


def spec(
    batch: int = 2, heads: int = 4, n_q: int = 64, n_k: int = 64, width: int = 16, key_heads: int = 4, **options: Any
) -> Spec:
    shapes = (batch, heads, n_q, width), (batch, key_heads, n_k, width), (batch, key_heads, n_k, 24)
    dtype = options.pop("dtype", torch.float32)
    return read(*(torch.zeros(s, dtype=dtype) for s in shapes), **options).spec


TILES = Tiles(16, 8, 4096)


def estimated(of: Spec, tiles: Tiles = TILES, linear_memory: bool = True) -> Estimate:
    plan = Plan(of, "some", tiles, linear_memory, {})
    return estimate(of, tiles, linear_memory, plan.cover)


def test_without_a_mask_every_pair_is_visited() -> None:
    found = estimated(spec())
    assert found.pairs == found.visited == 2 * 4 * 64 * 64
    assert found.flops == 2 * found.pairs * (16 + 24)


@pytest.mark.parametrize(
    "chosen", [mask.causal(), mask.window(9), mask.blocks(16), mask.causal() & mask.window(20)], ids=str
)
@pytest.mark.parametrize("n_q, n_k", [(64, 64), (50, 70), (70, 33)])
def test_visited_pairs_are_those_of_the_tiles_that_are_not_empty(chosen: Mask, n_q: int, n_k: int) -> None:
    found = estimated(spec(n_q=n_q, n_k=n_k, mask=chosen))
    dense = chosen.dense(n_q, n_k)[0, 0]
    visited = 0
    for i in range(0, n_q, TILES.queries):
        for j in range(0, n_k, TILES.keys):
            tile = dense[i : i + TILES.queries, j : j + TILES.keys]
            visited += tile.numel() if tile.any() else 0
    assert found.visited == 8 * visited
    assert found.pairs == 8 * n_q * n_k


def test_a_mask_that_differs_by_head_is_counted_head_by_head() -> None:
    found = estimated(spec(mask=lambda b, h, i, j: j < 16 * h))
    assert found.visited == 2 * 64 * 16 * (0 + 1 + 2 + 3)


def test_a_mask_of_which_the_data_is_not_known_counts_in_full() -> None:
    assert estimated(spec(mask=mask.padding([3, 4]))).visited == 2 * 4 * 64 * 64


def test_additive_scores_cost_what_their_width_says() -> None:
    w = torch.ones(16, 10)
    found = estimated(spec(score=score.additive(w, w, torch.ones(10))))
    assert found.flops == found.visited * (3 * 10 + 2 * 24)
    assert found.extra_memory > 10 * estimated(spec()).extra_memory / 2


def test_memory_grows_with_the_rows_in_linear_memory_and_with_the_pairs_otherwise() -> None:
    def extra(n: int, linear: bool) -> int:
        return estimated(spec(n_q=n, n_k=n), linear_memory=linear).extra_memory

    assert extra(2**14, True) - extra(2**13, True) == 2 * 4 * 2**13 * 4  # a float32 a row
    assert extra(128, False) == 4 * extra(64, False)


def test_bytes_moved_are_read_once_a_strip() -> None:
    found = estimated(spec())
    rows, keys, strips = 2 * 4 * 64, 2 * 4 * 64, 64 // 16
    assert found.bytes_moved == 4 * (rows * 40 + keys * 40 * strips)
    half = estimated(spec(dtype=torch.bfloat16))
    assert half.bytes_moved * 2 == found.bytes_moved
    shared = estimated(spec(key_heads=1))
    assert shared.bytes_moved == 4 * (rows * 40 + keys // 4 * 40 * strips)


@pytest.mark.parametrize("lengths", [{"n_q": 0}, {"n_k": 0}, {"batch": 0}])
def test_nothing_costs_nothing(lengths: dict[str, int]) -> None:
    found = estimated(spec(**lengths, mask=mask.causal()))
    assert (found.pairs, found.visited, found.flops) == (0, 0, 0)
    assert str(Plan(spec(**lengths), "some", TILES, True, {}))


def page(of: Spec, objections: dict[str, tuple[str, ...]] | None = None) -> list[str]:
    return str(Plan(of, "some", TILES, True, objections or {})).split("\n")


def test_a_plan_prints_the_question_its_shape_and_its_engine() -> None:
    lines = page(spec(mask=mask.causal(), score=score.softcap(5.0), weigh=weigh.sigmoid()))
    assert lines[0] == "formula  o = sigmoid(5.0 * tanh(s / 5.0) with s = q·k / √d, seen where j <= p) v"
    assert lines[1] == "shape    batch 2, heads 4, 64 queries, 64 keys, width 16, values 24, float32 on cpu"
    assert lines[2] == "engine   some, tiles of 16 x 8"


def test_shared_key_heads_are_named() -> None:
    assert "heads 4 (2 of keys)" in page(spec(key_heads=2))[1]


def test_a_plan_prints_why_the_other_engines_were_passed_over() -> None:
    lines = page(spec(), {"shy": ("it is dark", "it is late"), "some": (), "able": ()})
    assert "         not shy: it is dark; it is late" in lines
    assert "         not able: it could as well" in lines
    assert not any("not some" in line for line in lines)


def test_a_plan_prints_its_blocks() -> None:
    assert "blocks   all full: there is no mask" in page(spec())
    causal = page(spec(mask=mask.causal()))
    assert "blocks   12 full, 8 partial, 12 empty and skipped (37.5%)" in causal
    assert "blocks   depend on the mask's data, which was not given; all are counted" in page(
        spec(mask=mask.padding([1, 2]))
    )


def test_a_plan_prints_its_cost() -> None:
    of = spec(mask=mask.causal())
    cost = estimated(of)
    text = report(of, "some", "", TILES, {}, cost, None)
    assert "; 62.5% of the pairs visited" in text
    assert f"{cost.flops / 1e6:.3g} MFLOP" in text
    assert f"backward {cost.flops * 2.5 / 1e6:.3g} MFLOP" in text
    assert f"{cost.bytes_moved / 2**10:.3g} KiB moved" in text
    assert "second order and forward mode about 48 MiB" in text


@pytest.mark.parametrize("n, flops", [(8, "41 kFLOP"), (64, "2.62 MFLOP"), (2048, "2.68 GFLOP"), (65536, "2.75 TFLOP")])
def test_numbers_are_printed_with_the_unit_that_fits(n: int, flops: str) -> None:
    shape = (2, 4, n, 16)
    of = read(shape, shape, (2, 4, n, 24)).spec
    assert flops in str(choose(of, (_Engine(),)))


class _Engine:
    name = "some"
    variant = ""

    def linear_memory(self, spec: Spec) -> bool:
        return True

    def objections(self, spec: Spec) -> tuple[str, ...]:
        return ()

    def tiles(self, spec: Spec) -> Tiles:
        return Tiles(1024, 1024, 2**20)
