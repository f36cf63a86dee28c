"""Visible NaN and inf propagate to the output as the formula states."""

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
    "sigmoid": (normalizer.sigmoid(-1.0), direct.sigmoid(-1.0)),
    "relu": (normalizer.relu(0.3), direct.relu(0.3)),
}
SPARSE = {
    "sparsemax": (normalizer.sparsemax(), direct.sparsemax()),
    "entmax": (normalizer.entmax(1.3), direct.entmax(1.3)),
    "topk": (normalizer.topk(2), direct.topk(2)),
    "hardmax": (normalizer.hardmax(), direct.hardmax()),
}
every_dense_normalizer = pytest.mark.parametrize("normalizer_name", list(NORMALIZERS))
NORMALIZERS |= SPARSE
every_normalizer = pytest.mark.parametrize("normalizer_name", NORMALIZERS)


def checked_output(backend, normalizer_name, tensors):
    """Return the output under a causal mask, after comparing it with the direct definition."""
    tested, reference = NORMALIZERS[normalizer_name]
    output = cases.attention(backend, *tensors, mask=mask.causal(), normalizer=tested)
    cases.close(output, direct.attention(*tensors, mask=direct.causal(), normalizer=reference).output, backend)
    return output


@every_normalizer
@given(problem=cases.problems(n_k=None), data=st.data())
@cases.examples(10)
def test_a_nan_query_affects_only_its_own_row(backend, normalizer_name, problem, data):
    q, k, v = problem.tensors(cases.dtype_of(backend))
    position = data.draw(st.integers(0, problem.n_q - 1))
    q[:, :, position, 0] = math.nan

    output = checked_output(backend, normalizer_name, (q, k, v))

    assert output[:, :, position].isnan().all()
    assert output.isnan().any(-1).sum(-1).eq(1).all()


@every_normalizer
@given(problem=cases.problems(n_k=None), data=st.data())
@cases.examples(10)
def test_a_visible_nan_key_affects_every_row_that_attends_to_it(backend, normalizer_name, problem, data):
    q, k, v = problem.tensors(cases.dtype_of(backend))
    position = data.draw(st.integers(0, problem.n_k - 1))
    k[:, :, position, 0] = math.nan

    output = checked_output(backend, normalizer_name, (q, k, v))

    assert output[:, :, position:].isnan().all()
    assert output[:, :, :position].isfinite().all()


@every_dense_normalizer
@given(problem=cases.problems(n_k=None), data=st.data())
@cases.examples(10)
def test_a_visible_nan_value_affects_only_its_own_coordinate(backend, normalizer_name, problem, data):
    q, k, v = problem.tensors(cases.dtype_of(backend))
    position = data.draw(st.integers(0, problem.n_k - 1))
    v[:, :, position, 0] = math.nan

    output = checked_output(backend, normalizer_name, (q, k, v))

    assert output[:, :, position:, 0].isnan().all()
    assert output[:, :, :, 1:].isfinite().all()


@pytest.mark.parametrize("normalizer_name", SPARSE)
@given(problem=cases.problems(n_k=None), poison=st.sampled_from([math.nan, math.inf]), data=st.data())
@cases.examples(10)
def test_a_value_with_weight_exactly_zero_has_no_effect(backend, normalizer_name, problem, poison, data):
    q, k, v = problem.tensors(cases.dtype_of(backend))
    position = data.draw(st.integers(0, problem.n_k - 1))
    v[:, :, position, 0] = poison

    output = checked_output(backend, normalizer_name, (q, k, v))

    tested, _ = SPARSE[normalizer_name]
    has_weight = (
        cases.attention_with_weights(backend, q, k, v, mask=mask.causal(), normalizer=tested).weights[:, :, :, position]
        != 0
    )
    cases.equal(~output[..., 0].isfinite(), has_weight)


@pytest.mark.parametrize(
    "normalizer_name", ["softmax", "sink", "sigmoid"]
)  # relu weights may be 0, and 0 times inf is NaN
@given(problem=cases.problems(n_k=None), sign=st.sampled_from([1, -1]), data=st.data())
@cases.examples(10)
def test_a_visible_infinite_value_gives_an_infinite_output(backend, normalizer_name, problem, sign, data):
    q, k, v = problem.tensors(cases.dtype_of(backend))
    position = data.draw(st.integers(0, problem.n_k - 1))
    v[:, :, position, 0] = sign * math.inf

    output = checked_output(backend, normalizer_name, (q, k, v))

    assert (output[:, :, position:, 0] == sign * math.inf).all()


