"""The monoid of (output, lse) pairs, by itself: numbers by hand, rows that saw nothing, gradients, refusals."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import regard
from regard import mask, merge, weigh
from regard.errors import RegardError, SpecError

EXACT = dict(rtol=1e-12, atol=1e-13)  # float64, a handful of terms
# torch itself calls torch.jit.script to make some forward derivatives
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def part(q: Tensor, k: Tensor, v: Tensor, keys: slice, **options: object) -> tuple[Tensor, Tensor]:
    found = regard.attend(q, k[..., keys, :], v[..., keys, :], **options)
    return found.output, found.lse


def test_two_parts_of_equal_weight_are_averaged():
    output, lse = merge(
        (torch.tensor([[1.0, 0.0]]), torch.tensor([2.0])), (torch.tensor([[0.0, 3.0]]), torch.tensor([2.0]))
    )

    torch.testing.assert_close(output, torch.tensor([[0.5, 1.5]]))
    torch.testing.assert_close(lse, torch.tensor([2.0 + math.log(2.0)]))


def test_a_part_counts_by_the_exponential_of_its_lse():
    output, lse = merge(
        (torch.tensor([[1.0]]), torch.tensor([math.log(1.0)])), (torch.tensor([[5.0]]), torch.tensor([math.log(3.0)]))
    )

    torch.testing.assert_close(output, torch.tensor([[4.0]]))
    torch.testing.assert_close(lse, torch.tensor([math.log(4.0)]))


def test_one_part_is_itself():
    output, lse = normal(2, 3, 4, seed=1), normal(2, 3, seed=2)

    merged = merge((output, lse))

    torch.testing.assert_close(merged[0], output, **EXACT)
    torch.testing.assert_close(merged[1], lse, **EXACT)


@pytest.mark.parametrize("lead", [(), (2,), (2, 3), (2, 2, 3)])
def test_parts_of_the_keys_merge_to_all_of_them_in_any_number_of_dimensions(lead):
    q, k, v = normal(*lead, 5, 3, seed=1), normal(*lead, 9, 3, seed=2), normal(*lead, 9, 2, seed=3)

    output, lse = merge(*(part(q, k, v, s) for s in (slice(0, 4), slice(4, 5), slice(5, 9))))

    whole = regard.attend(q, k, v)
    torch.testing.assert_close(output, whole.output, **EXACT)
    torch.testing.assert_close(lse, whole.lse, **EXACT)


def test_scores_far_apart_neither_overflow_nor_lose_the_larger():
    parts = [(1.0, 1000.0), (9.0, -1000.0), (3.0, 1000.0)]

    output, lse = merge(*(tuple(torch.tensor(x, dtype=torch.float64) for x in ([[o]], [l])) for o, l in parts))

    # an lse of 1000 has 13 digits after it, and so have the shares
    torch.testing.assert_close(output, torch.tensor([[2.0]], dtype=torch.float64), rtol=1e-12, atol=0)
    torch.testing.assert_close(lse, torch.tensor([1000.0 + math.log(2.0)], dtype=torch.float64))


def test_a_part_that_saw_nothing_changes_nothing():
    seen = normal(3, 2, seed=1), normal(3, seed=2)
    nothing = torch.zeros(3, 2, dtype=torch.float64), torch.full((3,), -math.inf, dtype=torch.float64)

    for order in itertools.permutations((seen, nothing, nothing)):
        output, lse = merge(*order)
        torch.testing.assert_close(output, seen[0], **EXACT)
        torch.testing.assert_close(lse, seen[1], **EXACT)


def test_what_no_part_saw_is_zero_with_an_lse_of_minus_infinity():
    nothing = torch.zeros(3, 2), torch.full((3,), -math.inf)

    output, lse = merge(nothing, nothing)

    assert torch.equal(output, torch.zeros(3, 2))
    assert torch.equal(lse, torch.full((3,), -math.inf))


@pytest.mark.parametrize("logit", [0.0, -2.0, torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64)])
def test_parts_with_a_sink_merge_when_the_sink_is_given_again(logit):
    q, k, v = (normal(2, 3, 7, 4, seed=s) for s in (1, 2, 3))
    sink = weigh.sink(logit)

    output, lse = merge(part(q, k, v, slice(0, 3), weigh=sink), part(q, k, v, slice(3, 7), weigh=sink), sink=logit)

    whole = regard.attend(q, k, v, weigh=sink)
    torch.testing.assert_close(output, whole.output, **EXACT)
    torch.testing.assert_close(lse, whole.lse, **EXACT)


def test_with_a_sink_a_row_that_no_part_saw_is_zero():
    q, k, v = (normal(4, 3, seed=s) for s in (1, 2, 3))
    options = dict(weigh=weigh.sink(1.0), mask=lambda b, h, i, j: i != 2)

    output, lse = merge(part(q, k, v, slice(0, 2), **options), part(q, k, v, slice(2, 4), **options), sink=1.0)

    torch.testing.assert_close(output, regard.attention(q, k, v, **options), **EXACT)
    assert torch.equal(output[2], torch.zeros(3, dtype=torch.float64))
    assert float(lse[2]) == -math.inf


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_outputs_are_merged_in_float32_and_rounded_once(dtype):
    q, k, v = (normal(4, 40, 8, seed=s).to(dtype) for s in (1, 2, 3))
    parts = [part(q, k, v, slice(n, n + 10)) for n in range(0, 40, 10)]

    output, lse = merge(*parts)

    assert output.dtype == dtype
    assert lse.dtype == torch.float32
    exact, _ = merge(*((o.double(), l.double()) for o, l in parts))
    unit = torch.finfo(dtype).eps
    torch.testing.assert_close(output.double(), exact, rtol=unit, atol=unit * 1e-2)


def test_merge_has_its_derivatives():
    parts = [normal(3, 2, seed=1), normal(3, seed=2), normal(3, 2, seed=3), normal(3, seed=4), normal(seed=5)]
    leaves = [x.requires_grad_() for x in parts]

    def plain(o1: Tensor, l1: Tensor, o2: Tensor, l2: Tensor, sink: Tensor) -> tuple[Tensor, Tensor]:
        return merge((o1, l1), (o2, l2))

    def with_sink(o1: Tensor, l1: Tensor, o2: Tensor, l2: Tensor, sink: Tensor) -> tuple[Tensor, Tensor]:
        return merge((o1, l1), (o2, l2), sink=sink)

    assert gradcheck(plain, leaves, check_forward_ad=True)
    assert gradcheck(with_sink, leaves, check_forward_ad=True)
    assert gradgradcheck(with_sink, leaves)


@pytest.mark.parametrize("sink", [None, 0.5])
def test_rows_that_a_part_or_no_part_saw_have_finite_gradients_and_zero_where_nothing_was_seen(sink):
    q, k, v = (normal(4, 3, seed=s).requires_grad_() for s in (1, 2, 3))
    weighing = weigh.softmax() if sink is None else weigh.sink(sink)

    def first(b: object, h: object, i: object, j: object) -> object:
        return (i != 2) & (i != 1)

    parts = [
        part(q, k, v, slice(0, 2), weigh=weighing, mask=first),
        part(q, k, v, slice(2, 4), weigh=weighing, mask=lambda b, h, i, j: i != 2),
    ]
    output, _ = merge(*parts, sink=sink)
    found = torch.autograd.grad(output.sin().sum(), (q, k, v))
    may = torch.tensor([[1, 1, 1, 1], [0, 0, 1, 1], [0, 0, 0, 0], [1, 1, 1, 1]], dtype=torch.bool)
    whole = regard.attention(q, k, v, weigh=weighing, mask=may)
    expected = torch.autograd.grad(whole.sin().sum(), (q, k, v))

    assert torch.equal(found[0][2], torch.zeros(3, dtype=torch.float64))
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, **EXACT)


def test_a_long_row_merged_from_many_parts_is_the_whole():
    q, k, v = normal(2, 4, seed=1), normal(1000, 4, seed=2), normal(1000, 3, seed=3)

    parts = [part(q, k, v, slice(n, n + 25), mask=mask.causal(), start=998 - n) for n in range(0, 1000, 25)]

    torch.testing.assert_close(merge(*parts)[0], regard.attention(q, k, v, mask=mask.causal()), **EXACT)


def test_numpy_in_is_numpy_out():
    q, k, v = (normal(6, 3, seed=s).numpy() for s in (1, 2, 3))

    output, lse = merge(part(q, k, v, slice(0, 2)), part(q, k, v, slice(2, 6)))

    assert isinstance(output, np.ndarray)
    assert isinstance(lse, np.ndarray)
    np.testing.assert_allclose(output, regard.attention(q, k, v), rtol=1e-12)


def test_nothing_to_merge_is_refused():
    with pytest.raises(SpecError, match=r"at least one \(output, lse\) pair; got none"):
        merge()


def test_an_lse_of_another_shape_is_refused():
    with pytest.raises(SpecError, match=r"but for its width, \(2, 3\); got \(2, 3, 1\)"):
        merge((torch.zeros(2, 3, 4), torch.zeros(2, 3, 1)))


@pytest.mark.parametrize("shape", [(2, 3, 5), (2, 4, 4), (3, 4)])
def test_parts_of_different_shapes_are_refused(shape):
    with pytest.raises(RegardError, match=r"\(2, 3, 4\)"):
        merge((torch.zeros(2, 3, 4), torch.zeros(2, 3)), (torch.zeros(shape), torch.zeros(shape[:-1])))
