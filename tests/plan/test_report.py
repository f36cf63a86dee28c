"""Predicted costs agree with counting by hand; the text of a plan."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from regard import mask, normalizer, score
from regard.call.attention_call import AttentionCall
from regard.call.parse import parse_call
from regard.call.spec import CallSpec
from regard.mask import Mask
from regard.plan.choose import Plan, choose_backend
from regard.plan.report import CostEstimate, estimate_cost, format_plan
from regard.plan.tiling import Tiling


def spec(
    batch: int = 2, heads: int = 4, n_q: int = 64, n_k: int = 64, head_dim: int = 16, kv_heads: int = 4, **options: Any
) -> CallSpec:
    shapes = (batch, heads, n_q, head_dim), (batch, kv_heads, n_k, head_dim), (batch, kv_heads, n_k, 24)
    dtype = options.pop("dtype", torch.float32)
    return parse_call(AttentionCall(*(torch.zeros(s, dtype=dtype) for s in shapes), **options)).spec


TILES = Tiling(16, 8, 4096)


@dataclass(frozen=True)
class Stub:
    """A backend with these reasons not to run."""

    name: str
    reasons: tuple[str, ...] = ()
    variant: str = ""

    def has_linear_memory(self, spec: CallSpec) -> bool:
        return True

    def unsupported_reasons(self, spec: CallSpec) -> tuple[str, ...]:
        return self.reasons

    def tiling(self, spec: CallSpec) -> Tiling:
        return Tiling(1024, 1024, 2**20)


def cost_of(call_spec: CallSpec, tiles: Tiling = TILES, linear_memory: bool = True) -> CostEstimate:
    return estimate_cost(call_spec, tiles, linear_memory, Plan(call_spec, "some", tiles, linear_memory).coverage)


def test_without_a_mask_every_pair_is_visited() -> None:
    cost = cost_of(spec())
    assert cost.pairs == cost.visited_pairs == 2 * 4 * 64 * 64
    assert cost.flops == 2 * cost.pairs * (16 + 24)


@pytest.mark.parametrize(
    "mask_option",
    [mask.causal(), mask.sliding_window(9), mask.chunked(16), mask.causal() & mask.sliding_window(20)],
    ids=str,
)
@pytest.mark.parametrize("n_q, n_k", [(64, 64), (50, 70), (70, 33)])
def test_visited_pairs_are_those_of_nonempty_tiles(mask_option: Mask, n_q: int, n_k: int) -> None:
    cost = cost_of(spec(n_q=n_q, n_k=n_k, mask=mask_option))
    dense = mask_option.to_dense(n_q, n_k)[0, 0]
    visited = 0
    for i in range(0, n_q, TILES.tile_queries):
        for j in range(0, n_k, TILES.tile_keys):
            tile = dense[i : i + TILES.tile_queries, j : j + TILES.tile_keys]
            visited += tile.numel() if tile.any() else 0
    assert cost.visited_pairs == 8 * visited
    assert cost.pairs == 8 * n_q * n_k


def test_mask_per_head_is_counted_per_head() -> None:
    cost = cost_of(spec(mask=lambda b, h, i, j: j < 16 * h))
    assert cost.visited_pairs == 2 * 64 * 16 * (0 + 1 + 2 + 3)


def test_mask_with_unknown_tensors_counts_every_pair() -> None:
    assert cost_of(spec(mask=mask.padding([3, 4]))).visited_pairs == 2 * 4 * 64 * 64


def test_cost_of_additive_scores_grows_with_their_dimension() -> None:
    w = torch.ones(16, 10)
    cost = cost_of(spec(score=score.additive(w, w, torch.ones(10))))
    assert cost.flops == cost.visited_pairs * (3 * 10 + 2 * 24)
    assert cost.extra_memory > 10 * cost_of(spec()).extra_memory / 2


def test_extra_memory_grows_with_rows_or_with_pairs() -> None:
    def extra(n: int, linear: bool) -> int:
        return cost_of(spec(n_q=n, n_k=n), linear_memory=linear).extra_memory

    assert extra(2**14, True) - extra(2**13, True) == 2 * 4 * 2**13 * 4  # one float32 per row
    assert extra(128, False) == 4 * extra(64, False)


def test_keys_are_read_once_per_strip() -> None:
    cost = cost_of(spec())
    rows, keys, strips = 2 * 4 * 64, 2 * 4 * 64, 64 // 16
    assert cost.bytes_moved == 4 * (rows * 40 + keys * 40 * strips)
    half = cost_of(spec(dtype=torch.bfloat16))
    assert half.bytes_moved * 2 == cost.bytes_moved
    shared = cost_of(spec(kv_heads=1))
    assert shared.bytes_moved == 4 * (rows * 40 + keys // 4 * 40 * strips)


@pytest.mark.parametrize("lengths", [{"n_q": 0}, {"n_k": 0}, {"batch": 0}])
def test_empty_call_costs_nothing(lengths: dict[str, int]) -> None:
    cost = cost_of(spec(**lengths, mask=mask.causal()))
    assert (cost.pairs, cost.visited_pairs, cost.flops) == (0, 0, 0)
    assert str(Plan(spec(**lengths), "some", TILES, True))


def report_lines(call_spec: CallSpec, reasons: dict[str, tuple[str, ...]] | None = None) -> list[str]:
    candidates = tuple(Stub(name, reasons) for name, reasons in (reasons or {}).items())
    return str(Plan(call_spec, "some", TILES, True, candidates=candidates)).split("\n")


def test_report_shows_formula_shape_and_backend() -> None:
    lines = report_lines(spec(mask=mask.causal(), score=score.softcap(5.0), normalizer=normalizer.sigmoid()))
    assert lines[0] == "formula  o = sigmoid(5.0 * tanh(s / 5.0) with s = q·k / √d, masked by j <= p) v"
    assert lines[1] == "shape    batch 2, heads 4, 64 queries, 64 keys, head dim 16, value dim 24, float32 on cpu"
    assert lines[2] == "backend  some, tiles of 16 x 8"


def test_report_shows_key_value_heads() -> None:
    assert "heads 4 (2 key-value heads)" in report_lines(spec(kv_heads=2))[1]


def test_report_shows_why_other_backends_do_not_run() -> None:
    lines = report_lines(
        spec(), {"shy": ("it does not support bias", "it does not support dropout"), "some": (), "able": ()}
    )
    assert "         not shy: it does not support bias; it does not support dropout" in lines
    assert "         not able: supported, but not chosen" in lines
    assert not any("not some" in line for line in lines)


def test_report_shows_the_tiles() -> None:
    assert "tiles    all full (no mask)" in report_lines(spec())
    causal = report_lines(spec(mask=mask.causal()))
    assert "tiles    12 full, 8 partial, 12 empty and skipped (37.5%)" in causal
    assert "tiles    depend on the mask's tensors, which are not known here; all are counted" in report_lines(
        spec(mask=mask.padding([1, 2]))
    )


def test_report_shows_the_cost() -> None:
    call_spec = spec(mask=mask.causal())
    cost = cost_of(call_spec)
    text = format_plan(call_spec, "some", "", TILES, {}, cost, None)
    assert "; 62.5% of the pairs visited" in text
    assert f"{cost.flops / 1e6:.3g} MFLOP" in text
    assert f"backward {cost.flops * 2.5 / 1e6:.3g} MFLOP" in text
    assert f"{cost.bytes_moved / 2**10:.3g} KiB moved" in text
    assert "second order and forward mode about 48 MiB" in text


@pytest.mark.parametrize("n, flops", [(8, "41 kFLOP"), (64, "2.62 MFLOP"), (2048, "2.68 GFLOP"), (65536, "2.75 TFLOP")])
def test_numbers_are_printed_with_a_fitting_unit(n: int, flops: str) -> None:
    shape = (2, 4, n, 16)
    call_spec = parse_call(AttentionCall(shape, shape, (2, 4, n, 24))).spec
    assert flops in str(choose_backend(call_spec, (Stub("some"),)))
