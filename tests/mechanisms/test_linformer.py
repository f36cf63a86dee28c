"""Linformer against the package linformer and the formula; efficient attention against the formula."""

import pytest
import torch
from linformer import LinformerSelfAttention
from torch import Tensor
from torch.autograd import gradcheck

from regard import score
from regard.attention import attention
from regard.errors import ArgumentError
from regard.mechanisms.linformer import efficient_attention, linformer_attention
from tests.mechanisms.random_inputs import random_grouped_inputs

NUM_SUMS = 6


def reference(q: Tensor, k: Tensor, v: Tensor, e: Tensor, f: Tensor) -> Tensor:
    """Compute each head from explicit sums of keys and values and a softmax over them."""
    output = q.new_zeros(*q.shape[:-1], v.shape[-1])
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            g = h // (q.shape[1] // k.shape[1])
            own_e, own_f = (x[g] if x.dim() == 3 else x for x in (e, f))
            keys = [sum(own_e[s, j] * k[b, g, j] for j in range(k.shape[2])) for s in range(own_e.shape[0])]
            values = [sum(own_f[s, j] * v[b, g, j] for j in range(k.shape[2])) for s in range(own_e.shape[0])]
            for i in range(q.shape[2]):
                scores = torch.stack([q[b, h, i] @ key / q.shape[-1] ** 0.5 for key in keys])
                weights = scores.exp() / scores.exp().sum()
                output[b, h, i] = sum(w * value for w, value in zip(weights, values, strict=True))
    return output


@pytest.mark.parametrize("per_head", [False, True])
@pytest.mark.parametrize("num_kv_heads", [4, 2])
@pytest.mark.parametrize("n_q, n_k", [(9, 9), (3, 11), (1, 1)])
def test_linformer_matches_the_reference(per_head: bool, num_kv_heads: int, n_q: int, n_k: int) -> None:
    q, k, v = random_grouped_inputs(n_q, n_k, num_kv_heads=num_kv_heads)
    e, f = torch.randn(2, *([num_kv_heads] if per_head else []), NUM_SUMS, n_k, dtype=torch.float64)

    output = linformer_attention(q, k, v, e, f)

    torch.testing.assert_close(output, reference(q, k, v, e, f))


def test_f_defaults_to_e() -> None:
    q, k, v = random_grouped_inputs(7, 7)
    e = torch.randn(NUM_SUMS, 7, dtype=torch.float64)

    torch.testing.assert_close(linformer_attention(q, k, v, e), reference(q, k, v, e, e))


@pytest.mark.parametrize("n", [1, 40])
def test_the_identity_is_full_attention(n: int) -> None:
    q, k, v = random_grouped_inputs(n, n)

    output = linformer_attention(q, k, v, torch.eye(n, dtype=torch.float64))

    torch.testing.assert_close(output, attention(q, k, v))


def test_score_is_passed_to_attention() -> None:
    q, k, v = random_grouped_inputs(7, 7)
    e = torch.randn(NUM_SUMS, 7, dtype=torch.float64)

    output = linformer_attention(q, k, v, e, score=score.cosine(3.0))

    torch.testing.assert_close(output, attention(q, e @ k, e @ v, score=score.cosine(3.0)))


def test_dropout_is_passed_to_attention() -> None:
    q, k, v = random_grouped_inputs(7, 7)
    e = torch.randn(NUM_SUMS, 7, dtype=torch.float64)

    output = linformer_attention(q, k, v, e, dropout=0.5, seed=3)

    torch.testing.assert_close(output, attention(q, e @ k, e @ v, dropout=0.5, seed=3))


@pytest.mark.parametrize("length", [20, 13], ids=["full", "sliced"])
@pytest.mark.parametrize("one_kv_head", [False, True])
@pytest.mark.parametrize("share_kv", [False, True])
@pytest.mark.parametrize("cross", [False, True])
def test_linformer_matches_the_linformer_package(length: int, one_kv_head: bool, share_kv: bool, cross: bool) -> None:
    layer = LinformerSelfAttention(32, 20, k=NUM_SUMS, heads=4, one_kv_head=one_kv_head, share_kv=share_kv).double()
    x = torch.randn(2, length, 32, dtype=torch.float64)
    context = torch.randn(2, length, 32, dtype=torch.float64) if cross else None
    source = x if context is None else context

    def heads(rows: Tensor) -> Tensor:
        return rows.unflatten(-1, (-1, 8)).transpose(1, 2)

    e = layer.proj_k.mT[:, :length]
    f = None if share_kv else layer.proj_v.mT[:, :length]
    keys, values = layer.to_k(source), (layer.to_k if share_kv else layer.to_v)(source)
    output = linformer_attention(heads(layer.to_q(x)), heads(keys), heads(values), e, f)

    torch.testing.assert_close(layer.to_out(output.transpose(1, 2).flatten(2)), layer(x, context=context))


