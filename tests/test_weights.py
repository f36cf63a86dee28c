"""Lazy weights: any index returns the entries and gradients of the dense matrix."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import regard
from regard import mask, normalizer, score
from regard.errors import ArgumentError, BudgetError, RegardError
from tests.laws import direct
from tests.random_tensors import normal

EXACT = dict(rtol=1e-12, atol=1e-14)  # float64, sums of about ten terms


def inputs(
    leading: tuple[int, ...] = (), n_q: int = 6, n_k: int = 7, head_dim: int = 3
) -> tuple[Tensor, Tensor, Tensor]:
    return (
        normal(*leading, n_q, head_dim, seed=1),
        normal(*leading, n_k, head_dim, seed=2),
        normal(*leading, n_k, head_dim, seed=3),
    )


def causal_matrix(q: Tensor, k: Tensor) -> Tensor:
    """Return causal softmax attention weights, written out."""
    n_q, n_k = q.shape[-2], k.shape[-2]
    visible = torch.arange(n_k) <= torch.arange(n_q).unsqueeze(-1) + n_k - n_q
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    exponentials = torch.where(visible, torch.exp(scores), 0.0)
    return exponentials / exponentials.sum(-1, keepdim=True)


def outer_index(matrix: Tensor, index: Any) -> Tensor:
    """Index a matrix such that each entry of the index applies to its own dimension."""
    entries = list(index) if isinstance(index, tuple) else [index]
    if not any(e is Ellipsis for e in entries):
        entries.append(Ellipsis)
    ellipsis = next(n for n, e in enumerate(entries) if e is Ellipsis)
    entries[ellipsis : ellipsis + 1] = [slice(None)] * (matrix.dim() - len(entries) + 1)
    result = matrix.numpy()
    for axis in reversed(range(matrix.dim())):
        entry = entries[axis]
        entry = entry.numpy() if isinstance(entry, Tensor) else entry
        result = result[(slice(None),) * axis + (entry,)]
    return torch.as_tensor(np.array(result, order="C"))


INDICES: dict[str, Any] = {
    "everything": ...,
    "empty tuple": (),
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
LEADING_SHAPES = {"2-D": (), "3-D": (3,), "4-D": (2, 3), "5-D": (2, 2, 3)}


@pytest.mark.parametrize("leading", LEADING_SHAPES.values(), ids=LEADING_SHAPES)
@pytest.mark.parametrize("index", INDICES.values(), ids=INDICES)
def test_indexing_equals_indexing_the_dense_matrix(index, leading):
    q, k, v = inputs(leading)
    weights = regard.attention_with_weights(q, k, v, mask=mask.causal()).weights

    output = weights[index]

    expected = outer_index(causal_matrix(q, k), index)
    assert output.shape == expected.shape
    torch.testing.assert_close(output, expected, **EXACT)


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
def test_each_index_applies_to_its_own_dimension(index):
    q, k, v = inputs((2, 3))

    torch.testing.assert_close(
        regard.attention_with_weights(q, k, v, mask=mask.causal()).weights[index],
        outer_index(causal_matrix(q, k), index),
        **EXACT,
    )


@pytest.mark.parametrize("index", [np.int64(2), np.int32(2), np.array(2)], ids=["int64", "int32", "array"])
def test_numpy_integers_are_valid_indices(index):
    weights = regard.attention_with_weights(*inputs()).weights

    assert torch.equal(weights[index], weights[2])
    assert torch.equal(weights[..., index], weights[..., 2])


def test_an_empty_list_selects_nothing():
    weights = regard.attention_with_weights(*inputs((2,))).weights

    assert weights[[]].shape == (0, 6, 7)
    assert weights[0, :, []].shape == (6, 0)


@pytest.mark.parametrize("leading, kv_leading", [((1, 4), (1, 2)), ((2, 6), (2, 2)), ((2, 4), (2, 1))])
def test_grouped_heads_are_indexed_by_query_head(leading, kv_leading):
    q, k, v = normal(*leading, 6, 3, seed=1), normal(*kv_leading, 7, 3, seed=2), normal(*kv_leading, 7, 3, seed=3)
    weights = regard.attention_with_weights(q, k, v, mask=mask.causal()).weights

    dense = causal_matrix(q, k.repeat_interleave(leading[1] // kv_leading[1], dim=1))

    assert weights.shape == (*leading, 6, 7)
    torch.testing.assert_close(weights[...], dense, **EXACT)
    torch.testing.assert_close(weights[:, [3, 0], 2, 1:4], dense[:, [3, 0], 2, 1:4], **EXACT)


def test_broadcast_batch_is_indexed_like_a_full_batch():
    q, k, v = normal(3, 2, 6, 3, seed=1), normal(1, 2, 7, 3, seed=2), normal(1, 2, 7, 3, seed=3)

    weights = regard.attention_with_weights(q, k, v, mask=mask.causal()).weights

    assert weights.shape == (3, 2, 6, 7)
    torch.testing.assert_close(weights[2, 1], causal_matrix(q, k)[2, 1], **EXACT)


NORMALIZERS: dict[str, tuple[Callable[[], Any], direct.Normalizer]] = {
    "softmax": (normalizer.softmax, direct.softmax()),
    "sink": (
        lambda: normalizer.sink(torch.tensor([0.3, -2.0], dtype=torch.float64)),
        direct.sink(torch.tensor([0.3, -2.0], dtype=torch.float64)),
    ),
    "sigmoid": (lambda: normalizer.sigmoid(-1.0), direct.sigmoid(-1.0)),
    "relu": (normalizer.relu, direct.relu()),
    "scaled relu": (lambda: normalizer.relu(0.3), direct.relu(0.3)),
}


@pytest.mark.parametrize("backend", regard.available_backends())
@pytest.mark.parametrize("name", NORMALIZERS)
def test_weights_of_every_normalizer(backend, name):
    q, k, v = inputs((2, 2))
    make_normalizer, direct_normalizer = NORMALIZERS[name]
    visible = (torch.arange(42).reshape(6, 7) * 5 % 7) < 4
    visible[3] = False

    result = regard.attention_with_weights(q, k, v, mask=visible, normalizer=make_normalizer(), backend=backend)

    expected = direct_normalizer(q @ k.mT / math.sqrt(3), visible.expand(2, 2, 6, 7))
    torch.testing.assert_close(result.weights[...], expected, **EXACT)
    torch.testing.assert_close(result.weights[1, :, [5, 3, 2], 4], expected[1][:, [5, 3, 2], 4], **EXACT)
    torch.testing.assert_close(result.weights[...] @ v, result.output, **EXACT)
    assert torch.equal(result.weights[...] == 0, expected == 0)


def test_a_fully_masked_query_has_zero_weights():
    q, k, v = inputs()

    weights = regard.attention_with_weights(q, k, v, mask=lambda b, h, i, j: i != 2).weights

    assert torch.equal(weights[2], torch.zeros(7, dtype=torch.float64))
    assert torch.equal(weights[:, 3] == 0, torch.arange(6) == 2)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_hidden_nonfinite_keys_do_not_affect_weights(value):
    q, k, v = inputs()
    expected = regard.attention_with_weights(q, k, v, mask=mask.padding([5])).weights[...]
    k[5:] = value

    weights = regard.attention_with_weights(q, k, v, mask=mask.padding([5])).weights

    torch.testing.assert_close(weights[...], expected, **EXACT)
    torch.testing.assert_close(weights[1, [4, 6]], expected[1, [4, 6]], **EXACT)


def test_only_indexed_entries_are_computed(monkeypatch):
    computed_shapes = []
    original = regard.weights.score_block

    def recording_score_block(spec, inputs, positions, q, k, finite=True):
        computed_shapes.append(positions.shape)
        return original(spec, inputs, positions, q, k, finite)

    q, k, v = inputs((2, 3), n_q=400, n_k=500)
    weights = regard.attention_with_weights(q, k, v).weights
    monkeypatch.setattr(regard.weights, "score_block", recording_score_block)

    output = weights[1, [0, 2], 100:110, ::50]

    assert output.shape == (2, 10, 10)
    assert computed_shapes == [(1, 2, 10, 10)]


def test_indexing_a_row_of_a_long_sequence():
    n = 200_000
    q, k, v = (normal(1, 4, seed=1), normal(n, 4, seed=2), normal(n, 4, seed=3))

    weights = regard.attention_with_weights(q, k, v).weights

    expected = torch.softmax(q @ k.mT / 2.0, dim=-1)
    torch.testing.assert_close(weights[0, ::1000], expected[0, ::1000], rtol=1e-11, atol=0)


def test_shape_len_and_repr():
    for leading in LEADING_SHAPES.values():
        weights = regard.attention_with_weights(*inputs(leading)).weights
        assert weights.shape == (*leading, 6, 7)
        assert len(weights) == (*leading, 6)[0]
    assert repr(weights) == "AttentionWeights(shape=(2, 2, 3, 6, 7), computed on request)"


def test_iterating_raises():
    weights = regard.attention_with_weights(*inputs()).weights

    with pytest.raises(ArgumentError, match=r"weights cannot be iterated.* compute all of them with to_dense\(\)"):
        list(weights)


@pytest.mark.parametrize("n_q, n_k", [(0, 4), (4, 0), (0, 0), (1, 1)])
def test_lengths_of_zero_and_one(n_q, n_k):
    weights = regard.attention_with_weights(*inputs((2,), n_q=n_q, n_k=n_k)).weights

    assert weights.shape == (2, n_q, n_k)
    assert weights[...].shape == weights.to_dense().shape == (2, n_q, n_k)
    assert weights[1, :, 0:1].shape == (n_q, min(n_k, 1))


# Errors.


@pytest.mark.parametrize(
    "index, axis, size", [(6, 0, 6), (-7, 0, 6), ((0, 7), 1, 7), ((0, -8), 1, 7), ((slice(None), [0, 7]), 1, 7)]
)
def test_an_index_out_of_range_raises_with_the_dimension(index, axis, size):
    weights = regard.attention_with_weights(*inputs()).weights

    with pytest.raises(IndexError, match=f"out of range for dimension {axis} of size {size}"):
        weights[index]


def test_too_many_indices_raise():
    with pytest.raises(ArgumentError, match=r"\(6, 7\) take at most 2 indices; got 3"):
        regard.attention_with_weights(*inputs()).weights[0, 0, 0]


def test_two_ellipses_raise():
    with pytest.raises(ArgumentError, match=r"at most one `\.\.\.`"):
        regard.attention_with_weights(*inputs((2, 2))).weights[..., 0, ...]


@pytest.mark.parametrize("index", [1.5, [0.5], torch.tensor([[0, 1], [1, 0]]), None, "a"], ids=str)
def test_invalid_indices_raise(index):
    with pytest.raises(RegardError, match="must be an integer, a slice or a list of integers; got"):
        regard.attention_with_weights(*inputs()).weights[index]


@pytest.mark.parametrize("length", [2, 5, 9])
def test_a_boolean_index_must_have_the_size_of_its_dimension(length):
    index = [True] * 2 + [False] * (length - 2)

    with pytest.raises((IndexError, RegardError), match="must have the size 6 of dimension 0; got"):
        regard.attention_with_weights(*inputs()).weights[index]


# The budget.


def test_to_dense_is_the_full_matrix():
    q, k, v = inputs((2, 3))
    weights = regard.attention_with_weights(q, k, v, mask=mask.causal()).weights

    torch.testing.assert_close(weights.to_dense(), causal_matrix(q, k), **EXACT)


@pytest.mark.parametrize(
    "dtype, size", [(torch.float64, 8), (torch.float32, 4), (torch.bfloat16, 4), (torch.float16, 4)]
)
def test_to_dense_respects_the_budget_to_the_byte(dtype, size):
    q, k, v = (x.to(dtype) for x in inputs((2, 5), n_q=10, n_k=20))
    weights = regard.attention_with_weights(q, k, v).weights
    num_bytes = 2 * 5 * 10 * 20 * size

    dense = weights.to_dense(budget=num_bytes)

    assert dense.numel() * dense.element_size() == num_bytes
    with pytest.raises(
        BudgetError, match=rf"\(2, 5, 10, 20\) must fit the budget of {num_bytes - 1}; they take {num_bytes:,} "
    ):
        weights.to_dense(budget=num_bytes - 1)


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
def test_budget_formats(budget, allowed):
    weights = regard.attention_with_weights(*inputs((2, 5), n_q=10, n_k=20)).weights  # 16,000 bytes

    if allowed:
        assert weights.to_dense(budget=budget).shape == (2, 5, 10, 20)
    else:
        with pytest.raises(BudgetError, match="16,000 bytes"):
            weights.to_dense(budget=budget)


@pytest.mark.parametrize("budget", ["", "GB", "1XB", "one GB", "1.2.3GB", "-1GB", None])
def test_invalid_budgets_raise(budget):
    with pytest.raises(ArgumentError, match="a budget must be a number of bytes such as '1GB' or '512MiB'"):
        regard.attention_with_weights(*inputs()).weights.to_dense(budget=budget)


def test_default_budget_is_one_gigabyte():
    n = 20_000
    q, k, v = (torch.zeros(4, 1, n, 1) for _ in range(3))
    weights = regard.attention_with_weights(q, k, v, mask=mask.sliding_window(1)).weights

    with pytest.raises(BudgetError, match=r"budget of 1GB; they take 6,400,000,000 bytes.*measure\(\.\.\.\)"):
        weights.to_dense()
    assert weights[3, 0, 19_999, 19_998:].tolist() == [0.0, 1.0]


# Gradients.


def gradients(result: Tensor, leaves: list[Tensor]) -> list[Tensor]:
    grad_output = normal(*result.shape, seed=9)
    grads = torch.autograd.grad(result, leaves, grad_output, allow_unused=True)
    return [torch.zeros_like(x) if g is None else g for x, g in zip(leaves, grads, strict=True)]


def leaves(*tensors: Tensor) -> list[Tensor]:
    return [x.detach().clone().requires_grad_() for x in tensors]


MakeOptions = Callable[..., dict[str, Any]]
LEARNED: dict[str, tuple[tuple[tuple[int, ...], ...], MakeOptions, MakeOptions]] = {
    "softmax": ((), dict, dict),
    "sink": (
        ((2,),),
        lambda b: dict(normalizer=normalizer.sink(b)),
        lambda b: dict(normalizer=direct.sink(b)),
    ),
    "learned sigmoid bias": (
        ((),),
        lambda b: dict(normalizer=normalizer.sigmoid(b)),
        lambda b: dict(normalizer=direct.sigmoid(b)),
    ),
    "relu": ((), lambda: dict(normalizer=normalizer.relu()), lambda: dict(normalizer=direct.relu())),
    "learned relu scale": (
        ((),),
        lambda c: dict(normalizer=normalizer.relu(c)),
        lambda c: dict(normalizer=direct.relu(c)),
    ),
    "bias of all pairs": (
        ((2, 2, 6, 7),),
        lambda t: dict(score=score.bias(t)),
        lambda t: dict(modifiers=[direct.bias(t)]),
    ),
    "table by distance": (
        ((2, 13),),
        lambda t: dict(score=lambda s, b, h, i, j: s * t[h, i - j + 6]),
        lambda t: dict(modifiers=[lambda s, where: s * t[where.h, where.i - where.j + 6]]),
    ),
    "bilinear": (
        ((3, 3),),
        lambda w: dict(score=score.bilinear(w)),
        lambda w: dict(score=direct.bilinear(w)),
    ),
    "gaussian": (
        ((),),
        lambda s: dict(score=score.gaussian(s)),
        lambda s: dict(score=direct.gaussian(s)),
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


@pytest.mark.parametrize("backend", regard.available_backends())
@pytest.mark.parametrize("index", [..., (1, 0, 2), (..., [0, 5, 5], slice(2, 6)), (0, 1, 5, 3)], ids=str)
@pytest.mark.parametrize("name", LEARNED)
def test_gradients_of_indexed_weights_equal_those_of_the_dense_matrix(backend, name, index):
    shapes, make_options, make_direct_options = LEARNED[name]
    q, k, v = inputs((2, 2))
    tensors = leaves(q, k, *(normal(*shape, seed=20 + n) for n, shape in enumerate(shapes)))
    q, k, *learned = tensors

    output = regard.attention_with_weights(
        q, k, v, mask=mask.causal(), backend=backend, **make_options(*learned)
    ).weights[index]
    dense = direct.attention(q, k, v, mask=direct.causal(), **make_direct_options(*learned)).weights
    expected = dense[index] if index != (..., [0, 5, 5], slice(2, 6)) else dense[..., [0, 5, 5], :][..., 2:6]

    torch.testing.assert_close(output, expected, **EXACT)
    for grad, expected_grad in zip(gradients(output, tensors), gradients(expected, tensors), strict=True):
        torch.testing.assert_close(grad, expected_grad, rtol=1e-10, atol=1e-12)


def test_gradcheck_and_gradgradcheck():
    q, k, v = inputs(n_q=3, n_k=4)

    def some_weights(q: Tensor, k: Tensor) -> Tensor:
        return regard.attention_with_weights(q, k, v, mask=mask.causal()).weights[1:, [0, 2]]

    leaf_q, leaf_k = leaves(q, k)
    assert torch.autograd.gradcheck(some_weights, (leaf_q, leaf_k))
    assert torch.autograd.gradgradcheck(some_weights, (leaf_q, leaf_k))


def test_a_fully_masked_row_has_zero_gradient():
    q, k, v = inputs()
    q, k = leaves(q, k)

    weights = regard.attention_with_weights(q, k, v, mask=lambda b, h, i, j: i != 2).weights
    grad_q, grad_k = gradients(weights[2], [q, k])

    assert torch.equal(grad_q, torch.zeros_like(q))
    assert torch.equal(grad_k, torch.zeros_like(k))


# Options of the call.


@pytest.mark.parametrize("backend", regard.available_backends())
def test_weights_are_those_before_dropout(backend):
    q, k, v = inputs((2, 2))

    dropped = regard.attention_with_weights(q, k, v, dropout=0.5, seed=3, backend=backend)
    plain = regard.attention_with_weights(q, k, v, backend=backend)

    assert torch.equal(dropped.weights[...], plain.weights[...])
    assert not torch.equal(dropped.output, plain.output)


def test_weights_do_not_depend_on_the_values():
    q, k, v = inputs()
    table = normal(5, 3, seed=4)

    plain = regard.attention_with_weights(q, k, v).weights[...]

    assert torch.equal(regard.attention_with_weights(q, k, v * 7, value=torch.tanh).weights[...], plain)
    assert torch.equal(regard.attention_with_weights(q, k, v, value=score.shaw_values(table)).weights[...], plain)


def test_weights_use_the_query_offset():
    q, k, v = inputs((2,))

    weights = regard.attention_with_weights(q, k, v, mask=mask.causal(), query_offset=[0, 4]).weights

    assert torch.equal(weights[0] > 0, torch.arange(7) <= torch.arange(6).unsqueeze(-1))
    assert torch.equal(weights[1] > 0, torch.arange(7) <= torch.arange(6).unsqueeze(-1) + 4)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_numpy_inputs_give_numpy_weights(dtype):
    q, k, v = (x.numpy().astype(dtype) for x in inputs())

    weights = regard.attention_with_weights(q, k, v, mask=mask.causal()).weights
    expected = causal_matrix(torch.as_tensor(q), torch.as_tensor(k)).numpy()

    for index in (..., 2, (slice(1, 3), [0, 4]), (1, 1)):
        output = weights[index]
        assert isinstance(output, np.ndarray)
        assert output.dtype == dtype
        np.testing.assert_allclose(output, expected[index], rtol=1e-5 if dtype == np.float32 else 1e-12)
    assert isinstance(weights.to_dense(), np.ndarray)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weights_of_half_precision_are_float32(dtype):
    q, k, v = (x.to(dtype) for x in inputs(n_q=30, n_k=30))

    output = regard.attention_with_weights(q, k, v, mask=mask.causal()).weights[...]

    assert output.dtype == torch.float32
    # products and exponentials are computed in float32
    torch.testing.assert_close(output.double(), causal_matrix(q.double(), k.double()), rtol=1e-5, atol=1e-7)
