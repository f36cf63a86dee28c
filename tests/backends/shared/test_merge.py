"""merge_states: values by hand, fully masked rows, gradients and errors."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import regard
from regard import mask, merge_states, normalizer
from regard.errors import ArgumentError, RegardError
from tests.random_tensors import normal

EXACT = dict(rtol=1e-12, atol=1e-13)  # float64, a handful of terms
# torch itself calls torch.jit.script for some forward derivatives
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")


def partial_state(q: Tensor, k: Tensor, v: Tensor, keys: slice, **options: object) -> tuple[Tensor, Tensor]:
    actual = regard.attention_with_weights(q, k[..., keys, :], v[..., keys, :], **options)
    return actual.output, actual.lse


def test_two_states_of_equal_lse_are_averaged():
    output, lse = merge_states(
        (torch.tensor([[1.0, 0.0]]), torch.tensor([2.0])), (torch.tensor([[0.0, 3.0]]), torch.tensor([2.0]))
    )

    torch.testing.assert_close(output, torch.tensor([[0.5, 1.5]]))
    torch.testing.assert_close(lse, torch.tensor([2.0 + math.log(2.0)]))


def test_states_are_weighted_by_the_exponential_of_their_lse():
    output, lse = merge_states(
        (torch.tensor([[1.0]]), torch.tensor([math.log(1.0)])), (torch.tensor([[5.0]]), torch.tensor([math.log(3.0)]))
    )

    torch.testing.assert_close(output, torch.tensor([[4.0]]))
    torch.testing.assert_close(lse, torch.tensor([math.log(4.0)]))


def test_one_state_is_returned_unchanged():
    output, lse = normal(2, 3, 4, seed=1), normal(2, 3, seed=2)

    merged = merge_states((output, lse))

    torch.testing.assert_close(merged[0], output, **EXACT)
    torch.testing.assert_close(merged[1], lse, **EXACT)


@pytest.mark.parametrize("lead", [(), (2,), (2, 3), (2, 2, 3)])
def test_states_of_key_ranges_merge_to_the_state_of_all_keys(lead):
    q, k, v = normal(*lead, 5, 3, seed=1), normal(*lead, 9, 3, seed=2), normal(*lead, 9, 2, seed=3)

    output, lse = merge_states(*(partial_state(q, k, v, s) for s in (slice(0, 4), slice(4, 5), slice(5, 9))))

    whole = regard.attention_with_weights(q, k, v)
    torch.testing.assert_close(output, whole.output, **EXACT)
    torch.testing.assert_close(lse, whole.lse, **EXACT)


def test_scores_far_apart_merge_without_overflow():
    states = [(1.0, 1000.0), (9.0, -1000.0), (3.0, 1000.0)]

    output, lse = merge_states(*(tuple(torch.tensor(x, dtype=torch.float64) for x in ([[o]], [l])) for o, l in states))

    # an lse of 1000 has 13 digits after the point in float64, and so have the merged weights
    torch.testing.assert_close(output, torch.tensor([[2.0]], dtype=torch.float64), rtol=1e-12, atol=0)
    torch.testing.assert_close(lse, torch.tensor([1000.0 + math.log(2.0)], dtype=torch.float64))


def test_fully_masked_state_changes_nothing():
    visible_state = normal(3, 2, seed=1), normal(3, seed=2)
    nothing = torch.zeros(3, 2, dtype=torch.float64), torch.full((3,), -math.inf, dtype=torch.float64)

    for order in itertools.permutations((visible_state, nothing, nothing)):
        output, lse = merge_states(*order)
        torch.testing.assert_close(output, visible_state[0], **EXACT)
        torch.testing.assert_close(lse, visible_state[1], **EXACT)


def test_merged_fully_masked_rows_are_zero_with_lse_of_minus_infinity():
    nothing = torch.zeros(3, 2), torch.full((3,), -math.inf)

    output, lse = merge_states(nothing, nothing)

    assert torch.equal(output, torch.zeros(3, 2))
    assert torch.equal(lse, torch.full((3,), -math.inf))


@pytest.mark.parametrize("logit", [0.0, -2.0, torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64)])
def test_states_with_a_sink_merge_if_the_sink_is_passed(logit):
    q, k, v = (normal(2, 3, 7, 4, seed=s) for s in (1, 2, 3))
    sink = normalizer.sink(logit)

    output, lse = merge_states(
        partial_state(q, k, v, slice(0, 3), normalizer=sink),
        partial_state(q, k, v, slice(3, 7), normalizer=sink),
        sink=logit,
    )

    whole = regard.attention_with_weights(q, k, v, normalizer=sink)
    torch.testing.assert_close(output, whole.output, **EXACT)
    torch.testing.assert_close(lse, whole.lse, **EXACT)


def test_fully_masked_row_with_a_sink_is_zero():
    q, k, v = (normal(4, 3, seed=s) for s in (1, 2, 3))
    options = dict(normalizer=normalizer.sink(1.0), mask=lambda b, h, i, j: i != 2)

    output, lse = merge_states(
        partial_state(q, k, v, slice(0, 2), **options), partial_state(q, k, v, slice(2, 4), **options), sink=1.0
    )

    torch.testing.assert_close(output, regard.attention(q, k, v, **options), **EXACT)
    assert torch.equal(output[2], torch.zeros(3, dtype=torch.float64))
    assert float(lse[2]) == -math.inf


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_outputs_are_merged_in_float32_and_rounded_once(dtype):
    q, k, v = (normal(4, 40, 8, seed=s).to(dtype) for s in (1, 2, 3))
    states = [partial_state(q, k, v, slice(n, n + 10)) for n in range(0, 40, 10)]

    output, lse = merge_states(*states)

    assert output.dtype == dtype
    assert lse.dtype == torch.float32
    exact, _ = merge_states(*((o.double(), l.double()) for o, l in states))
    unit = torch.finfo(dtype).eps
    torch.testing.assert_close(output.double(), exact, rtol=unit, atol=unit * 1e-2)


def test_derivatives_of_merge_states_are_right():
    states = [normal(3, 2, seed=1), normal(3, seed=2), normal(3, 2, seed=3), normal(3, seed=4), normal(seed=5)]
    leaves = [x.requires_grad_() for x in states]

    def plain(o1: Tensor, l1: Tensor, o2: Tensor, l2: Tensor, sink: Tensor) -> tuple[Tensor, Tensor]:
        return merge_states((o1, l1), (o2, l2))

    def with_sink(o1: Tensor, l1: Tensor, o2: Tensor, l2: Tensor, sink: Tensor) -> tuple[Tensor, Tensor]:
        return merge_states((o1, l1), (o2, l2), sink=sink)

    assert gradcheck(plain, leaves, check_forward_ad=True)
    assert gradcheck(with_sink, leaves, check_forward_ad=True)
    assert gradgradcheck(with_sink, leaves)


@pytest.mark.parametrize("sink", [None, 0.5])
def test_gradients_of_merged_rows_are_finite_and_zero_for_fully_masked_rows(sink):
    q, k, v = (normal(4, 3, seed=s).requires_grad_() for s in (1, 2, 3))
    normalizer_name = normalizer.softmax() if sink is None else normalizer.sink(sink)

    def first(b: object, h: object, i: object, j: object) -> object:
        return (i != 2) & (i != 1)

    states = [
        partial_state(q, k, v, slice(0, 2), normalizer=normalizer_name, mask=first),
        partial_state(q, k, v, slice(2, 4), normalizer=normalizer_name, mask=lambda b, h, i, j: i != 2),
    ]
    output, _ = merge_states(*states, sink=sink)
    actual = torch.autograd.grad(output.sin().sum(), (q, k, v))
    visible = torch.tensor([[1, 1, 1, 1], [0, 0, 1, 1], [0, 0, 0, 0], [1, 1, 1, 1]], dtype=torch.bool)
    whole = regard.attention(q, k, v, normalizer=normalizer_name, mask=visible)
    expected = torch.autograd.grad(whole.sin().sum(), (q, k, v))

    assert torch.equal(actual[0][2], torch.zeros(3, dtype=torch.float64))
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, b, **EXACT)


def test_long_row_merged_from_many_states_equals_the_whole():
    q, k, v = normal(2, 4, seed=1), normal(1000, 4, seed=2), normal(1000, 3, seed=3)

    states = [
        partial_state(q, k, v, slice(n, n + 25), mask=mask.causal(), query_offset=998 - n) for n in range(0, 1000, 25)
    ]

    torch.testing.assert_close(merge_states(*states)[0], regard.attention(q, k, v, mask=mask.causal()), **EXACT)


def test_numpy_in_is_numpy_out():
    q, k, v = (normal(6, 3, seed=s).numpy() for s in (1, 2, 3))

    output, lse = merge_states(partial_state(q, k, v, slice(0, 2)), partial_state(q, k, v, slice(2, 6)))

    assert isinstance(output, np.ndarray)
    assert isinstance(lse, np.ndarray)
    np.testing.assert_allclose(output, regard.attention(q, k, v), rtol=1e-12)


def test_merging_no_states_raises_error():
    with pytest.raises(ArgumentError, match=r"at least one pair \(output, lse\); got none"):
        merge_states()


def test_lse_of_another_shape_raises_error():
    with pytest.raises(ArgumentError, match=r"without its last dimension, \(2, 3\); got \(2, 3, 1\)"):
        merge_states((torch.zeros(2, 3, 4), torch.zeros(2, 3, 1)))


@pytest.mark.parametrize("shape", [(2, 3, 5), (2, 4, 4), (3, 4)])
def test_states_of_different_shapes_raise_error(shape):
    with pytest.raises(RegardError, match=r"\(2, 3, 4\)"):
        merge_states((torch.zeros(2, 3, 4), torch.zeros(2, 3)), (torch.zeros(shape), torch.zeros(shape[:-1])))
