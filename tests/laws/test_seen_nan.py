"""NaN and inf in what is seen come out as the formula says: nothing is swept under a rug."""

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
    "sigmoid": (weigh.sigmoid(-1.0), direct.sigmoid(-1.0)),
    "relu": (weigh.relu(0.3), direct.relu(0.3)),
}
SPARSE = {
    "sparsemax": (weigh.sparsemax(), direct.sparsemax()),
    "entmax": (weigh.entmax(1.3), direct.entmax(1.3)),
    "top": (weigh.top(2), direct.top(2)),
    "argmax": (weigh.argmax(), direct.argmax()),
}
every_dense_weigh = pytest.mark.parametrize("weighing", list(WEIGHS))
WEIGHS |= SPARSE
every_weigh = pytest.mark.parametrize("weighing", WEIGHS)


def agrees(engine, weighing, tensors):
    """The output under a causal mask, after it was compared with the formula, NaN and inf included."""
    ours, theirs = WEIGHS[weighing]
    got = cases.attention(engine, *tensors, mask=mask.causal(), weigh=ours)
    cases.close(got, direct.attention(*tensors, mask=direct.causal(), weigh=theirs).output, engine)
    return got


@every_weigh
@given(problem=cases.problems(n_k=None), data=st.data())
@cases.examples(10)
def test_a_nan_query_makes_its_own_row_nan_and_no_other(engine, weighing, problem, data):
    q, k, v = problem.tensors(cases.dtype_of(engine))
    place = data.draw(st.integers(0, problem.n_q - 1))
    q[:, :, place, 0] = math.nan

    got = agrees(engine, weighing, (q, k, v))

    assert got[:, :, place].isnan().all()
    assert got.isnan().any(-1).sum(-1).eq(1).all()


@every_weigh
@given(problem=cases.problems(n_k=None), data=st.data())
@cases.examples(10)
def test_a_seen_nan_key_makes_nan_every_row_that_sees_it(engine, weighing, problem, data):
    q, k, v = problem.tensors(cases.dtype_of(engine))
    place = data.draw(st.integers(0, problem.n_k - 1))
    k[:, :, place, 0] = math.nan

    got = agrees(engine, weighing, (q, k, v))

    assert got[:, :, place:].isnan().all()
    assert got[:, :, :place].isfinite().all()


@every_dense_weigh
@given(problem=cases.problems(n_k=None), data=st.data())
@cases.examples(10)
def test_a_seen_nan_value_makes_nan_its_own_coordinate_only(engine, weighing, problem, data):
    q, k, v = problem.tensors(cases.dtype_of(engine))
    place = data.draw(st.integers(0, problem.n_k - 1))
    v[:, :, place, 0] = math.nan

    got = agrees(engine, weighing, (q, k, v))

    assert got[:, :, place:, 0].isnan().all()
    assert got[:, :, :, 1:].isfinite().all()


@pytest.mark.parametrize("weighing", SPARSE)
@given(problem=cases.problems(n_k=None), bad=st.sampled_from([math.nan, math.inf]), data=st.data())
@cases.examples(10)
def test_a_value_that_a_sparse_weighing_leaves_out_reaches_nothing(engine, weighing, problem, bad, data):
    q, k, v = problem.tensors(cases.dtype_of(engine))
    place = data.draw(st.integers(0, problem.n_k - 1))
    v[:, :, place, 0] = bad

    got = agrees(engine, weighing, (q, k, v))

    ours, _ = SPARSE[weighing]
    counts = cases.attend(engine, q, k, v, mask=mask.causal(), weigh=ours).weights[:, :, :, place] != 0
    cases.equal(~got[..., 0].isfinite(), counts)


@pytest.mark.parametrize("weighing", ["softmax", "sink", "sigmoid"])  # relu may weigh 0, and 0 times inf is NaN
@given(problem=cases.problems(n_k=None), sign=st.sampled_from([1, -1]), data=st.data())
@cases.examples(10)
def test_a_seen_infinite_value_comes_out_infinite(engine, weighing, problem, sign, data):
    q, k, v = problem.tensors(cases.dtype_of(engine))
    place = data.draw(st.integers(0, problem.n_k - 1))
    v[:, :, place, 0] = sign * math.inf

    got = agrees(engine, weighing, (q, k, v))

    assert (got[:, :, place:, 0] == sign * math.inf).all()