def test_a_sliced_matrix_equals_zero_padding() -> None:
    q, k, v = random_grouped_inputs(7, 7)
    e = torch.randn(NUM_SUMS, 12, dtype=torch.float64)
    longer = [torch.nn.functional.pad(x, (0, 0, 0, 5)) for x in (k, v)]

    torch.testing.assert_close(linformer_attention(q, k, v, e[:, :7]), linformer_attention(q, *longer, e))


def test_gradients_of_all_inputs() -> None:
    sizes = ((4, 3), (5, 3), (5, 2), (2, 5), (2, 5))
    inputs = [torch.randn(size, dtype=torch.float64, requires_grad=True) for size in sizes]

    assert gradcheck(linformer_attention, inputs)
    assert gradcheck(efficient_attention, inputs[:3])


def efficient_reference(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Compute the weight of each pair as a sum over channels."""
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, dim=1) for x in (k, v))
    query_weights, key_weights = q.exp() / q.exp().sum(-1, keepdim=True), k.exp() / k.exp().sum(-2, keepdim=True)
    weights = torch.einsum("bhic,bhjc->bhij", query_weights, key_weights)
    return torch.einsum("bhij,bhjd->bhid", weights, v)


@pytest.mark.parametrize("num_kv_heads", [4, 2])
@pytest.mark.parametrize("n_q, n_k", [(9, 9), (3, 11), (1, 1)])
def test_efficient_attention_matches_the_reference(num_kv_heads: int, n_q: int, n_k: int) -> None:
    q, k, v = random_grouped_inputs(n_q, n_k, num_kv_heads=num_kv_heads)

    torch.testing.assert_close(efficient_attention(q, k, v), efficient_reference(q, k, v))


@pytest.mark.parametrize("dimensions", [2, 3])
def test_efficient_attention_accepts_inputs_without_heads(dimensions: int) -> None:
    q, k, v = random_grouped_inputs(6, 6, num_heads=1, num_kv_heads=1)
    inputs = [x[0, 0] if dimensions == 2 else x[:, 0] for x in (q, k, v)]

    output = efficient_attention(*inputs)

    expected = efficient_reference(q, k, v)
    torch.testing.assert_close(output, expected[0, 0] if dimensions == 2 else expected[:, 0])


def test_efficient_attention_is_stable_for_large_inputs() -> None:
    q, k, v = (x.float() for x in random_grouped_inputs(9, 9))

    output = efficient_attention(1e5 * q, 1e5 * k, v)

    # all weight is on the largest channel of the query, and on the largest key of that channel
    best = k.argmax(-2).gather(-1, q.argmax(-1))
    torch.testing.assert_close(output, v.gather(-2, best.unsqueeze(-1).expand(*best.shape, 5)))


def test_invalid_arguments_raise() -> None:
    q, k, v = random_grouped_inputs(7, 7)
    e = torch.randn(NUM_SUMS, 12, dtype=torch.float64)
    with pytest.raises(ArgumentError, match=r"e must have one column per key, 7; got 12. Slice it: e\[..., :7\]"):
        linformer_attention(q, k, v, e)
    with pytest.raises(
        ArgumentError, match=r"f must have one column per key, 7; got 5. Use a matrix for longer sequences"
    ):
        linformer_attention(q, k, v, e[:, :7], e[:, :5])
    with pytest.raises(ArgumentError, match=r"one such matrix for each of 4 key heads; got \(3, 6, 7\)"):
        linformer_attention(q, k, v, e[:, :7].expand(3, -1, -1))
    with pytest.raises(ArgumentError, match="same number of rows; got 6 and 4"):
        linformer_attention(q, k, v, e[:, :7], e[:4, :7])
    with pytest.raises(ArgumentError, match=r"the same head dimension; got q=.*7, 8.*, k=.*7, 5"):
        efficient_attention(q, v, v)
    with pytest.raises(ArgumentError, match="num_kv_heads must divide num_heads; got num_kv_heads=3 and num_heads=4"):
        efficient_attention(q, k[:, :3], v[:, :3])
