"""A fully masked query has output 0, gradient 0 and lse -inf, never NaN."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard import mask, normalizer, score

from . import cases, direct

NORMALIZERS = {
    "softmax": (normalizer.softmax(), direct.softmax()),
    "sink": (normalizer.sink(0.5), direct.sink(0.5)),
    "sigmoid": (normalizer.sigmoid(0.5), direct.sigmoid(0.5)),
    "relu": (normalizer.relu(), direct.relu()),
    "sparsemax": (normalizer.sparsemax(), direct.sparsemax()),
    "entmax": (normalizer.entmax(1.3), direct.entmax(1.3)),
    "topk": (normalizer.topk(2), direct.topk(2)),
    "hardmax": (normalizer.hardmax(), direct.hardmax()),
}
every_normalizer = pytest.mark.parametrize("normalizer_name", NORMALIZERS)


def mask_with_empty_rows(problem):
    """Return a mask that hides all keys of about half of the queries, and those queries (batch, heads, n_q)."""
    visible = problem.random_mask(problem.batch_size, problem.num_heads, problem.n_q, problem.n_k, probability=0.7)
    visible = visible & problem.random_mask(problem.batch_size, problem.num_heads, problem.n_q, 1, salt=2)
    return visible, ~visible.any(-1)


@every_normalizer
@given(problem=cases.problems())
@cases.examples(12)
def test_a_fully_masked_query_returns_zero(backend, normalizer_name, problem):
    q, k, v = problem.tensors(cases.dtype_of(backend))
    visible, masked_rows = mask_with_empty_rows(problem)
    tested, reference = NORMALIZERS[normalizer_name]

    output = cases.attention(backend, q, k, v, mask=visible, normalizer=tested)

    assert (output[masked_rows] == 0).all()
    cases.close(output, direct.attention(q, k, v, mask=lambda where: visible, normalizer=reference).output, backend)


@every_normalizer
@given(problem=cases.problems())
@cases.examples(12)
def test_a_fully_masked_query_has_zero_gradient(backend, normalizer_name, problem):
    q, k, v = cases.leaves(*problem.tensors(cases.dtype_of(backend)))
    visible, masked_rows = mask_with_empty_rows(problem)
    tested, reference = NORMALIZERS[normalizer_name]
    weights = problem.normal(problem.batch_size, problem.num_heads, problem.n_q, problem.value_dim)

    grads = cases.gradients(cases.attention(backend, q, k, v, mask=visible, normalizer=tested), (q, k, v), weights)
    expected = cases.gradients(
        direct.attention(q, k, v, mask=lambda where: visible, normalizer=reference).output, (q, k, v), weights
    )

    assert (grads[0][masked_rows] == 0).all()
    for grad, expected_grad in zip(grads, expected, strict=True):
        cases.close(grad, expected_grad, backend, times=5)


@given(problem=cases.problems(), normalizer_name=st.sampled_from(["softmax", "sink"]))
@cases.examples(15)
def test_the_lse_of_a_fully_masked_query_is_minus_infinity(backend, problem, normalizer_name):
    q, k, v = problem.tensors(cases.dtype_of(backend))
    visible, masked_rows = mask_with_empty_rows(problem)

    result = cases.attention_with_weights(backend, q, k, v, mask=visible, normalizer=NORMALIZERS[normalizer_name][0])

    assert (result.lse[masked_rows] == -math.inf).all()
    cases.close(result.lse, direct.attention(q, k, v, mask=lambda where: visible).lse, backend)


@every_normalizer
@given(problem=cases.problems())
@cases.examples(10)
def test_a_mask_that_hides_everything_gives_zeros(backend, normalizer_name, problem):
    q, k, v = cases.leaves(*problem.tensors(cases.dtype_of(backend)))

    output = cases.attention(
        backend, q, k, v, mask=lambda b, h, i, j: j < 0, normalizer=NORMALIZERS[normalizer_name][0]
    )
    grads = cases.gradients(output, (q, k, v), torch.ones_like(output))

    for tensor in (output, *grads):
        cases.equal(tensor, torch.zeros_like(tensor))


@every_normalizer
def test_a_query_without_keys_is_fully_masked(backend, normalizer_name):
    q, k, v = cases.leaves(*cases.Problem(2, 2, 1, 3, 0, 4, 5, seed=1).tensors(cases.dtype_of(backend)))

    result = cases.attention_with_weights(backend, q, k, v, normalizer=NORMALIZERS[normalizer_name][0])
    grads = cases.gradients(result.output, (q, k, v), torch.ones_like(result.output))

    cases.equal(result.output, torch.zeros(2, 2, 3, 5, dtype=q.dtype))
    cases.equal(grads[0], torch.zeros_like(q))
    if normalizer_name in ("softmax", "sink"):
        assert (result.lse == -math.inf).all()


@given(problem=cases.problems())
@cases.examples(12)
def test_a_fully_masked_query_may_be_nan(backend, problem):
    dtype = cases.dtype_of(backend)
    q, k, v = problem.tensors(dtype)
    visible, masked_rows = mask_with_empty_rows(problem)
    poisoned = q.masked_fill(masked_rows.unsqueeze(-1), math.nan)
    weights = problem.normal(problem.batch_size, problem.num_heads, problem.n_q, problem.value_dim, dtype=dtype)

    clean, poisoned_leaves = cases.leaves(q, k, v), cases.leaves(poisoned, k, v)
    expected = cases.attention(backend, *clean, mask=visible)
    output = cases.attention(backend, *poisoned_leaves, mask=visible)

    cases.close(output, expected, backend)
    assert (output[masked_rows] == 0).all()
    for grad, expected_grad in zip(
        cases.gradients(output, poisoned_leaves, weights), cases.gradients(expected, clean, weights), strict=True
    ):
        cases.close(grad, expected_grad, backend, times=5)


@given(problem=cases.problems())
@cases.examples(10)
def test_captured_tensors_get_zero_gradient_from_fully_masked_queries(backend, problem):
    dtype = cases.dtype_of(backend)
    q, k, v = problem.tensors(dtype)
    visible, masked_rows = mask_with_empty_rows(problem)
    (bias,) = cases.leaves(problem.normal(problem.batch_size, problem.num_heads, problem.n_q, problem.n_k, dtype=dtype))

    output = cases.attention(backend, q, k, v, score=score.bias(bias), mask=visible)
    (grad,) = cases.gradients(output, (bias,), torch.ones_like(output))

    assert (grad[~visible] == 0).all()
    assert (grad[masked_rows] == 0).all()


def test_fully_masked_queries_beyond_the_first_tile_return_zero(backend):
    problem = cases.Problem(
        batch_size=1, num_heads=1, num_kv_heads=1, n_q=300, n_k=300, head_dim=3, value_dim=3, seed=6
    )
    q, k, v = cases.leaves(*problem.tensors(cases.dtype_of(backend)))
    masked_rows = [0, 127, 128, 200, 256, 299]
    visible = torch.ones(300, dtype=torch.bool)
    visible[masked_rows] = False

    result = cases.attention_with_weights(backend, q, k, v, mask=mask.from_function(lambda b, h, i, j: visible[i]))
    (grad,) = cases.gradients(result.output, (q,), torch.ones_like(result.output))

    assert (result.output[0, 0, masked_rows] == 0).all()
    assert (grad[0, 0, masked_rows] == 0).all()
    assert (result.lse[0, 0] == -math.inf).nonzero().flatten().tolist() == masked_rows


@given(problem=cases.problems())
@cases.examples(10)
def test_the_second_derivative_of_a_fully_masked_query_is_zero(backend, problem):
    q, k, v = cases.leaves(*problem.tensors(cases.dtype_of(backend)))
    visible, masked_rows = mask_with_empty_rows(problem)

    output = cases.attention(backend, q, k, v, mask=visible)
    first = torch.autograd.grad(output.square().sum(), (q, k, v), create_graph=True)
    second = torch.autograd.grad(sum(g.square().sum() for g in first), (q, k, v), allow_unused=True)

    assert all(s is None or s.isfinite().all() for s in second)
    assert second[0] is None or (second[0][masked_rows] == 0).all()
