"""The matrix that is never there: any part of it equals that part of the dense one, and has its gradient."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import regard
from regard import mask, score, weigh
from regard.errors import BudgetError, RegardError, SpecError
from tests.laws import direct

EXACT = dict(rtol=1e-12, atol=1e-14)  # float64, sums of some ten terms


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def inputs(lead: tuple[int, ...] = (), n_q: int = 6, n_k: int = 7, width: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    return normal(*lead, n_q, width, seed=1), normal(*lead, n_k, width, seed=2), normal(*lead, n_k, width, seed=3)


def causal_matrix(q: Tensor, k: Tensor) -> Tensor:
    """softmax of the scaled products, each query seeing the keys up to its own, written out."""
    n_q, n_k = q.shape[-2], k.shape[-2]
    sees = torch.arange(n_k) <= torch.arange(n_q).unsqueeze(-1) + n_k - n_q
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    powers = torch.where(sees, torch.exp(scores), 0.0)
    return powers / powers.sum(-1, keepdim=True)


def taken(whole: Tensor, index: Any) -> Tensor:
    """What an index takes if each of its entries acts on its own dimension, by NumPy's outer indexing."""
    entries = list(index) if isinstance(index, tuple) else [index]
    if not any(e is Ellipsis for e in entries):
        entries.append(Ellipsis)
    at = next(n for n, e in enumerate(entries) if e is Ellipsis)
    entries[at : at + 1] = [slice(None)] * (whole.dim() - len(entries) + 1)
    result = whole.numpy()
    for axis in reversed(range(whole.dim())):
        entry = entries[axis]
        entry = entry.numpy() if isinstance(entry, Tensor) else entry
        result = result[(slice(None),) * axis + (entry,)]
    return torch.as_tensor(np.array(result, order="C"))


INDICES: dict[str, Any] = {
    "everything": ...,
    "nothing given": (),
    "first": 0,
    "last": -1,
    "a slice": slice(1, 4),
    "to the end": slice(2, None),
    "a negative slice": slice(-3, -1),
    "every second": slice(None, None, 2),
    "every second from the second": slice(1, None, 2),
    "backwards": slice(None, None, -1),
    "backwards by two": slice(5, 0, -2),
    "beyond the end": slice(3, 1000),
    "an empty slice": slice(4, 2),
    "a list": [0, 1],
    "a list with repeats and negatives": [1, -1, 1],
    "a range": range(2),
    "a tensor": torch.tensor([1, 0]),
    "an array": np.array([1, 0]),
    "a single-number tensor": torch.tensor(1),
    "one key of all": (..., 3),
    "the last key of all": (..., -1),
    "some keys of all": (..., [0, 6, 3]),
    "a block": (..., slice(1, 3), slice(2, 6, 3)),
    "lists of rows and of keys": (..., [0, 5, 2], [6, 1]),
    "a row and some keys": (..., 2, [4, 4]),
    "one weight": (..., 4, 2),
    "one weight from the end": (..., -1, -7),
    "the first, then all": (0, ...),
    "the first, and one key": (0, ..., 1),
    "rows backwards, keys in steps": (..., slice(None, None, -1), slice(-1, None, -3)),
    "true for the rows": (..., [True, False, True, True, False, False], slice(None)),
    "true for the keys": (..., torch.tensor([True, False, False, True, False, False, True])),
}
LEADS = {"2-D": (), "3-D": (3,), "4-D": (2, 3), "5-D": (2, 2, 3)}


@pytest.mark.parametrize("lead", LEADS.values(), ids=LEADS)
@pytest.mark.parametrize("index", INDICES.values(), ids=INDICES)
def test_an_index_takes_what_it_takes_from_the_dense_matrix(index, lead):
    q, k, v = inputs(lead)
    weights = regard.attend(q, k, v, mask=mask.causal()).weights

    found = weights[index]

    expected = taken(causal_matrix(q, k), index)
    assert found.shape == expected.shape
    torch.testing.assert_close(found, expected, **EXACT)


@pytest.mark.parametrize(
    "index",
    [
        (1, 2, 3, 4),
        (-1, [0, 2, 2], slice(1, 5), [3, 1]),
        (slice(None, None, -1), 1, [5], slice(None)),
        ([1, 0], [2, 0, 1], [0, 5], [6, 0, 3]),
        ([0], ..., [1, 2]),
        (slice(0, 1), -2),
    ],
    ids=str,
)
def test_each_index_acts_on_its_own_dimension_also_when_all_are_given(index):
    q, k, v = inputs((2, 3))

    torch.testing.assert_close(
        regard.attend(q, k, v, mask=mask.causal()).weights[index], taken(causal_matrix(q, k), index), **EXACT
    )


