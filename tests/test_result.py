"""What a call hands back when it is kept open."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from torch import Tensor

import regard
from regard import mask, score, weigh
from regard.errors import SpecError

every_engine = pytest.mark.parametrize("engine", regard.engines())
EXACT = dict(rtol=1e-12, atol=1e-13)  # float64, sums of some ten terms


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def inputs(*lead: int) -> tuple[Tensor, Tensor, Tensor]:
    return normal(*lead, 5, 3, seed=1), normal(*lead, 7, 3, seed=2), normal(*lead, 7, 4, seed=3)


@every_engine
@pytest.mark.parametrize("lead", [(), (2,), (2, 3), (2, 2, 3)])
def test_the_output_is_that_of_attention_bit_for_bit(engine, lead):
    q, k, v = inputs(*lead)

    found = regard.attend(q, k, v, mask=mask.causal(), engine=engine)

    assert found.output.shape == (*lead, 5, 4)
    assert torch.equal(found.output, regard.attention(q, k, v, mask=mask.causal(), engine=engine))


@every_engine
@pytest.mark.parametrize("lead", [(), (2,), (2, 3), (2, 2, 3)])
def test_lse_is_the_logarithm_of_the_sum_of_exponentials_of_each_row(engine, lead):
    q, k, v = inputs(*lead)

    found = regard.attend(q, k, v, engine=engine)

    assert found.lse.shape == (*lead, 5)
    torch.testing.assert_close(found.lse, torch.logsumexp(q @ k.mT / math.sqrt(3), dim=-1), **EXACT)


@every_engine
def test_lse_of_a_query_that_sees_nothing_is_minus_infinity(engine):
    q, k, v = inputs()

    found = regard.attend(q, k, v, mask=lambda b, h, i, j: i > 1, engine=engine)

    assert found.lse[:2].tolist() == [-math.inf, -math.inf]
    assert bool(torch.isfinite(found.lse[2:]).all())
    assert torch.equal(found.output[:2], torch.zeros(2, 4, dtype=torch.float64))


@every_engine
def test_lse_counts_what_rules_and_masks_leave(engine):
    q, k, v = inputs()
    table = normal(5, 7, seed=4)

    found = regard.attend(q, k, v, score=score.bias(table), mask=mask.causal(), engine=engine)

    scores = (q @ k.mT / math.sqrt(3) + table).masked_fill(~mask.causal().dense(5, 7)[0, 0], -math.inf)
    torch.testing.assert_close(found.lse, torch.logsumexp(scores, dim=-1), **EXACT)


@every_engine
def test_lse_with_a_sink_is_the_one_without_it(engine):
    q, k, v = inputs()

    with_sink = regard.attend(q, k, v, weigh=weigh.sink(2.0), engine=engine)

    assert torch.equal(with_sink.lse, regard.attend(q, k, v, engine=engine).lse)
    torch.testing.assert_close(
        with_sink.output, torch.sigmoid(with_sink.lse - 2.0).unsqueeze(-1) * regard.attention(q, k, v), **EXACT
    )


@every_engine
@pytest.mark.parametrize("weighing, name", [(weigh.sigmoid(), "sigmoid"), (weigh.relu(), "relu")])
def test_weighings_without_a_row_statistic_say_so_when_lse_is_asked_for(engine, weighing, name):
    found = regard.attend(*inputs(), weigh=weighing, engine=engine)

    with pytest.raises(SpecError, match=f"lse must come from softmax or a sink; {name} has no row statistic"):
        _ = found.lse


@every_engine
def test_lse_is_differentiable(engine):
    q, k, v = inputs()
    q, k = q.requires_grad_(), k.requires_grad_()

    lse = regard.attend(q, k, v, mask=mask.causal(), engine=engine).lse
    found = torch.autograd.grad(lse, (q, k), torch.arange(1.0, 6.0).double())

    scores = (q @ k.mT / math.sqrt(3)).masked_fill(~mask.causal().dense(5, 7)[0, 0], -math.inf)
    expected = torch.autograd.grad(torch.logsumexp(scores, -1), (q, k), torch.arange(1.0, 6.0).double())
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, **EXACT)


@every_engine
def test_output_lse_and_weights_may_meet_in_one_loss(engine):
    q, k, v = (x.requires_grad_() for x in inputs())

    def loss(output: Tensor, lse: Tensor, weights: Tensor) -> Tensor:
        return (output.square().sum() + (lse * torch.arange(5)).sum()) * weights.square().sum()

    found = regard.attend(q, k, v, engine=engine)
    scores = q @ k.mT / math.sqrt(3)
    weights = torch.softmax(scores, -1)
    ours = torch.autograd.grad(loss(found.output, found.lse, found.weights[1:3]), (q, k, v))
    theirs = torch.autograd.grad(loss(weights @ v, torch.logsumexp(scores, -1), weights[1:3]), (q, k, v))

    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_lse_is_kept_in_float32_also_for_half_precision(dtype):
    q, k, v = (x.to(dtype) for x in inputs())

    found = regard.attend(q, k, v)

    assert found.output.dtype == dtype
    assert found.lse.dtype == torch.float32


def test_numpy_in_is_numpy_out():
    q, k, v = (x.numpy() for x in inputs(2))

    found = regard.attend(q, k, v)

    assert isinstance(found.output, np.ndarray)
    assert isinstance(found.lse, np.ndarray)
    np.testing.assert_allclose(found.lse, np.log(np.exp(q @ k.swapaxes(-1, -2) / math.sqrt(3)).sum(-1)), rtol=1e-12)


def test_the_plan_is_the_one_that_explain_shows():
    q, k, v = inputs()

    found = regard.attend(q, k, v, mask=mask.causal())
    plan = regard.explain(q, k, v, mask=mask.causal())

    assert found.plan == plan
    assert str(found.plan) == str(plan)


@every_engine
def test_the_plan_names_the_engine_that_ran(engine):
    assert regard.attend(*inputs(), engine=engine).plan.engine == engine


def test_the_seed_that_was_taken_gives_the_same_answer_again():
    q, k, v = inputs()

    found = regard.attend(q, k, v, dropout=0.5)

    assert torch.equal(regard.attention(q, k, v, dropout=0.5, seed=found.seed), found.output)
    assert regard.attend(q, k, v, dropout=0.5).seed != found.seed
    assert regard.attend(q, k, v, dropout=0.5, seed=7).seed == 7


def test_what_is_handed_back_cannot_be_changed():
    found = regard.attend(*inputs())

    with pytest.raises(dataclasses.FrozenInstanceError):
        found.output = None  # type: ignore[misc]
