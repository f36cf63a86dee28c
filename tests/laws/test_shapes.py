"""Shapes: lengths of 0 and 1, unequal widths, any strides, broadcast batch, 2-D to 5-D, grouped heads."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import regard
from regard import mask, score, weigh

from . import cases, direct

WEIGHS = {
    "softmax": (weigh.softmax(), direct.softmax()),
    "sink": (weigh.sink(0.5), direct.sink(0.5)),
    "sigmoid": (weigh.sigmoid(0.5), direct.sigmoid(0.5)),
    "relu": (weigh.relu(0.5), direct.relu(0.5)),
    "sparsemax": (weigh.sparsemax(), direct.sparsemax()),
    "entmax": (weigh.entmax(1.3), direct.entmax(1.3)),
    "top": (weigh.top(2), direct.top(2)),
    "argmax": (weigh.argmax(), direct.argmax()),
}


@pytest.mark.parametrize("weighing", WEIGHS)
@given(problem=cases.problems(n_q=st.integers(0, 2), n_k=st.integers(0, 2), batch=st.integers(0, 2)))
@cases.examples(20)
def test_lengths_of_none_and_one_are_fine_forward_and_backward(engine, weighing, problem):
    q, k, v = cases.leaves(*problem.tensors(cases.dtype_of(engine)))
    ours, theirs = WEIGHS[weighing]

    got = cases.attention(engine, q, k, v, weigh=ours, mask=mask.causal())
    expected = direct.attention(q, k, v, weigh=theirs, mask=direct.causal()).output
    weights = problem.normal(*expected.shape)

    assert got.shape == (problem.batch, problem.heads, problem.n_q, problem.width_v)
    cases.close(got, expected, engine)
    for one, other in zip(
        cases.gradients(got, (q, k, v), weights), cases.gradients(expected, (q, k, v), weights), strict=True
    ):
        cases.close(one, other, engine, times=5)


SCORES = {
    "dot": score.dot(),
    "cosine": score.cosine(2.0),
    "metric": score.metric(1.0),
    "mahalanobis": score.mahalanobis(torch.eye(3, dtype=torch.float64)),
    "multiplicative": score.multiplicative(torch.eye(3, dtype=torch.float64)),
    "additive": score.additive(torch.ones(3, 2).double(), torch.ones(3, 2).double(), torch.ones(2).double()),
    "alibi": score.alibi(),
    "softcap": score.softcap(3.0),
}


@pytest.mark.parametrize("n_q, n_k", [(0, 0), (0, 3), (3, 0), (1, 1)])
@pytest.mark.parametrize("name", SCORES)
def test_every_score_takes_lengths_of_none_and_one(engine, name, n_q, n_k):
    if cases.dtype_of(engine) != torch.float64:
        pytest.skip("the captured tensors here are float64")
    q, k, v = cases.leaves(*cases.Problem(2, 2, 2, n_q, n_k, 3, 4, seed=1).tensors())

    got = cases.attend(engine, q, k, v, score=SCORES[name])
    found = torch.autograd.grad(got.output.sum(), (q, k, v), allow_unused=True)

    assert got.output.shape == (2, 2, n_q, 4)
    assert got.lse.shape == (2, 2, n_q)
    assert all(x is None or x.isfinite().all() for x in (got.output, *found))
    cases.equal(got.output, v.expand(2, 2, n_k, 4) if n_k == 1 else torch.zeros(2, 2, n_q, 4).double())


@given(problem=cases.problems(width=st.sampled_from([1, 2, 7, 16, 33])))
@cases.examples(20)
def test_values_may_be_wider_or_narrower_than_keys(engine, problem):
    q, k, v = problem.tensors(cases.dtype_of(engine))

    got = cases.attention(engine, q, k, v)

    assert got.shape[-1] == problem.width_v
    cases.close(got, direct.attention(q, k, v).output, engine)


def laid_out(x, how):
    """The same numbers in another layout of memory."""
    if how == "length before heads":
        return x.transpose(1, 2).contiguous().transpose(1, 2)
    if how == "width first":
        return x.transpose(-1, -2).contiguous().transpose(-1, -2)
    if how == "every second":
        return torch.stack([x, torch.full_like(x, torch.nan)], -1).flatten(-2)[..., ::2]
    if how == "every third row":
        return torch.cat(
            [x.unsqueeze(-2), torch.full_like(x, torch.nan).unsqueeze(-2).repeat_interleave(2, -2)], -2
        ).flatten(-3, -2)[..., ::3, :]
    if how == "inside a larger one":
        return torch.nn.functional.pad(x, (1, 2, 3, 1), value=torch.nan)[..., 3:-1, 1:-2]
    return x


LAYOUTS = [
    "plain",
    "length before heads",
    "width first",
    "every second",
    "every third row",
    "inside a larger one",
]


@given(problem=cases.problems(), how=st.tuples(*[st.sampled_from(LAYOUTS)] * 3))
@cases.examples(25)
def test_the_layout_in_memory_makes_no_difference(engine, problem, how):
    plain = problem.tensors(cases.dtype_of(engine))
    moved = tuple(laid_out(x, one) for x, one in zip(plain, how, strict=True))
    inputs, others = (tuple(x.requires_grad_() for x in group) for group in (plain, moved))

    expected = cases.attention(engine, *inputs, mask=mask.causal())
    got = cases.attention(engine, *others, mask=mask.causal())

    cases.close(got, expected, engine)
    for one, other in zip(
        cases.gradients(got, others, torch.ones_like(got)),
        cases.gradients(expected, inputs, torch.ones_like(got)),
        strict=True,
    ):
        cases.close(one, other, engine, times=5)


def test_a_gradient_that_arrives_expanded_or_transposed_is_fine(engine):
    q, k, v = cases.leaves(*cases.Problem(2, 2, 2, 4, 5, 3, 3, seed=1).tensors(cases.dtype_of(engine)))
    arriving = torch.randn(2, 2, 3, 4, generator=torch.Generator().manual_seed(0), dtype=q.dtype)

    for shape in (arriving.transpose(-1, -2), torch.ones((), dtype=q.dtype).expand(2, 2, 4, 3)):
        got = torch.autograd.grad(cases.attention(engine, q, k, v), (q, k, v), shape)
        expected = torch.autograd.grad(cases.attention(engine, q, k, v), (q, k, v), shape.clone())
        for one, other in zip(got, expected, strict=True):
            cases.close(one, other, engine)


@given(problem=cases.problems(batch=st.just(3)), single=st.tuples(st.booleans(), st.booleans(), st.booleans()))
@cases.examples(20)
def test_a_batch_of_one_is_shared_by_all_and_its_gradient_summed(engine, problem, single):
    tensors = problem.tensors(cases.dtype_of(engine))
    inputs = cases.leaves(*(x[:1] if one else x for x, one in zip(tensors, single, strict=True)))

    got = cases.attention(engine, *inputs, mask=mask.causal())
    expected = direct.attention(*inputs, mask=direct.causal()).output
    weights = problem.normal(*expected.shape)

    assert got.shape == expected.shape
    cases.close(got, expected, engine)
    for one, other in zip(
        cases.gradients(got, inputs, weights), cases.gradients(expected, inputs, weights), strict=True
    ):
        cases.close(one, other, engine, times=10)


@given(problem=cases.problems(batch=st.just(3)))
@cases.examples(10)
def test_an_expanded_tensor_is_as_good_as_a_copied_one(engine, problem):
    q, k, v = problem.tensors(cases.dtype_of(engine))
    k, v = (x[:1].expand(3, -1, -1, -1) for x in (k, v))

    cases.close(cases.attention(engine, q, k, v), direct.attention(q, k.clone(), v.clone()).output, engine)


@given(problem=cases.problems(batch=st.just(1), key_heads=st.just(1), groups=st.just(1)))
@cases.examples(12)
def test_two_dimensions_are_length_and_width(engine, problem):
    q, k, v = (x[0, 0] for x in problem.tensors(cases.dtype_of(engine)))

    got = cases.attend(engine, q, k, v, mask=mask.causal())
    expected = direct.attention(q[None, None], k[None, None], v[None, None], mask=direct.causal())

    assert got.output.shape == (problem.n_q, problem.width_v)
    assert got.lse.shape == (problem.n_q,)
    cases.close(got.output, expected.output[0, 0], engine)
    cases.close(got.lse, expected.lse[0, 0], engine)


@given(problem=cases.problems(key_heads=st.just(1), groups=st.just(1)))
@cases.examples(12)
def test_three_dimensions_are_batch_length_and_width(engine, problem):
    q, k, v = (x[:, 0] for x in problem.tensors(cases.dtype_of(engine)))

    got = cases.attend(engine, q, k, v, mask=lambda b, h, i, j: (i + j + b) % 3 > h)
    expected = direct.attention(
        q[:, None], k[:, None], v[:, None], mask=lambda where: (where.i + where.j + where.b) % 3 > where.h
    )

    assert got.output.shape == (problem.batch, problem.n_q, problem.width_v)
    assert got.lse.shape == (problem.batch, problem.n_q)
    cases.close(got.output, expected.output[:, 0], engine)
    cases.close(got.lse, expected.lse[:, 0], engine)


@given(problem=cases.problems(batch=st.just(6)))
@cases.examples(12)
def test_further_leading_dimensions_flatten_into_the_batch(engine, problem):
    q, k, v = problem.tensors(cases.dtype_of(engine))
    shown = [x.unflatten(0, (2, 3)) for x in (q, k, v)]
    lengths = torch.arange(6) % (problem.n_k + 1)

    got = cases.attend(engine, *shown, mask=mask.padding(lengths))
    expected = direct.attention(q, k, v, mask=direct.padding(lengths))

    assert got.output.shape == (2, 3, problem.heads, problem.n_q, problem.width_v)
    assert got.lse.shape == (2, 3, problem.heads, problem.n_q)
    cases.close(got.output.flatten(0, 1), expected.output, engine)
    cases.close(got.lse.flatten(0, 1), expected.lse, engine)


@given(problem=cases.problems(key_heads=st.sampled_from([1, 2, 3]), groups=st.sampled_from([2, 3, 4])))
@cases.examples(15)
def test_fewer_key_heads_are_shared_by_groups_of_neighbouring_query_heads(engine, problem):
    q, k, v = cases.leaves(*problem.tensors(cases.dtype_of(engine)))
    slopes = torch.linspace(0.1, 1, problem.heads, dtype=q.dtype)

    got = cases.attention(engine, q, k, v, score=score.alibi(slopes), mask=mask.causal())
    expected = direct.attention(q, k, v, rules=[direct.alibi(slopes.double())], mask=direct.causal()).output
    weights = problem.normal(*expected.shape)

    cases.close(got, expected, engine)
    for one, other in zip(
        cases.gradients(got, (q, k, v), weights), cases.gradients(expected, (q, k, v), weights), strict=True
    ):
        cases.close(one, other, engine, times=10)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_numpy_in_is_numpy_out(engine, dtype):
    if dtype == np.float64 and cases.dtype_of(engine) != torch.float64:
        pytest.skip("this engine has no float64")
    q, k, v = (x.numpy().astype(dtype) for x in cases.Problem(2, 2, 1, 3, 4, 5, 6, seed=1).tensors())

    got = cases.attend(engine, q, k, v, mask=mask.causal())
    expected = regard.attention(*(torch.from_numpy(x) for x in (q, k, v)), mask=mask.causal(), engine=engine)

    assert isinstance(got.output, np.ndarray)
    assert isinstance(got.lse, np.ndarray)
    assert got.output.dtype == dtype
    np.testing.assert_array_equal(got.output, expected.numpy())
    np.testing.assert_array_equal(cases.attention(engine, q, k, v, mask=mask.causal()), got.output)


def test_numpy_arrays_may_run_backwards_and_be_read_only(engine):
    q, k, v = (x.numpy() for x in cases.Problem(1, 2, 2, 3, 4, 5, 5, seed=1).tensors(cases.dtype_of(engine)))
    k, v = k[:, :, ::-1], v[:, :, ::-1]
    q.setflags(write=False)

    got = cases.attention(engine, q, k, v)

    np.testing.assert_array_equal(got, cases.attention(engine, q.copy(), k.copy(), v.copy()))


def test_numpy_masks_biases_and_lengths_go_with_numpy_inputs(engine):
    problem = cases.Problem(2, 2, 2, 3, 4, 5, 5, seed=1)
    q, k, v = problem.tensors(cases.dtype_of(engine))
    may, added = problem.coins(3, 4), problem.normal(2, 3, 4).to(q.dtype)
    lengths = torch.tensor([2, 4])
    arrays = [x.numpy() for x in (q, k, v)]

    masked = cases.attention(engine, *arrays, mask=may.numpy())
    biased = cases.attention(engine, *arrays, score=score.bias(added.numpy()), mask=mask.padding(lengths.numpy()))

    cases.close(torch.from_numpy(masked), direct.attention(q, k, v, mask=lambda where: may).output, engine)
    expected = direct.attention(q, k, v, rules=[direct.bias(added.double())], mask=direct.padding(lengths))
    cases.close(torch.from_numpy(biased), expected.output, engine)


@given(problem=cases.long_problems())
@cases.examples(8)
def test_lengths_at_the_borders_of_tiles_are_fine(engine, problem):
    q, k, v = problem.tensors(cases.dtype_of(engine))

    got = cases.attend(engine, q, k, v)
    expected = direct.attention(q, k, v)

    cases.close(got.output, expected.output, engine)
    cases.close(got.lse, expected.lse, engine)
