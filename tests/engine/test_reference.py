"""The engine that defines correct: float64 inside, every pair at once, and an honest word about size."""

import math

import pytest
import torch
from torch import Tensor

import regard
from regard import mask, score, weigh
from regard.engine.reference import LIMIT
from regard.errors import EngineError


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def test_it_is_the_textbook_formula():
    q, k, v = (normal(2, 3, 6, 4, seed=s) for s in (1, 2, 3))

    found = regard.attend(q, k, v, engine="reference")

    scores = q @ k.mT / 2.0
    torch.testing.assert_close(found.output, torch.softmax(scores, -1) @ v, rtol=1e-14, atol=1e-14)
    torch.testing.assert_close(found.lse, torch.logsumexp(scores, -1), rtol=1e-14, atol=1e-14)


LOW = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
OPTIONS = {
    "plain": dict,
    "causal": lambda: dict(mask=mask.causal()),
    "sink": lambda: dict(weigh=weigh.sink(0.5)),
    "sigmoid": lambda: dict(weigh=weigh.sigmoid(-1.0)),
    "relu": lambda: dict(weigh=weigh.relu()),
    "softcap": lambda: dict(score=score.softcap(2.0)),
}


@LOW
@pytest.mark.parametrize("name", ["plain", "causal", "softcap", "sigmoid"])
def test_lower_precision_is_computed_in_float64_and_rounded_once(dtype, name):
    q, k, v = (normal(2, 30, 8, seed=s, dtype=dtype) for s in (1, 2, 3))

    found = regard.attention(q, k, v, engine="reference", **OPTIONS[name]())

    exact = regard.attention(q.double(), k.double(), v.double(), engine="reference", **OPTIONS[name]())
    assert torch.equal(found, exact.to(dtype))


@LOW
@pytest.mark.parametrize("name", ["plain", "causal", "softcap", "sigmoid"])
def test_gradients_of_lower_precision_are_computed_in_float64_and_rounded_once(dtype, name):
    x = [normal(2, 30, 8, seed=s, dtype=dtype) for s in (1, 2, 3)]
    pull = normal(2, 30, 8, seed=4, dtype=dtype)

    found, exact = (
        torch.autograd.grad(
            regard.attention(*leaves, engine="reference", **OPTIONS[name]()), leaves, pull.to(leaves[0].dtype)
        )
        for leaves in ([t.clone().requires_grad_() for t in x], [t.double().requires_grad_() for t in x])
    )

    for a, b in zip(found, exact, strict=True):
        assert torch.equal(a, b.to(dtype))


@pytest.mark.parametrize("name", OPTIONS)
def test_it_agrees_with_tiled_to_the_last_digits(name):
    x = [normal(2, 2, 300, 6, seed=s) for s in (1, 2, 3)]
    pull = normal(2, 2, 300, 6, seed=4)
    results = []
    for engine in ("reference", "tiled"):
        leaves = [t.clone().requires_grad_() for t in x]
        output = regard.attention(*leaves, engine=engine, **OPTIONS[name]())
        results.append((output, *torch.autograd.grad(output, leaves, pull)))

    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-12)  # sums of 300 terms in float64


def test_it_runs_only_when_asked_for():
    q = normal(5, 3)

    plan = regard.explain(q, q, q)

    assert plan.engine != "reference"
    assert plan.objections["reference"] == ("it keeps every pair in memory, so it runs only when asked for by name",)
    assert regard.explain(q, q, q, engine="reference").engine == "reference"
    assert "reference" in regard.engines()


def test_it_objects_to_size_and_says_how_much():
    n = math.isqrt(LIMIT)
    fits, too_many = (1, 1, n, 8), (1, 1, n + 1, 8)

    assert regard.explain(fits, fits, fits, engine="reference").engine == "reference"
    with pytest.raises(EngineError, match=rf"{(n + 1) ** 2:,} are more than {LIMIT:,}"):
        regard.explain(too_many, too_many, too_many, engine="reference")
    with pytest.raises(EngineError, match="reference"):
        regard.attention(*(torch.empty(2, 2, n, 1) for _ in range(3)), engine="reference")


def test_its_plan_says_that_it_keeps_every_pair():
    shape = (2, 4, 100, 8)

    reference, tiled = (regard.explain(shape, shape, shape, engine=name) for name in ("reference", "tiled"))

    assert not reference.linear_memory
    assert tiled.linear_memory
    assert reference.cost.extra_memory >= 2 * 4 * 100 * 100 * 8
    longer = (2, 4, 200, 8)
    assert regard.explain(longer, longer, longer, engine="reference").cost.extra_memory == (
        4 * reference.cost.extra_memory
    )
