"""Tiles of the attention matrix: the native kernels agree with torch operations."""

from dataclasses import replace
from typing import Any

import pytest
import torch

import regard
from regard import mask, measure, normalizer, score
from regard.backends.native.backend import KernelBuild, NativeBackend, builds
from regard.backends.registry import BACKENDS_BY_NAME
from regard.backends.shared.autograd import differentiable_forward
from regard.backends.shared.weight_tiles import TorchWeightTiles, WeightInputs, WeightTileRequest
from regard.call.attention_call import AttentionCall
from regard.call.parse import parse_call
from regard.plan.tiling import call_coverage, query_strips

pytestmark = pytest.mark.skipif(not builds(), reason="regard was installed without a C++ compiler")

WIDE = [torch.linspace(-1, 1, 128).view(8, 16), torch.linspace(1, -2, 128).view(8, 16), torch.linspace(-2, 2, 16)]
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": dict(mask=mask.causal()),
    "window": dict(mask=mask.sliding_window(70)),
    "one batch element": dict(mask=lambda b, h, i, j: b == 1),
    "by head": dict(mask=lambda b, h, i, j: (j * 7 + h * 3 + i) % 5 != 3),
    "alibi": dict(score=score.alibi(), mask=mask.causal()),
    "softcap": dict(score=score.softcap(1.0)),
    "additive": dict(score=score.additive(*WIDE), mask=mask.causal()),
}
SHAPES = [(4, 2, 500, 700), (2, 2, 7, 301), (4, 1, 97, 16), (1, 1, 1, 1)]


@pytest.mark.parametrize("build", builds(), ids=lambda b: b.name)
@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_weight_tiles_agree_with_torch(
    build: KernelBuild, name: str, dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    heads, kv_heads, n_q, n_k = shape
    numbers = torch.Generator().manual_seed(n_q)
    q = torch.randn(2, heads, n_q, 8, generator=numbers).to(dtype)
    k, v = (torch.randn(2, kv_heads, n_k, 8, generator=numbers).to(dtype) for _ in range(2))
    call = parse_call(AttentionCall(q, k, v, **OPTIONS[name]))
    spec, inputs, backend = call.spec, call.prepare_inputs(), NativeBackend(BACKENDS_BY_NAME["tiled"], build)
    _, lse = differentiable_forward(backend, spec, backend.tiling(spec), inputs)[:2]
    assert lse is not None

    ours = backend.weight_tiles(spec, inputs, backend.tiling(spec), lse)
    assert ours is not None
    request = WeightTileRequest(all_pairs=True, entropy=True, column_sums=True, max_weight=True, cell_size=7)
    tiles = ours.tiling(request)
    theirs = TorchWeightTiles(WeightInputs(spec, inputs, lse), tiles)
    pairs = 0
    for strip in query_strips(spec, call_coverage(spec, inputs.tensors, inputs.query_offset, tiles), tiles):
        for keys, is_full in strip.keys:
            tile, expected = (
                ours.compute_tile(strip, keys, is_full, request),
                theirs.compute_tile(strip, keys, is_full, request),
            )
            assert tile.scores is not None and tile.weights is not None
            assert expected.scores is not None and expected.weights is not None
            assert torch.equal(tile.scores == -torch.inf, expected.scores == -torch.inf)
            torch.testing.assert_close(tile.scores, expected.scores, rtol=1e-5, atol=3e-5)
            torch.testing.assert_close(tile.weights, expected.weights, rtol=8e-5, atol=1e-7)
            assert tile.entropy is not None and tile.cell_statistics is not None
            entropy = torch.special.entr(expected.weights).sum(-1)
            torch.testing.assert_close(tile.entropy, entropy, rtol=8e-5, atol=5e-6)
            padded = torch.nn.functional.pad(tile.weights, (keys.start % 7, -keys.stop % 7)).unflatten(-1, (-1, 7))
            torch.testing.assert_close(tile.cell_statistics[0], padded.sum(-1), rtol=1e-5, atol=1e-7)
            assert torch.equal(tile.cell_statistics[1], padded.amax(-1))
            assert tile.column_sums is not None and tile.max_weight is not None
            torch.testing.assert_close(
                tile.column_sums, tile.weights.sum(-2, dtype=torch.float64), rtol=1e-5, atol=1e-6
            )
            best, argmax = tile.scores.max(-1)
            assert torch.equal(tile.max_weight[1], torch.where(best == -torch.inf, -1, argmax + keys.start).int())
            max_weight = torch.where(best == -torch.inf, -1.0, tile.weights.amax(-1))
            torch.testing.assert_close(tile.max_weight[0], max_weight, rtol=1e-5, atol=1e-7)
            pairs += tile.weights.numel()
            statistics = [x.clone() for x in (tile.entropy, tile.column_sums, *tile.max_weight, *tile.cell_statistics)]
            alone = ours.compute_tile(strip, keys, is_full, replace(request, all_pairs=False))
            assert alone.scores is None and alone.weights is None
            assert alone.entropy is not None and alone.column_sums is not None
            assert alone.max_weight is not None and alone.cell_statistics is not None
            for a, b in zip(
                statistics, (alone.entropy, alone.column_sums, *alone.max_weight, *alone.cell_statistics), strict=True
            ):
                assert torch.equal(a, b)
    assert pairs


def test_measures_use_the_native_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = torch.randn(3, 2, 900, 16)
    tile = regard.attention_with_weights(q, k, v, mask=mask.causal())
    with monkeypatch.context() as without:
        without.setattr(TorchWeightTiles, "compute_tile", None)  # torch operations must not run
        entropy, received, pooled = tile.weights.measure(
            measure.entropy, measure.column_mass, measure.pooled_map(30, 30)
        )

    weights = tile.weights.to_dense().double()
    torch.testing.assert_close(entropy.double(), torch.special.entr(weights).sum(-1), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(received.double(), weights.sum(-2), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(
        pooled.mean.double(),
        weights.unflatten(-1, (30, 30)).unflatten(-3, (30, 30)).mean((-3, -1)),
        rtol=1e-5,
        atol=1e-7,
    )


def test_measured_weights_include_the_sink() -> None:
    q, k, v = torch.randn(3, 2, 50, 16)
    tile = regard.attention_with_weights(q, k, v, normalizer=normalizer.sink(1.0))
    assert tile.plan.backend == "native"

    weights = tile.weights.to_dense().double()

    entropy = tile.weights.measure(measure.entropy).entropy
    torch.testing.assert_close(entropy.double(), torch.special.entr(weights).sum(-1), rtol=1e-5, atol=1e-6)