@pytest.mark.parametrize("weighing", ["softmax", "sink", "sigmoid"])
def test_two_seen_values_of_opposite_infinity_make_nan(engine, weighing):
    q, k, v = cases.Problem(1, 1, 1, 4, 4, 2, 2, seed=1).tensors(cases.dtype_of(engine))
    v[:, :, 0, 0] = math.inf
    v[:, :, 2, 0] = -math.inf

    got = agrees(engine, weighing, (q, k, v))

    assert (got[0, 0, :2, 0] == math.inf).all()
    assert got[0, 0, 2:, 0].isnan().all()
    assert got[0, 0, :, 1].isfinite().all()


@every_weigh
@given(
    problem=cases.problems(n_q=st.integers(1, 6), n_k=st.integers(1, 6)),
    bad=st.sampled_from([math.nan, math.inf]),
)
@cases.examples(12)
def test_a_seen_nan_or_infinite_score_comes_out_as_the_formula_says(engine, weighing, problem, bad):
    q, k, v = problem.tensors(cases.dtype_of(engine))
    added = torch.where(problem.coins(problem.n_q, problem.n_k, chance=0.2), bad, 0.0).to(q.dtype)
    ours, theirs = WEIGHS[weighing]

    got = cases.attention(engine, q, k, v, score=score.bias(added), weigh=ours)

    cases.close(got, direct.attention(q, k, v, rules=[direct.bias(added.double())], weigh=theirs).output, engine)


@every_weigh
def test_an_infinite_query_counts_keys_on_its_side_and_never_sees_those_on_the_other(engine, weighing):
    dtype = cases.dtype_of(engine)
    q = torch.tensor([math.inf, -math.inf], dtype=dtype).view(1, 1, 2, 1)
    k = torch.tensor([-1.0, -2.0, -0.5], dtype=dtype).view(1, 1, 3, 1)
    v = torch.tensor([1.0, 2.0, 3.0], dtype=dtype).view(1, 1, 3, 1)
    ours, theirs = WEIGHS[weighing]

    got = cases.attention(engine, q, k, v, weigh=ours)

    cases.close(got, direct.attention(q, k, v, weigh=theirs).output, engine)
    assert got[0, 0, 0] == 0  # all scores are -inf: this query sees nothing


@given(problem=cases.problems(n_k=None), data=st.data())
@cases.examples(10)
def test_the_lse_of_a_row_that_sees_nan_is_nan(engine, problem, data):
    q, k, v = problem.tensors(cases.dtype_of(engine))
    place = data.draw(st.integers(0, problem.n_k - 1))
    k[:, :, place, 0] = math.nan

    got = cases.attend(engine, q, k, v, mask=mask.causal())

    cases.close(got.lse, direct.attention(q, k, v, mask=direct.causal()).lse, engine)


@every_weigh
@given(problem=cases.problems(n_q=st.integers(2, 8), n_k=None), data=st.data())
@cases.examples(8)
def test_the_gradient_of_a_row_that_sees_nan_is_nan_and_of_the_others_is_not(engine, weighing, problem, data):
    q, k, v = problem.tensors(cases.dtype_of(engine))
    place = data.draw(st.integers(1, problem.n_k - 1))
    k[:, :, place, 0] = math.nan
    q, k, v = cases.leaves(q, k, v)

    got = cases.attention(engine, q, k, v, mask=mask.causal(), weigh=WEIGHS[weighing][0])
    (found,) = cases.gradients(got, (q,), torch.ones_like(got))

    assert found[:, :, place:].isnan().any(-1).all()
    assert found[:, :, :place].isfinite().all()


def test_a_seen_nan_comes_out_also_far_from_the_first_tile(engine):
    problem = cases.Problem(batch=1, heads=1, key_heads=1, n_q=300, n_k=300, width=3, width_v=2, seed=6)
    q, k, v = problem.tensors(cases.dtype_of(engine))
    v[:, :, 260, 0] = math.nan
    k[:, :, 280] = math.nan

    got = cases.attention(engine, q, k, v, mask=mask.causal())

    assert got[0, 0, :260].isfinite().all()
    assert got[0, 0, 260:280, 0].isnan().all()
    assert got[0, 0, 260:280, 1].isfinite().all()
    assert got[0, 0, 280:].isnan().all()


@pytest.mark.parametrize("name", ["sigma", "slope", "cap", "weight"])
def test_a_nan_parameter_comes_out_everywhere(engine, name):
    q, k, v = cases.Problem(1, 2, 2, 3, 4, 2, 2, seed=1).tensors(cases.dtype_of(engine))
    bad = torch.tensor(math.nan, dtype=q.dtype)
    chosen = {
        "sigma": score.metric(bad),
        "slope": score.alibi(bad.expand(2) * 1),
        "cap": score.softcap(bad),
        "weight": score.multiplicative(bad.expand(2, 2) * 1),
    }[name]

    assert cases.attention(engine, q, k, v, score=chosen).isnan().all()
