"""Gradients in half precision do not depend on the rounding of the output."""

import pytest
import torch

import regard
from regard import mask

from . import cases, direct

HALF_DTYPES = [torch.bfloat16, torch.float16]
every_half_dtype = pytest.mark.parametrize("dtype", HALF_DTYPES, ids=str)


@every_half_dtype
@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_a_query_with_one_key_passes_no_gradient_to_the_scores(backend, dtype, dropout):
    """A single key has weight 1 for any score, so dq and dk are 0."""
    problem = cases.Problem(
        batch_size=1, num_heads=2, num_kv_heads=1, n_q=40, n_k=40, head_dim=16, value_dim=32, seed=3
    )
    q, k, v = cases.leaves(*(x * 2 for x in problem.tensors(dtype)))

    output = cases.attention(backend, q, k, v, mask=mask.sliding_window(1), dropout=dropout, seed=1)
    d_q, d_k = torch.autograd.grad(output.sum(), (q, k))

    # float32 sums of 32 products of size 10 are off by about 1e-6; a rounded output would be off by 1e-1
    assert float(d_q.abs().max()) < 1e-4
    assert float(d_k.abs().max()) < 1e-4


@every_half_dtype
@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_gradients_are_as_precise_as_one_rounding(backend, dtype, dropout):
    """Nearly every query has one dominant key, so that dk is a small difference."""
    if backend == "flex":
        pytest.skip("torch rounds to half precision inside its own backward pass")
    if backend == "native" and dtype == torch.bfloat16:
        backend = "native_float32"  # `native` may round weights and gradients of scores to bfloat16
    problem = cases.Problem(
        batch_size=1, num_heads=2, num_kv_heads=2, n_q=64, n_k=64, head_dim=16, value_dim=32, seed=4
    )
    q, k, v = problem.tensors(dtype)
    q, k, v = cases.leaves(q * 4, k, v)
    weights = problem.normal(1, 2, 64, 32).to(dtype)
    dropout_mask = None
    if dropout:
        zeros, one_hot = torch.zeros(1, 2, 64, 16), torch.eye(64).expand(1, 2, 64, 64)
        uniform_output = regard.attention(zeros, zeros, one_hot, dropout=dropout, seed=1, backend="reference")
        dropout_mask = (uniform_output != 0).double() / (1 - dropout)

    output = cases.attention(backend, q, k, v, mask=mask.sliding_window(2), dropout=dropout, seed=1)
    grads = torch.autograd.grad(output, (q, k, v), weights)
    exact = direct.attention(q, k, v, mask=direct.sliding_window(2), dropout_mask=dropout_mask).output
    expected = torch.autograd.grad(exact, (q, k, v), weights.double())

    for grad, expected_grad in zip(grads, expected, strict=True):
        # half a unit in the last place of the result, plus float32 sums
        bound = torch.finfo(dtype).eps * expected_grad.double().abs() + 1e-5
        assert bool(((grad.double() - expected_grad.double()).abs() <= bound).all())