@pytest.mark.parametrize("normalizer_name", ["softmax", "sink", "sigmoid"])
def test_two_visible_values_of_opposite_infinity_give_nan(backend, normalizer_name):
    q, k, v = cases.Problem(1, 1, 1, 4, 4, 2, 2, seed=1).tensors(cases.dtype_of(backend))
    v[:, :, 0, 0] = math.inf
    v[:, :, 2, 0] = -math.inf

    output = checked_output(backend, normalizer_name, (q, k, v))

    assert (output[0, 0, :2, 0] == math.inf).all()
    assert output[0, 0, 2:, 0].isnan().all()
    assert output[0, 0, :, 1].isfinite().all()


@every_normalizer
@given(
    problem=cases.problems(n_q=st.integers(1, 6), n_k=st.integers(1, 6)),
    poison=st.sampled_from([math.nan, math.inf]),
)
@cases.examples(12)
def test_a_visible_nonfinite_score_propagates_as_in_the_direct_formula(backend, normalizer_name, problem, poison):
    q, k, v = problem.tensors(cases.dtype_of(backend))
    bias = torch.where(problem.random_mask(problem.n_q, problem.n_k, probability=0.2), poison, 0.0).to(q.dtype)
    tested, reference = NORMALIZERS[normalizer_name]

    output = cases.attention(backend, q, k, v, score=score.bias(bias), normalizer=tested)

    cases.close(
        output, direct.attention(q, k, v, modifiers=[direct.bias(bias.double())], normalizer=reference).output, backend
    )


@every_normalizer
def test_an_infinite_query_hides_keys_of_the_opposite_sign(backend, normalizer_name):
    dtype = cases.dtype_of(backend)
    q = torch.tensor([math.inf, -math.inf], dtype=dtype).view(1, 1, 2, 1)
    k = torch.tensor([-1.0, -2.0, -0.5], dtype=dtype).view(1, 1, 3, 1)
    v = torch.tensor([1.0, 2.0, 3.0], dtype=dtype).view(1, 1, 3, 1)
    tested, reference = NORMALIZERS[normalizer_name]

    output = cases.attention(backend, q, k, v, normalizer=tested)

    cases.close(output, direct.attention(q, k, v, normalizer=reference).output, backend)
    assert output[0, 0, 0] == 0  # all scores are -inf: this query is fully masked


@given(problem=cases.problems(n_k=None), data=st.data())
@cases.examples(10)
def test_the_lse_of_a_row_with_a_visible_nan_is_nan(backend, problem, data):
    q, k, v = problem.tensors(cases.dtype_of(backend))
    position = data.draw(st.integers(0, problem.n_k - 1))
    k[:, :, position, 0] = math.nan

    result = cases.attention_with_weights(backend, q, k, v, mask=mask.causal())

    cases.close(result.lse, direct.attention(q, k, v, mask=direct.causal()).lse, backend)


@every_normalizer
@given(problem=cases.problems(n_q=st.integers(2, 8), n_k=None), data=st.data())
@cases.examples(8)
def test_only_rows_with_a_visible_nan_have_nan_gradients(backend, normalizer_name, problem, data):
    q, k, v = problem.tensors(cases.dtype_of(backend))
    position = data.draw(st.integers(1, problem.n_k - 1))
    k[:, :, position, 0] = math.nan
    q, k, v = cases.leaves(q, k, v)

    output = cases.attention(backend, q, k, v, mask=mask.causal(), normalizer=NORMALIZERS[normalizer_name][0])
    (grad,) = cases.gradients(output, (q,), torch.ones_like(output))

    assert grad[:, :, position:].isnan().any(-1).all()
    assert grad[:, :, :position].isfinite().all()


def test_a_visible_nan_propagates_beyond_the_first_tile(backend):
    problem = cases.Problem(
        batch_size=1, num_heads=1, num_kv_heads=1, n_q=300, n_k=300, head_dim=3, value_dim=2, seed=6
    )
    q, k, v = problem.tensors(cases.dtype_of(backend))
    v[:, :, 260, 0] = math.nan
    k[:, :, 280] = math.nan

    output = cases.attention(backend, q, k, v, mask=mask.causal())

    assert output[0, 0, :260].isfinite().all()
    assert output[0, 0, 260:280, 0].isnan().all()
    assert output[0, 0, 260:280, 1].isfinite().all()
    assert output[0, 0, 280:].isnan().all()


@pytest.mark.parametrize("name", ["sigma", "slope", "cap", "weight"])
def test_a_nan_parameter_makes_every_output_nan(backend, name):
    q, k, v = cases.Problem(1, 2, 2, 3, 4, 2, 2, seed=1).tensors(cases.dtype_of(backend))
    poison = torch.tensor(math.nan, dtype=q.dtype)
    tested_score = {
        "sigma": score.gaussian(poison),
        "slope": score.alibi(poison.expand(2) * 1),
        "cap": score.softcap(poison),
        "weight": score.bilinear(poison.expand(2, 2) * 1),
    }[name]

    assert cases.attention(backend, q, k, v, score=tested_score).isnan().all()