@pytest.mark.parametrize("number", [np.int64(2), np.int32(2), np.array(2)], ids=["int64", "int32", "array"])
def test_a_whole_number_of_numpy_is_a_whole_number(number):
    weights = regard.attend(*inputs()).weights

    assert torch.equal(weights[number], weights[2])
    assert torch.equal(weights[..., number], weights[..., 2])


def test_an_empty_list_takes_nothing():
    weights = regard.attend(*inputs((2,))).weights

    assert weights[[]].shape == (0, 6, 7)
    assert weights[0, :, []].shape == (6, 0)


@pytest.mark.parametrize("lead, key_lead", [((1, 4), (1, 2)), ((2, 6), (2, 2)), ((2, 4), (2, 1))])
def test_grouped_heads_are_indexed_by_the_query_head(lead, key_lead):
    q, k, v = normal(*lead, 6, 3, seed=1), normal(*key_lead, 7, 3, seed=2), normal(*key_lead, 7, 3, seed=3)
    weights = regard.attend(q, k, v, mask=mask.causal()).weights

    whole = causal_matrix(q, k.repeat_interleave(lead[1] // key_lead[1], dim=1))

    assert weights.shape == (*lead, 6, 7)
    torch.testing.assert_close(weights[...], whole, **EXACT)
    torch.testing.assert_close(weights[:, [3, 0], 2, 1:4], whole[:, [3, 0], 2, 1:4], **EXACT)


def test_a_batch_of_one_that_is_shared_is_indexed_like_a_whole_one():
    q, k, v = normal(3, 2, 6, 3, seed=1), normal(1, 2, 7, 3, seed=2), normal(1, 2, 7, 3, seed=3)

    weights = regard.attend(q, k, v, mask=mask.causal()).weights

    assert weights.shape == (3, 2, 6, 7)
    torch.testing.assert_close(weights[2, 1], causal_matrix(q, k)[2, 1], **EXACT)


WEIGHINGS: dict[str, tuple[Callable[[], Any], direct.Weigh]] = {
    "softmax": (weigh.softmax, direct.softmax()),
    "sink": (
        lambda: weigh.sink(torch.tensor([0.3, -2.0], dtype=torch.float64)),
        direct.sink(torch.tensor([0.3, -2.0], dtype=torch.float64)),
    ),
    "sigmoid": (lambda: weigh.sigmoid(-1.0), direct.sigmoid(-1.0)),
    "relu": (weigh.relu, direct.relu()),
    "relu with a scale of its own": (lambda: weigh.relu(0.3), direct.relu(0.3)),
}


@pytest.mark.parametrize("engine", regard.engines())
@pytest.mark.parametrize("name", WEIGHINGS)
def test_every_weighing_shows_the_weights_it_used(engine, name):
    q, k, v = inputs((2, 2))
    ours, theirs = WEIGHINGS[name]
    may = (torch.arange(42).reshape(6, 7) * 5 % 7) < 4
    may[3] = False

    found = regard.attend(q, k, v, mask=may, weigh=ours(), engine=engine)

    expected = theirs(q @ k.mT / math.sqrt(3), may.expand(2, 2, 6, 7))
    torch.testing.assert_close(found.weights[...], expected, **EXACT)
    torch.testing.assert_close(found.weights[1, :, [5, 3, 2], 4], expected[1][:, [5, 3, 2], 4], **EXACT)
    torch.testing.assert_close(found.weights[...] @ v, found.output, **EXACT)
    assert torch.equal(found.weights[...] == 0, expected == 0)


def test_a_query_that_sees_nothing_has_weights_of_exactly_zero():
    q, k, v = inputs()

    weights = regard.attend(q, k, v, mask=lambda b, h, i, j: i != 2).weights

    assert torch.equal(weights[2], torch.zeros(7, dtype=torch.float64))
    assert torch.equal(weights[:, 3] == 0, torch.arange(6) == 2)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_hidden_reaches_no_weight_even_if_it_is_not_finite(bad):
    q, k, v = inputs()
    expected = regard.attend(q, k, v, mask=mask.padding([5])).weights[...]
    k[5:] = bad

    weights = regard.attend(q, k, v, mask=mask.padding([5])).weights

    torch.testing.assert_close(weights[...], expected, **EXACT)
    torch.testing.assert_close(weights[1, [4, 6]], expected[1, [4, 6]], **EXACT)


def test_only_what_is_asked_for_is_computed(monkeypatch):
    looked = []
    once = regard.weights.block

    def counted(spec, inputs, positions, q, k, finite=True):
        looked.append(positions.shape)
        return once(spec, inputs, positions, q, k, finite)

    q, k, v = inputs((2, 3), n_q=400, n_k=500)
    weights = regard.attend(q, k, v).weights
    monkeypatch.setattr(regard.weights, "block", counted)

    found = weights[1, [0, 2], 100:110, ::50]

    assert found.shape == (2, 10, 10)
    assert looked == [(1, 2, 10, 10)]


def test_a_row_of_a_long_sequence_costs_a_row():
    n = 200_000
    q, k, v = (normal(1, 4, seed=1), normal(n, 4, seed=2), normal(n, 4, seed=3))

    weights = regard.attend(q, k, v).weights

    expected = torch.softmax(q @ k.mT / 2.0, dim=-1)
    torch.testing.assert_close(weights[0, ::1000], expected[0, ::1000], rtol=1e-11, atol=0)


def test_the_shape_is_that_of_the_caller_and_the_two_lengths():
    for lead in LEADS.values():
        weights = regard.attend(*inputs(lead)).weights
        assert weights.shape == (*lead, 6, 7)
        assert len(weights) == (*lead, 6)[0]
    assert repr(weights) == "Weights(shape=(2, 2, 3, 6, 7), computed on request)"


def test_weights_are_not_walked_through_since_that_would_compute_them_row_by_row():
    weights = regard.attend(*inputs()).weights

    with pytest.raises(SpecError, match=r"not walked through; index them, or make them with dense\(\)"):
        list(weights)


@pytest.mark.parametrize("n_q, n_k", [(0, 4), (4, 0), (0, 0), (1, 1)])
def test_lengths_of_none_and_one_are_fine(n_q, n_k):
    weights = regard.attend(*inputs((2,), n_q=n_q, n_k=n_k)).weights

    assert weights.shape == (2, n_q, n_k)
    assert weights[...].shape == weights.dense().shape == (2, n_q, n_k)
    assert weights[1, :, 0:1].shape == (n_q, min(n_k, 1))


# Errors.


@pytest.mark.parametrize(
    "index, axis, size", [(6, 0, 6), (-7, 0, 6), ((0, 7), 1, 7), ((0, -8), 1, 7), ((slice(None), [0, 7]), 1, 7)]
)
def test_an_index_out_of_range_names_the_dimension(index, axis, size):
    weights = regard.attend(*inputs()).weights

    with pytest.raises(IndexError, match=f"out of range for dimension {axis} of size {size}"):
        weights[index]


def test_too_many_indices_are_counted():
    with pytest.raises(SpecError, match=r"\(6, 7\) must get at most 2 indices; got 3"):
        regard.attend(*inputs()).weights[0, 0, 0]


def test_two_ellipses_are_one_too_many():
    with pytest.raises(SpecError, match=r"at most one `\.\.\.`"):
        regard.attend(*inputs((2, 2))).weights[..., 0, ...]


@pytest.mark.parametrize("wrong", [1.5, [0.5], torch.tensor([[0, 1], [1, 0]]), None, "a"], ids=str)
def test_what_is_no_index_is_refused(wrong):
    with pytest.raises(RegardError, match="must be a whole number, a slice or a list of them; got"):
        regard.attend(*inputs()).weights[wrong]


@pytest.mark.parametrize("length", [2, 5, 9])
def test_truth_values_must_be_as_many_as_the_dimension_is_long(length):
    chosen = [True] * 2 + [False] * (length - 2)

    with pytest.raises((IndexError, RegardError), match="6"):
        regard.attend(*inputs()).weights[chosen]


# The budget.


def test_dense_is_the_whole_matrix():
    q, k, v = inputs((2, 3))
    weights = regard.attend(q, k, v, mask=mask.causal()).weights

    torch.testing.assert_close(weights.dense(), causal_matrix(q, k), **EXACT)


@pytest.mark.parametrize(
    "dtype, size", [(torch.float64, 8), (torch.float32, 4), (torch.bfloat16, 4), (torch.float16, 4)]
)
def test_dense_fits_the_budget_to_the_byte_and_is_refused_beyond(dtype, size):
    q, k, v = (x.to(dtype) for x in inputs((2, 5), n_q=10, n_k=20))
    weights = regard.attend(q, k, v).weights
    takes = 2 * 5 * 10 * 20 * size

    whole = weights.dense(budget=takes)

    assert whole.numel() * whole.element_size() == takes
    with pytest.raises(
        BudgetError, match=rf"\(2, 5, 10, 20\) must fit the budget of {takes - 1}; they take {takes:,} "
    ):
        weights.dense(budget=takes - 1)


@pytest.mark.parametrize(
    "budget, allowed",
    [
        ("16KB", True),
        ("15.9KB", False),
        ("15.625KiB", True),
        ("15.6 KiB", False),
        ("16000", True),
        ("15999 B", False),
        ("0.016mb", True),
        ("1GB", True),
        ("1 GiB", True),
        ("0GB", False),
        (16000, True),
        (15999, False),
        (16e3, True),
        (15.9e3, False),
        (np.int64(16000), True),
    ],
)
def test_a_budget_is_a_number_of_bytes_with_or_without_a_unit(budget, allowed):
    weights = regard.attend(*inputs((2, 5), n_q=10, n_k=20)).weights  # 16,000 bytes

    if allowed:
        assert weights.dense(budget=budget).shape == (2, 5, 10, 20)
    else:
        with pytest.raises(BudgetError, match="16,000 bytes"):
            weights.dense(budget=budget)


@pytest.mark.parametrize("budget", ["", "GB", "1XB", "one GB", "1.2.3GB", "-1GB", None])
def test_a_budget_that_is_no_number_of_bytes_is_refused(budget):
    with pytest.raises(SpecError, match="a budget must be a number of bytes such as '1GB' or '512MiB'"):
        regard.attend(*inputs()).weights.dense(budget=budget)


def test_without_a_budget_a_gigabyte_is_the_most():
    n = 20_000
    q, k, v = (torch.zeros(4, 1, n, 1) for _ in range(3))
    weights = regard.attend(q, k, v, mask=mask.window(1)).weights

    with pytest.raises(BudgetError, match=r"budget of 1GB; they take 6,400,000,000 bytes.*measure\(\.\.\.\)"):
        weights.dense()
    assert weights[3, 0, 19_999, 19_998:].tolist() == [0.0, 1.0]


# Gradients.


def gradients(result: Tensor, leaves: list[Tensor]) -> list[Tensor]:
    pull = normal(*result.shape, seed=9)
    found = torch.autograd.grad(result, leaves, pull, allow_unused=True)
    return [torch.zeros_like(x) if g is None else g for x, g in zip(leaves, found, strict=True)]


def leaves(*tensors: Tensor) -> list[Tensor]:
    return [x.detach().clone().requires_grad_() for x in tensors]


Learned = Callable[..., dict[str, Any]]
LEARNED: dict[str, tuple[tuple[tuple[int, ...], ...], Learned, Learned]] = {
    "softmax": ((), dict, dict),
    "sink": (
        ((2,),),
        lambda b: dict(weigh=weigh.sink(b)),
        lambda b: dict(weigh=direct.sink(b)),
    ),
    "sigmoid with a bias": (
        ((),),
        lambda b: dict(weigh=weigh.sigmoid(b)),
        lambda b: dict(weigh=direct.sigmoid(b)),
    ),
    "relu": ((), lambda: dict(weigh=weigh.relu()), lambda: dict(weigh=direct.relu())),
    "relu with a scale": (
        ((),),
        lambda c: dict(weigh=weigh.relu(c)),
        lambda c: dict(weigh=direct.relu(c)),
    ),
    "a bias of all pairs": (
        ((2, 2, 6, 7),),
        lambda t: dict(score=score.bias(t)),
        lambda t: dict(rules=[direct.bias(t)]),
    ),
    "a table by distance": (
        ((2, 13),),
        lambda t: dict(score=lambda s, b, h, i, j: s * t[h, i - j + 6]),
        lambda t: dict(rules=[lambda s, where: s * t[where.h, where.i - where.j + 6]]),
    ),
    "multiplicative": (
        ((3, 3),),
        lambda w: dict(score=score.multiplicative(w)),
        lambda w: dict(score=direct.multiplicative(w)),
    ),
    "metric": (
        ((),),
        lambda s: dict(score=score.metric(s)),
        lambda s: dict(score=direct.metric(s)),
    ),
    "additive": (
        ((3, 4), (3, 4), (4,), (4,)),
        lambda *w: dict(score=score.additive(*w)),
        lambda *w: dict(score=direct.additive(*w)),
    ),
    "custom": (
        ((3,),),
        lambda w: dict(score=score.custom(lambda q, k: (q * w) @ k.mT)),
        lambda w: dict(score=lambda q, k: (q * w) @ k.mT),
    ),
}


@pytest.mark.parametrize("engine", regard.engines())
@pytest.mark.parametrize("index", [..., (1, 0, 2), (..., [0, 5, 5], slice(2, 6)), (0, 1, 5, 3)], ids=str)
@pytest.mark.parametrize("name", LEARNED)
def test_what_is_taken_has_the_gradient_of_the_dense_matrix(engine, name, index):
    shapes, ours, theirs = LEARNED[name]
    q, k, v = inputs((2, 2))
    tensors = leaves(q, k, *(normal(*shape, seed=20 + n) for n, shape in enumerate(shapes)))
    q, k, *learned = tensors

    found = regard.attend(q, k, v, mask=mask.causal(), engine=engine, **ours(*learned)).weights[index]
    whole = direct.attention(q, k, v, mask=direct.causal(), **theirs(*learned)).weights
    expected = whole[index] if index != (..., [0, 5, 5], slice(2, 6)) else whole[..., [0, 5, 5], :][..., 2:6]

    torch.testing.assert_close(found, expected, **EXACT)
    for a, b in zip(gradients(found, tensors), gradients(expected, tensors), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


def test_weights_can_be_differentiated_twice():
    q, k, v = inputs(n_q=3, n_k=4)

    def some(q: Tensor, k: Tensor) -> Tensor:
        return regard.attend(q, k, v, mask=mask.causal()).weights[1:, [0, 2]]

    leaf_q, leaf_k = leaves(q, k)
    assert torch.autograd.gradcheck(some, (leaf_q, leaf_k))
    assert torch.autograd.gradgradcheck(some, (leaf_q, leaf_k))


def test_the_gradient_of_a_row_that_sees_nothing_is_zero():
    q, k, v = inputs()
    q, k = leaves(q, k)

    weights = regard.attend(q, k, v, mask=lambda b, h, i, j: i != 2).weights
    of_q, of_k = gradients(weights[2], [q, k])

    assert torch.equal(of_q, torch.zeros_like(q))
    assert torch.equal(of_k, torch.zeros_like(k))


# What was asked is what is shown.


@pytest.mark.parametrize("engine", regard.engines())
def test_weights_are_shown_before_dropout(engine):
    q, k, v = inputs((2, 2))

    dropped = regard.attend(q, k, v, dropout=0.5, seed=3, engine=engine)
    kept = regard.attend(q, k, v, engine=engine)

    assert torch.equal(dropped.weights[...], kept.weights[...])
    assert not torch.equal(dropped.output, kept.output)


def test_weights_know_nothing_of_the_values():
    q, k, v = inputs()
    table = normal(5, 3, seed=4)

    plain = regard.attend(q, k, v).weights[...]

    assert torch.equal(regard.attend(q, k, v * 7, value=torch.tanh).weights[...], plain)
    assert torch.equal(regard.attend(q, k, v, value=score.shaw_values(table)).weights[...], plain)


def test_weights_stand_where_their_queries_stand():
    q, k, v = inputs((2,))

    weights = regard.attend(q, k, v, mask=mask.causal(), start=[0, 4]).weights

    assert torch.equal(weights[0] > 0, torch.arange(7) <= torch.arange(6).unsqueeze(-1))
    assert torch.equal(weights[1] > 0, torch.arange(7) <= torch.arange(6).unsqueeze(-1) + 4)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_numpy_in_is_numpy_out(dtype):
    q, k, v = (x.numpy().astype(dtype) for x in inputs())

    weights = regard.attend(q, k, v, mask=mask.causal()).weights
    expected = causal_matrix(torch.as_tensor(q), torch.as_tensor(k)).numpy()

    for index in (..., 2, (slice(1, 3), [0, 4]), (1, 1)):
        found = weights[index]
        assert isinstance(found, np.ndarray)
        assert found.dtype == dtype
        wanted = expected[index] if index != (1, 1) else expected[1, 1]
        np.testing.assert_allclose(found, wanted, rtol=1e-5 if dtype == np.float32 else 1e-12)
    assert isinstance(weights.dense(), np.ndarray)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weights_of_half_precision_are_kept_in_float32(dtype):
    q, k, v = (x.to(dtype) for x in inputs(n_q=30, n_k=30))

    found = regard.attend(q, k, v, mask=mask.causal()).weights[...]

    assert found.dtype == torch.float32
    # the products are exact in float32 up to their sum's rounding, and so are the exponentials
    torch.testing.assert_close(found.double(), causal_matrix(q.double(), k.double()), rtol=1e-5, atol=1e-7)
