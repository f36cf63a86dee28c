"""A query that may see nothing: output exactly 0, gradient exactly 0, lse = -inf; never NaN."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard import mask, score, weigh

from . import cases, direct

WEIGHS = {
    "softmax": (weigh.softmax(), direct.softmax()),
    "sink": (weigh.sink(0.5), direct.sink(0.5)),
    "sigmoid": (weigh.sigmoid(0.5), direct.sigmoid(0.5)),
    "relu": (weigh.relu(), direct.relu()),
    "sparsemax": (weigh.sparsemax(), direct.sparsemax()),
    "entmax": (weigh.entmax(1.3), direct.entmax(1.3)),
    "top": (weigh.top(2), direct.top(2)),
    "argmax": (weigh.argmax(), direct.argmax()),
}
every_weigh = pytest.mark.parametrize("weighing", WEIGHS)


def some_rows_blind(problem):
    """A mask under which about half of the rows see nothing, and those rows (batch, heads, n_q)."""
    may = problem.coins(problem.batch, problem.heads, problem.n_q, problem.n_k, chance=0.7)
    may = may & problem.coins(problem.batch, problem.heads, problem.n_q, 1, salt=2)
    return may, ~may.any(-1)


@every_weigh
@given(problem=cases.problems())
@cases.examples(12)
def test_a_query_that_sees_nothing_outputs_zero(engine, weighing, problem):
    q, k, v = problem.tensors(cases.dtype_of(engine))
    may, blind = some_rows_blind(problem)
    ours, theirs = WEIGHS[weighing]

    got = cases.attention(engine, q, k, v, mask=may, weigh=ours)

    assert (got[blind] == 0).all()
    cases.close(got, direct.attention(q, k, v, mask=lambda where: may, weigh=theirs).output, engine)


@every_weigh
@given(problem=cases.problems())
@cases.examples(12)
def test_a_query_that_sees_nothing_has_gradient_zero_and_gives_none(engine, weighing, problem):
    q, k, v = cases.leaves(*problem.tensors(cases.dtype_of(engine)))
    may, blind = some_rows_blind(problem)
    ours, theirs = WEIGHS[weighing]
    weights = problem.normal(problem.batch, problem.heads, problem.n_q, problem.width_v)

    got = cases.gradients(cases.attention(engine, q, k, v, mask=may, weigh=ours), (q, k, v), weights)
    expected = cases.gradients(
        direct.attention(q, k, v, mask=lambda where: may, weigh=theirs).output, (q, k, v), weights
    )

    assert (got[0][blind] == 0).all()
    for one, other in zip(got, expected, strict=True):
        cases.close(one, other, engine, times=5)


@given(problem=cases.problems(), weighing=st.sampled_from(["softmax", "sink"]))
@cases.examples(15)
def test_the_lse_of_a_query_that_sees_nothing_is_minus_infinity(engine, problem, weighing):
    q, k, v = problem.tensors(cases.dtype_of(engine))
    may, blind = some_rows_blind(problem)

    got = cases.attend(engine, q, k, v, mask=may, weigh=WEIGHS[weighing][0])

    assert (got.lse[blind] == -math.inf).all()
    cases.close(got.lse, direct.attention(q, k, v, mask=lambda where: may).lse, engine)


@every_weigh
@given(problem=cases.problems())
@cases.examples(10)
def test_when_nobody_sees_anything_all_is_zero(engine, weighing, problem):
    q, k, v = cases.leaves(*problem.tensors(cases.dtype_of(engine)))

    got = cases.attention(engine, q, k, v, mask=lambda b, h, i, j: j < 0, weigh=WEIGHS[weighing][0])
    found = cases.gradients(got, (q, k, v), torch.ones_like(got))

    for one in (got, *found):
        cases.equal(one, torch.zeros_like(one))


@every_weigh
def test_no_keys_at_all_is_a_query_that_sees_nothing(engine, weighing):
    q, k, v = cases.leaves(*cases.Problem(2, 2, 1, 3, 0, 4, 5, seed=1).tensors(cases.dtype_of(engine)))

    got = cases.attend(engine, q, k, v, weigh=WEIGHS[weighing][0])
    found = cases.gradients(got.output, (q, k, v), torch.ones_like(got.output))

    cases.equal(got.output, torch.zeros(2, 2, 3, 5, dtype=q.dtype))
    cases.equal(found[0], torch.zeros_like(q))
    if weighing in ("softmax", "sink"):
        assert (got.lse == -math.inf).all()


@given(problem=cases.problems())
@cases.examples(12)
def test_a_blind_query_may_be_nan_without_harm(engine, problem):
    dtype = cases.dtype_of(engine)
    q, k, v = problem.tensors(dtype)
    may, blind = some_rows_blind(problem)
    spoilt = q.masked_fill(blind.unsqueeze(-1), math.nan)
    weights = problem.normal(problem.batch, problem.heads, problem.n_q, problem.width_v, dtype=dtype)

    clean, dirty = cases.leaves(q, k, v), cases.leaves(spoilt, k, v)
    expected = cases.attention(engine, *clean, mask=may)
    got = cases.attention(engine, *dirty, mask=may)

    cases.close(got, expected, engine)
    assert (got[blind] == 0).all()
    for one, other in zip(cases.gradients(got, dirty, weights), cases.gradients(expected, clean, weights), strict=True):
        cases.close(one, other, engine, times=5)


@given(problem=cases.problems())
@cases.examples(10)
def test_captured_tensors_get_gradient_zero_from_blind_queries(engine, problem):
    dtype = cases.dtype_of(engine)
    q, k, v = problem.tensors(dtype)
    may, blind = some_rows_blind(problem)
    (bias,) = cases.leaves(problem.normal(problem.batch, problem.heads, problem.n_q, problem.n_k, dtype=dtype))

    got = cases.attention(engine, q, k, v, score=score.bias(bias), mask=may)
    (found,) = cases.gradients(got, (bias,), torch.ones_like(got))

    assert (found[~may] == 0).all()
    assert (found[blind] == 0).all()


def test_blind_queries_beyond_the_first_tile_output_zero(engine):
    problem = cases.Problem(batch=1, heads=1, key_heads=1, n_q=300, n_k=300, width=3, width_v=3, seed=6)
    q, k, v = cases.leaves(*problem.tensors(cases.dtype_of(engine)))
    blind = [0, 127, 128, 200, 256, 299]
    may = torch.ones(300, dtype=torch.bool)
    may[blind] = False

    got = cases.attend(engine, q, k, v, mask=mask.where(lambda b, h, i, j: may[i]))
    (found,) = cases.gradients(got.output, (q,), torch.ones_like(got.output))

    assert (got.output[0, 0, blind] == 0).all()
    assert (found[0, 0, blind] == 0).all()
    assert (got.lse[0, 0] == -math.inf).nonzero().flatten().tolist() == blind


@given(problem=cases.problems())
@cases.examples(10)
def test_the_second_derivative_at_a_blind_query_is_zero_too(engine, problem):
    q, k, v = cases.leaves(*problem.tensors(cases.dtype_of(engine)))
    may, blind = some_rows_blind(problem)

    got = cases.attention(engine, q, k, v, mask=may)
    first = torch.autograd.grad(got.square().sum(), (q, k, v), create_graph=True)
    second = torch.autograd.grad(sum(g.square().sum() for g in first), (q, k, v), allow_unused=True)

    assert all(s is None or s.isfinite().all() for s in second)
    assert second[0] is None or (second[0][blind] == 0).all()
