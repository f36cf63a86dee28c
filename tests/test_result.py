"""The result of `attention_with_weights`: output, lse, plan and seed."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from torch import Tensor

import regard
from regard import mask, normalizer, score
from regard.errors import ArgumentError
from tests.random_tensors import normal

every_backend = pytest.mark.parametrize("backend", regard.available_backends())
EXACT = dict(rtol=1e-12, atol=1e-13)  # float64, sums of about ten terms


def inputs(*leading: int) -> tuple[Tensor, Tensor, Tensor]:
    return normal(*leading, 5, 3, seed=1), normal(*leading, 7, 3, seed=2), normal(*leading, 7, 4, seed=3)


@every_backend
@pytest.mark.parametrize("leading", [(), (2,), (2, 3), (2, 2, 3)])
def test_output_equals_attention_bit_for_bit(backend, leading):
    q, k, v = inputs(*leading)

    result = regard.attention_with_weights(q, k, v, mask=mask.causal(), backend=backend)

    assert result.output.shape == (*leading, 5, 4)
    assert torch.equal(result.output, regard.attention(q, k, v, mask=mask.causal(), backend=backend))


@every_backend
@pytest.mark.parametrize("leading", [(), (2,), (2, 3), (2, 2, 3)])
def test_lse_is_the_logsumexp_of_each_row(backend, leading):
    q, k, v = inputs(*leading)

    result = regard.attention_with_weights(q, k, v, backend=backend)

    assert result.lse.shape == (*leading, 5)
    torch.testing.assert_close(result.lse, torch.logsumexp(q @ k.mT / math.sqrt(3), dim=-1), **EXACT)


@every_backend
def test_lse_of_a_fully_masked_query_is_minus_infinity(backend):
    q, k, v = inputs()

    result = regard.attention_with_weights(q, k, v, mask=lambda b, h, i, j: i > 1, backend=backend)

    assert result.lse[:2].tolist() == [-math.inf, -math.inf]
    assert bool(torch.isfinite(result.lse[2:]).all())
    assert torch.equal(result.output[:2], torch.zeros(2, 4, dtype=torch.float64))


@every_backend
def test_lse_includes_modifiers_and_masks(backend):
    q, k, v = inputs()
    table = normal(5, 7, seed=4)

    result = regard.attention_with_weights(q, k, v, score=score.bias(table), mask=mask.causal(), backend=backend)

    scores = (q @ k.mT / math.sqrt(3) + table).masked_fill(~mask.causal().to_dense(5, 7)[0, 0], -math.inf)
    torch.testing.assert_close(result.lse, torch.logsumexp(scores, dim=-1), **EXACT)


@every_backend
def test_lse_excludes_the_sink(backend):
    q, k, v = inputs()

    with_sink = regard.attention_with_weights(q, k, v, normalizer=normalizer.sink(2.0), backend=backend)

    assert torch.equal(with_sink.lse, regard.attention_with_weights(q, k, v, backend=backend).lse)
    torch.testing.assert_close(
        with_sink.output, torch.sigmoid(with_sink.lse - 2.0).unsqueeze(-1) * regard.attention(q, k, v), **EXACT
    )


@every_backend
@pytest.mark.parametrize("option, name", [(normalizer.sigmoid(), "sigmoid"), (normalizer.relu(), "relu")])
def test_lse_of_normalizers_without_a_statistic_raises(backend, option, name):
    result = regard.attention_with_weights(*inputs(), normalizer=option, backend=backend)

    with pytest.raises(
        ArgumentError, match=f"lse requires the softmax or sink normalizer; got {name}, which has no statistic"
    ):
        _ = result.lse


@every_backend
def test_lse_is_differentiable(backend):
    q, k, v = inputs()
    q, k = q.requires_grad_(), k.requires_grad_()

    lse = regard.attention_with_weights(q, k, v, mask=mask.causal(), backend=backend).lse
    grads = torch.autograd.grad(lse, (q, k), torch.arange(1.0, 6.0).double())

    scores = (q @ k.mT / math.sqrt(3)).masked_fill(~mask.causal().to_dense(5, 7)[0, 0], -math.inf)
    expected = torch.autograd.grad(torch.logsumexp(scores, -1), (q, k), torch.arange(1.0, 6.0).double())
    for grad, expected_grad in zip(grads, expected, strict=True):
        torch.testing.assert_close(grad, expected_grad, **EXACT)


@every_backend
def test_one_loss_may_use_output_lse_and_weights(backend):
    q, k, v = (x.requires_grad_() for x in inputs())

    def loss(output: Tensor, lse: Tensor, weights: Tensor) -> Tensor:
        return (output.square().sum() + (lse * torch.arange(5)).sum()) * weights.square().sum()

    result = regard.attention_with_weights(q, k, v, backend=backend)
    scores = q @ k.mT / math.sqrt(3)
    weights = torch.softmax(scores, -1)
    grads = torch.autograd.grad(loss(result.output, result.lse, result.weights[1:3]), (q, k, v))
    expected = torch.autograd.grad(loss(weights @ v, torch.logsumexp(scores, -1), weights[1:3]), (q, k, v))

    for grad, expected_grad in zip(grads, expected, strict=True):
        torch.testing.assert_close(grad, expected_grad, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_lse_is_float32_for_half_precision(dtype):
    q, k, v = (x.to(dtype) for x in inputs())

    result = regard.attention_with_weights(q, k, v)

    assert result.output.dtype == dtype
    assert result.lse.dtype == torch.float32


def test_numpy_inputs_give_numpy_results():
    q, k, v = (x.numpy() for x in inputs(2))

    result = regard.attention_with_weights(q, k, v)

    assert isinstance(result.output, np.ndarray)
    assert isinstance(result.lse, np.ndarray)
    np.testing.assert_allclose(result.lse, np.log(np.exp(q @ k.swapaxes(-1, -2) / math.sqrt(3)).sum(-1)), rtol=1e-12)


def test_plan_equals_that_of_explain():
    q, k, v = inputs()

    result = regard.attention_with_weights(q, k, v, mask=mask.causal())
    plan = regard.explain(q, k, v, mask=mask.causal())

    assert result.plan == plan
    assert str(result.plan) == str(plan)


@every_backend
def test_plan_names_the_backend(backend):
    assert regard.attention_with_weights(*inputs(), backend=backend).plan.backend == backend


def test_the_returned_seed_reproduces_the_dropout():
    q, k, v = inputs()

    result = regard.attention_with_weights(q, k, v, dropout=0.5)

    assert torch.equal(regard.attention(q, k, v, dropout=0.5, seed=result.seed), result.output)
    assert regard.attention_with_weights(q, k, v, dropout=0.5).seed != result.seed
    assert regard.attention_with_weights(q, k, v, dropout=0.5, seed=7).seed == 7


def test_result_is_frozen():
    result = regard.attention_with_weights(*inputs())

    with pytest.raises(dataclasses.FrozenInstanceError):
        result.output = None  # type: ignore[misc]
