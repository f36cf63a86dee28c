"""The reference backend defines correctness: it computes all pairs at once, in float64."""

import math

import pytest
import torch

import regard
from regard import mask, normalizer, score
from regard.backends.reference import MAX_PAIRS
from regard.errors import BackendError
from tests.random_tensors import normal


def test_reference_is_the_textbook_formula():
    q, k, v = (normal(2, 3, 6, 4, seed=s) for s in (1, 2, 3))

    actual = regard.attention_with_weights(q, k, v, backend="reference")

    scores = q @ k.mT / 2.0
    torch.testing.assert_close(actual.output, torch.softmax(scores, -1) @ v, rtol=1e-14, atol=1e-14)
    torch.testing.assert_close(actual.lse, torch.logsumexp(scores, -1), rtol=1e-14, atol=1e-14)


LOW = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
OPTIONS = {
    "plain": dict,
    "causal": lambda: dict(mask=mask.causal()),
    "sink": lambda: dict(normalizer=normalizer.sink(0.5)),
    "sigmoid": lambda: dict(normalizer=normalizer.sigmoid(-1.0)),
    "relu": lambda: dict(normalizer=normalizer.relu()),
    "softcap": lambda: dict(score=score.softcap(2.0)),
}


@LOW
@pytest.mark.parametrize("name", ["plain", "causal", "softcap", "sigmoid"])
def test_lower_precision_is_computed_in_float64_and_rounded_once(dtype, name):
    q, k, v = (normal(2, 30, 8, seed=s, dtype=dtype) for s in (1, 2, 3))

    actual = regard.attention(q, k, v, backend="reference", **OPTIONS[name]())

    exact = regard.attention(q.double(), k.double(), v.double(), backend="reference", **OPTIONS[name]())
    assert torch.equal(actual, exact.to(dtype))


@LOW
@pytest.mark.parametrize("name", ["plain", "causal", "softcap", "sigmoid"])
def test_gradients_of_lower_precision_are_computed_in_float64_and_rounded_once(dtype, name):
    x = [normal(2, 30, 8, seed=s, dtype=dtype) for s in (1, 2, 3)]
    d_output = normal(2, 30, 8, seed=4, dtype=dtype)

    actual, exact = (
        torch.autograd.grad(
            regard.attention(*leaves, backend="reference", **OPTIONS[name]()), leaves, d_output.to(leaves[0].dtype)
        )
        for leaves in ([t.clone().requires_grad_() for t in x], [t.double().requires_grad_() for t in x])
    )

    for a, b in zip(actual, exact, strict=True):
        assert torch.equal(a, b.to(dtype))


@pytest.mark.parametrize("name", OPTIONS)
def test_reference_agrees_with_tiled_to_the_last_digits(name):
    x = [normal(2, 2, 300, 6, seed=s) for s in (1, 2, 3)]
    d_output = normal(2, 2, 300, 6, seed=4)
    results = []
    for backend in ("reference", "tiled"):
        leaves = [t.clone().requires_grad_() for t in x]
        output = regard.attention(*leaves, backend=backend, **OPTIONS[name]())
        results.append((output, *torch.autograd.grad(output, leaves, d_output)))

    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-12)  # sums of 300 terms in float64


def test_reference_runs_only_if_requested_by_name():
    q = normal(5, 3)

    plan = regard.explain(q, q, q)

    assert plan.backend != "reference"
    assert plan.unsupported_reasons["reference"] == (
        "it stores every score, so it runs only if it is requested by name",
    )
    assert regard.explain(q, q, q, backend="reference").backend == "reference"
    assert "reference" in regard.available_backends()


def test_too_many_pairs_raise_error_with_their_number():
    n = math.isqrt(MAX_PAIRS)
    fits, too_many = (1, 1, n, 8), (1, 1, n + 1, 8)

    assert regard.explain(fits, fits, fits, backend="reference").backend == "reference"
    with pytest.raises(BackendError, match=rf"{(n + 1) ** 2:,} scores are more than its limit of {MAX_PAIRS:,}"):
        regard.explain(too_many, too_many, too_many, backend="reference")
    with pytest.raises(BackendError, match="reference"):
        regard.attention(*(torch.empty(2, 2, n, 1) for _ in range(3)), backend="reference")


def test_plan_of_reference_has_quadratic_memory():
    shape = (2, 4, 100, 8)

    reference, tiled = (regard.explain(shape, shape, shape, backend=name) for name in ("reference", "tiled"))

    assert not reference.has_linear_memory
    assert tiled.has_linear_memory
    assert reference.cost.extra_memory >= 2 * 4 * 100 * 100 * 8
    longer = (2, 4, 200, 8)
    assert regard.explain(longer, longer, longer, backend="reference").cost.extra_memory == (
        4 * reference.cost.extra_memory
    )
