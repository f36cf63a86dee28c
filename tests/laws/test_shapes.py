"""Shapes: lengths of 0 and 1, different value dimensions, strides, broadcast batches, 2-D to 5-D, grouped heads."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import regard
from regard import mask, normalizer, score

from . import cases, direct

NORMALIZERS = {
    "softmax": (normalizer.softmax(), direct.softmax()),
    "sink": (normalizer.sink(0.5), direct.sink(0.5)),
    "sigmoid": (normalizer.sigmoid(0.5), direct.sigmoid(0.5)),
    "relu": (normalizer.relu(0.5), direct.relu(0.5)),
    "sparsemax": (normalizer.sparsemax(), direct.sparsemax()),
    "entmax": (normalizer.entmax(1.3), direct.entmax(1.3)),
    "topk": (normalizer.topk(2), direct.topk(2)),
    "hardmax": (normalizer.hardmax(), direct.hardmax()),
}


@pytest.mark.parametrize("normalizer_name", NORMALIZERS)
@given(problem=cases.problems(n_q=st.integers(0, 2), n_k=st.integers(0, 2), batch_size=st.integers(0, 2)))
@cases.examples(20)
def test_lengths_of_zero_and_one_forward_and_backward(backend, normalizer_name, problem):
    q, k, v = cases.leaves(*problem.tensors(cases.dtype_of(backend)))
    tested, reference = NORMALIZERS[normalizer_name]

    output = cases.attention(backend, q, k, v, normalizer=tested, mask=mask.causal())
    expected = direct.attention(q, k, v, normalizer=reference, mask=direct.causal()).output
    weights = problem.normal(*expected.shape)

    assert output.shape == (problem.batch_size, problem.num_heads, problem.n_q, problem.value_dim)
    cases.close(output, expected, backend)
    for grad, expected_grad in zip(
        cases.gradients(output, (q, k, v), weights), cases.gradients(expected, (q, k, v), weights), strict=True
    ):
        cases.close(grad, expected_grad, backend, times=5)


SCORES = {
    "dot": score.dot(),
    "cosine": score.cosine(2.0),
    "gaussian": score.gaussian(1.0),
    "mahalanobis": score.mahalanobis(torch.eye(3, dtype=torch.float64)),
    "bilinear": score.bilinear(torch.eye(3, dtype=torch.float64)),
    "additive": score.additive(torch.ones(3, 2).double(), torch.ones(3, 2).double(), torch.ones(2).double()),
    "alibi": score.alibi(),
    "softcap": score.softcap(3.0),
}


@pytest.mark.parametrize("n_q, n_k", [(0, 0), (0, 3), (3, 0), (1, 1)])
@pytest.mark.parametrize("name", SCORES)
def test_every_score_supports_lengths_of_zero_and_one(backend, name, n_q, n_k):
    if cases.dtype_of(backend) != torch.float64:
        pytest.skip("the captured tensors here are float64")
    q, k, v = cases.leaves(*cases.Problem(2, 2, 2, n_q, n_k, 3, 4, seed=1).tensors())

    result = cases.attention_with_weights(backend, q, k, v, score=SCORES[name])
    grads = torch.autograd.grad(result.output.sum(), (q, k, v), allow_unused=True)

    assert result.output.shape == (2, 2, n_q, 4)
    assert result.lse.shape == (2, 2, n_q)
    assert all(x is None or x.isfinite().all() for x in (result.output, *grads))
    cases.equal(result.output, v.expand(2, 2, n_k, 4) if n_k == 1 else torch.zeros(2, 2, n_q, 4).double())


@given(problem=cases.problems(head_dim=st.sampled_from([1, 2, 7, 16, 33])))
@cases.examples(20)
def test_value_dim_may_differ_from_head_dim(backend, problem):
    q, k, v = problem.tensors(cases.dtype_of(backend))

    output = cases.attention(backend, q, k, v)

    assert output.shape[-1] == problem.value_dim
    cases.close(output, direct.attention(q, k, v).output, backend)


def with_layout(x, layout):
    """Return the same numbers in another memory layout."""
    if layout == "length before heads":
        return x.transpose(1, 2).contiguous().transpose(1, 2)
    if layout == "head_dim first":
        return x.transpose(-1, -2).contiguous().transpose(-1, -2)
    if layout == "every second":
        return torch.stack([x, torch.full_like(x, torch.nan)], -1).flatten(-2)[..., ::2]
    if layout == "every third row":
        return torch.cat(
            [x.unsqueeze(-2), torch.full_like(x, torch.nan).unsqueeze(-2).repeat_interleave(2, -2)], -2
        ).flatten(-3, -2)[..., ::3, :]
    if layout == "inside a larger tensor":
        return torch.nn.functional.pad(x, (1, 2, 3, 1), value=torch.nan)[..., 3:-1, 1:-2]
    return x


LAYOUTS = [
    "plain",
    "length before heads",
    "head_dim first",
    "every second",
    "every third row",
    "inside a larger tensor",
]


@given(problem=cases.problems(), layouts=st.tuples(*[st.sampled_from(LAYOUTS)] * 3))
@cases.examples(25)
def test_the_memory_layout_has_no_effect(backend, problem, layouts):
    plain = problem.tensors(cases.dtype_of(backend))
    rearranged = tuple(with_layout(x, layout) for x, layout in zip(plain, layouts, strict=True))
    inputs, rearranged_inputs = (tuple(x.requires_grad_() for x in group) for group in (plain, rearranged))

    expected = cases.attention(backend, *inputs, mask=mask.causal())
    output = cases.attention(backend, *rearranged_inputs, mask=mask.causal())

    cases.close(output, expected, backend)
    for grad, expected_grad in zip(
        cases.gradients(output, rearranged_inputs, torch.ones_like(output)),
        cases.gradients(expected, inputs, torch.ones_like(output)),
        strict=True,
    ):
        cases.close(grad, expected_grad, backend, times=5)


def test_an_expanded_or_transposed_grad_output(backend):
    q, k, v = cases.leaves(*cases.Problem(2, 2, 2, 4, 5, 3, 3, seed=1).tensors(cases.dtype_of(backend)))
    incoming = torch.randn(2, 2, 3, 4, generator=torch.Generator().manual_seed(0), dtype=q.dtype)

    for grad_output in (incoming.transpose(-1, -2), torch.ones((), dtype=q.dtype).expand(2, 2, 4, 3)):
        grads = torch.autograd.grad(cases.attention(backend, q, k, v), (q, k, v), grad_output)
        expected = torch.autograd.grad(cases.attention(backend, q, k, v), (q, k, v), grad_output.clone())
        for grad, expected_grad in zip(grads, expected, strict=True):
            cases.close(grad, expected_grad, backend)


@given(problem=cases.problems(batch_size=st.just(3)), is_single=st.tuples(st.booleans(), st.booleans(), st.booleans()))
@cases.examples(20)
def test_a_batch_of_one_broadcasts_and_its_gradient_is_summed(backend, problem, is_single):
    tensors = problem.tensors(cases.dtype_of(backend))
    inputs = cases.leaves(*(x[:1] if single else x for x, single in zip(tensors, is_single, strict=True)))

    output = cases.attention(backend, *inputs, mask=mask.causal())
    expected = direct.attention(*inputs, mask=direct.causal()).output
    weights = problem.normal(*expected.shape)

    assert output.shape == expected.shape
    cases.close(output, expected, backend)
    for grad, expected_grad in zip(
        cases.gradients(output, inputs, weights), cases.gradients(expected, inputs, weights), strict=True
    ):
        cases.close(grad, expected_grad, backend, times=10)


@given(problem=cases.problems(batch_size=st.just(3)))
@cases.examples(10)
def test_an_expanded_tensor_equals_a_copy(backend, problem):
    q, k, v = problem.tensors(cases.dtype_of(backend))
    k, v = (x[:1].expand(3, -1, -1, -1) for x in (k, v))

    cases.close(cases.attention(backend, q, k, v), direct.attention(q, k.clone(), v.clone()).output, backend)


@given(problem=cases.problems(batch_size=st.just(1), num_kv_heads=st.just(1), groups=st.just(1)))
@cases.examples(12)
def test_two_dimensions_are_length_and_head_dim(backend, problem):
    q, k, v = (x[0, 0] for x in problem.tensors(cases.dtype_of(backend)))

    result = cases.attention_with_weights(backend, q, k, v, mask=mask.causal())
    expected = direct.attention(q[None, None], k[None, None], v[None, None], mask=direct.causal())

    assert result.output.shape == (problem.n_q, problem.value_dim)
    assert result.lse.shape == (problem.n_q,)
    cases.close(result.output, expected.output[0, 0], backend)
    cases.close(result.lse, expected.lse[0, 0], backend)


@given(problem=cases.problems(num_kv_heads=st.just(1), groups=st.just(1)))
@cases.examples(12)
def test_three_dimensions_are_batch_length_and_head_dim(backend, problem):
    q, k, v = (x[:, 0] for x in problem.tensors(cases.dtype_of(backend)))

    result = cases.attention_with_weights(backend, q, k, v, mask=lambda b, h, i, j: (i + j + b) % 3 > h)
    expected = direct.attention(
        q[:, None], k[:, None], v[:, None], mask=lambda where: (where.i + where.j + where.b) % 3 > where.h
    )

    assert result.output.shape == (problem.batch_size, problem.n_q, problem.value_dim)
    assert result.lse.shape == (problem.batch_size, problem.n_q)
    cases.close(result.output, expected.output[:, 0], backend)
    cases.close(result.lse, expected.lse[:, 0], backend)


@given(problem=cases.problems(batch_size=st.just(6)))
@cases.examples(12)
def test_further_leading_dimensions_flatten_into_the_batch(backend, problem):
    q, k, v = problem.tensors(cases.dtype_of(backend))
    unflattened = [x.unflatten(0, (2, 3)) for x in (q, k, v)]
    lengths = torch.arange(6) % (problem.n_k + 1)

    result = cases.attention_with_weights(backend, *unflattened, mask=mask.padding(lengths))
    expected = direct.attention(q, k, v, mask=direct.padding(lengths))

    assert result.output.shape == (2, 3, problem.num_heads, problem.n_q, problem.value_dim)
    assert result.lse.shape == (2, 3, problem.num_heads, problem.n_q)
    cases.close(result.output.flatten(0, 1), expected.output, backend)
    cases.close(result.lse.flatten(0, 1), expected.lse, backend)


@given(problem=cases.problems(num_kv_heads=st.sampled_from([1, 2, 3]), groups=st.sampled_from([2, 3, 4])))
@cases.examples(15)
def test_groups_of_neighboring_query_heads_share_a_key_head(backend, problem):
    q, k, v = cases.leaves(*problem.tensors(cases.dtype_of(backend)))
    slopes = torch.linspace(0.1, 1, problem.num_heads, dtype=q.dtype)

    output = cases.attention(backend, q, k, v, score=score.alibi(slopes), mask=mask.causal())
    expected = direct.attention(q, k, v, modifiers=[direct.alibi(slopes.double())], mask=direct.causal()).output
    weights = problem.normal(*expected.shape)

    cases.close(output, expected, backend)
    for grad, expected_grad in zip(
        cases.gradients(output, (q, k, v), weights), cases.gradients(expected, (q, k, v), weights), strict=True
    ):
        cases.close(grad, expected_grad, backend, times=10)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_numpy_inputs_give_numpy_outputs(backend, dtype):
    if dtype == np.float64 and cases.dtype_of(backend) != torch.float64:
        pytest.skip("this backend does not support float64")
    q, k, v = (x.numpy().astype(dtype) for x in cases.Problem(2, 2, 1, 3, 4, 5, 6, seed=1).tensors())

    result = cases.attention_with_weights(backend, q, k, v, mask=mask.causal())
    expected = regard.attention(*(torch.from_numpy(x) for x in (q, k, v)), mask=mask.causal(), backend=backend)

    assert isinstance(result.output, np.ndarray)
    assert isinstance(result.lse, np.ndarray)
    assert result.output.dtype == dtype
    np.testing.assert_array_equal(result.output, expected.numpy())
    np.testing.assert_array_equal(cases.attention(backend, q, k, v, mask=mask.causal()), result.output)


def test_numpy_arrays_may_have_negative_strides_and_be_read_only(backend):
    q, k, v = (x.numpy() for x in cases.Problem(1, 2, 2, 3, 4, 5, 5, seed=1).tensors(cases.dtype_of(backend)))
    k, v = k[:, :, ::-1], v[:, :, ::-1]
    q.setflags(write=False)

    output = cases.attention(backend, q, k, v)

    np.testing.assert_array_equal(output, cases.attention(backend, q.copy(), k.copy(), v.copy()))


def test_numpy_masks_biases_and_lengths(backend):
    problem = cases.Problem(2, 2, 2, 3, 4, 5, 5, seed=1)
    q, k, v = problem.tensors(cases.dtype_of(backend))
    visible, bias = problem.random_mask(3, 4), problem.normal(2, 3, 4).to(q.dtype)
    lengths = torch.tensor([2, 4])
    arrays = [x.numpy() for x in (q, k, v)]

    masked = cases.attention(backend, *arrays, mask=visible.numpy())
    biased = cases.attention(backend, *arrays, score=score.bias(bias.numpy()), mask=mask.padding(lengths.numpy()))

    cases.close(torch.from_numpy(masked), direct.attention(q, k, v, mask=lambda where: visible).output, backend)
    expected = direct.attention(q, k, v, modifiers=[direct.bias(bias.double())], mask=direct.padding(lengths))
    cases.close(torch.from_numpy(biased), expected.output, backend)


@given(problem=cases.long_problems())
@cases.examples(8)
def test_lengths_at_tile_borders(backend, problem):
    q, k, v = problem.tensors(cases.dtype_of(backend))

    result = cases.attention_with_weights(backend, q, k, v)
    expected = direct.attention(q, k, v)

    cases.close(result.output, expected.output, backend)
    cases.close(result.lse, expected.lse, backend)
