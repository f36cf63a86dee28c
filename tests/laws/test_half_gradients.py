"""Gradients in half precision: the rounding of the output must not reach them."""

import pytest
import torch

import regard
from regard import mask

from . import cases, direct

HALVES = [torch.bfloat16, torch.float16]
every_half = pytest.mark.parametrize("dtype", HALVES, ids=str)


@every_half
@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_a_query_that_sees_one_key_passes_no_gradient_to_the_scores(engine, dtype, dropout):
    """One key has weight 1 whatever its score is: the difference that makes dq and dk is exactly 0."""
    problem = cases.Problem(batch=1, heads=2, key_heads=1, n_q=40, n_k=40, width=16, width_v=32, seed=3)
    q, k, v = cases.leaves(*(x * 2 for x in problem.tensors(dtype)))

    output = cases.attention(engine, q, k, v, mask=mask.window(1), dropout=dropout, seed=1)
    d_q, d_k = torch.autograd.grad(output.sum(), (q, k))

    # sums of 32 products in float32: some units of 1e-7 times numbers of size 10; a rounded output is off by 1e-1
    assert float(d_q.abs().max()) < 1e-4
    assert float(d_k.abs().max()) < 1e-4


@every_half
@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_gradients_are_as_exact_as_rounding_each_number_once(engine, dtype, dropout):
    """Nearly every query sees one key or has one that is far ahead, so that dk is a small difference."""
    if engine == "fused":
        pytest.skip("torch differentiates its own kernel, and rounds to half precision on the way")
    problem = cases.Problem(batch=1, heads=2, key_heads=2, n_q=64, n_k=64, width=16, width_v=32, seed=4)
    q, k, v = problem.tensors(dtype)
    q, k, v = cases.leaves(q * 4, k, v)
    weights = problem.normal(1, 2, 64, 32).to(dtype)
    kept = None
    if dropout:
        equal, each = torch.zeros(1, 2, 64, 16), torch.eye(64).expand(1, 2, 64, 64)
        shown = regard.attention(equal, equal, each, dropout=dropout, seed=1, engine="reference")
        kept = (shown != 0).double() / (1 - dropout)

    output = cases.attention(engine, q, k, v, mask=mask.window(2), dropout=dropout, seed=1)
    found = torch.autograd.grad(output, (q, k, v), weights)
    exact = direct.attention(q, k, v, mask=direct.window(2), kept=kept).output
    expected = torch.autograd.grad(exact, (q, k, v), weights.double())

    for got, right in zip(found, expected, strict=True):
        # half a unit in the last place of the result, and sums in float32
        bound = torch.finfo(dtype).eps * right.double().abs() + 1e-5
        assert bool(((got.double() - right.double()).abs() <= bound).all())
