"""Parts of the matrix of weights by the compiled kernels: the same as by torch's operations."""

from dataclasses import replace
from typing import Any

import pytest
import torch

import regard
from regard import mask, measure, score, weigh
from regard.attention import TILED
from regard.engine.gradient import run
from regard.engine.native import Build, Native, builds
from regard.engine.parts import Matrix, PartsByTorch, Wanted
from regard.plan.blocks import blocks, strips
from regard.spec.read import read

pytestmark = pytest.mark.skipif(not builds(), reason="regard was installed without a C++ compiler")

WIDE = [torch.linspace(-1, 1, 128).view(8, 16), torch.linspace(1, -2, 128).view(8, 16), torch.linspace(-2, 2, 16)]
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": dict(mask=mask.causal()),
    "window": dict(mask=mask.window(70)),
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
def test_a_part_is_what_torch_makes_of_it(build: Build, name: str, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    heads, key_heads, n_q, n_k = shape
    numbers = torch.Generator().manual_seed(n_q)
    q = torch.randn(2, heads, n_q, 8, generator=numbers).to(dtype)
    k, v = (torch.randn(2, key_heads, n_k, 8, generator=numbers).to(dtype) for _ in range(2))
    question = read(q, k, v, **OPTIONS[name])
    spec, inputs, engine = question.spec, question.inputs(), Native(TILED, build)
    _, lse = run(engine, spec, engine.tiles(spec), inputs)
    assert lse is not None

    ours = engine.parts(spec, inputs, engine.tiles(spec), lse)
    assert ours is not None
    wanted = Wanted(pairs=True, entropy=True, received=True, largest=True, cell=7)
    tiles = ours.tiles(wanted)
    theirs = PartsByTorch(Matrix(spec, inputs, lse), tiles)
    pairs = 0
    for strip in strips(spec, blocks(spec, inputs.tensors, inputs.start, tiles), tiles):
        for keys, full in strip.keys:
            found, expected = ours.part(strip, keys, full, wanted), theirs.part(strip, keys, full, wanted)
            assert found.scores is not None and found.weights is not None
            assert expected.scores is not None and expected.weights is not None
            assert torch.equal(found.scores == -torch.inf, expected.scores == -torch.inf)
            torch.testing.assert_close(found.scores, expected.scores, rtol=1e-5, atol=3e-5)
            torch.testing.assert_close(found.weights, expected.weights, rtol=8e-5, atol=1e-7)
            assert found.entropy is not None and found.cells is not None
            entropy = torch.special.entr(expected.weights).sum(-1)
            torch.testing.assert_close(found.entropy, entropy, rtol=8e-5, atol=5e-6)
            padded = torch.nn.functional.pad(found.weights, (keys.start % 7, -keys.stop % 7)).unflatten(-1, (-1, 7))
            torch.testing.assert_close(found.cells[0], padded.sum(-1), rtol=1e-5, atol=1e-7)
            assert torch.equal(found.cells[1], padded.amax(-1))
            assert found.received is not None and found.largest is not None
            torch.testing.assert_close(found.received, found.weights.sum(-2, dtype=torch.float64), rtol=1e-5, atol=1e-6)
            best, at = found.scores.max(-1)
            assert torch.equal(found.largest[1], torch.where(best == -torch.inf, -1, at + keys.start).int())
            most = torch.where(best == -torch.inf, -1.0, found.weights.amax(-1))
            torch.testing.assert_close(found.largest[0], most, rtol=1e-5, atol=1e-7)
            pairs += found.weights.numel()
            told = [x.clone() for x in (found.entropy, found.received, *found.largest, *found.cells)]
            alone = ours.part(strip, keys, full, replace(wanted, pairs=False))
            assert alone.scores is None and alone.weights is None
            assert alone.entropy is not None and alone.received is not None
            assert alone.largest is not None and alone.cells is not None
            for a, b in zip(told, (alone.entropy, alone.received, *alone.largest, *alone.cells), strict=True):
                assert torch.equal(a, b)
    assert pairs


def test_the_kernels_measure_what_they_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = torch.randn(3, 2, 900, 16)
    found = regard.attend(q, k, v, mask=mask.causal())
    with monkeypatch.context() as without:
        without.setattr(PartsByTorch, "part", None)  # nobody may ask torch
        entropy, received, pooled = found.weights.measure(measure.entropy, measure.received, measure.pool(30, 30))

    weights = found.weights.dense().double()
    torch.testing.assert_close(entropy.double(), torch.special.entr(weights).sum(-1), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(received.double(), weights.sum(-2), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(
        pooled.mean.double(),
        weights.unflatten(-1, (30, 30)).unflatten(-3, (30, 30)).mean((-3, -1)),
        rtol=1e-5,
        atol=1e-7,
    )


def test_a_sink_takes_its_share_from_what_is_measured() -> None:
    q, k, v = torch.randn(3, 2, 50, 16)
    found = regard.attend(q, k, v, weigh=weigh.sink(1.0))
    assert found.plan.engine == "native"

    weights = found.weights.dense().double()

    entropy = found.weights.measure(measure.entropy).entropy
    torch.testing.assert_close(entropy.double(), torch.special.entr(weights).sum(-1), rtol=1e-5, atol=1e-6)
