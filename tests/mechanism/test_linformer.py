"""Keys and values summed up before queries look: Linformer against the package of that name, efficient attention."""

import pytest
import torch
from linformer import LinformerSelfAttention
from torch import Tensor
from torch.autograd import gradcheck

from regard.attention import attention
from regard.errors import SpecError
from regard.mechanism.linformer import efficient_attention, linformer
from regard.spec import score

FEW = 6


def numbers(n_q: int, n_k: int, heads: int = 4, key_heads: int = 4) -> list[Tensor]:
    sizes = ((heads, n_q, 8), (key_heads, n_k, 8), (key_heads, n_k, 5))
    return [torch.randn(2, *size, dtype=torch.float64) for size in sizes]


def written_out(q: Tensor, k: Tensor, v: Tensor, e: Tensor, f: Tensor) -> Tensor:
    """For each head: sums of keys and of values, one after another, and a softmax over them."""
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
@pytest.mark.parametrize("key_heads", [4, 2])
@pytest.mark.parametrize("n_q, n_k", [(9, 9), (3, 11), (1, 1)])
def test_queries_look_at_sums_of_keys_and_get_sums_of_values(
    per_head: bool, key_heads: int, n_q: int, n_k: int
) -> None:
    q, k, v = numbers(n_q, n_k, key_heads=key_heads)
    e, f = torch.randn(2, *([key_heads] if per_head else []), FEW, n_k, dtype=torch.float64)

    found = linformer(q, k, v, e, f)

    torch.testing.assert_close(found, written_out(q, k, v, e, f))


def test_one_matrix_serves_keys_and_values() -> None:
    q, k, v = numbers(7, 7)
    e = torch.randn(FEW, 7, dtype=torch.float64)

    torch.testing.assert_close(linformer(q, k, v, e), written_out(q, k, v, e, e))


@pytest.mark.parametrize("n", [1, 40])
def test_with_the_identity_it_is_attention(n: int) -> None:
    q, k, v = numbers(n, n)

    found = linformer(q, k, v, torch.eye(n, dtype=torch.float64))

    torch.testing.assert_close(found, attention(q, k, v))


def test_a_score_is_that_of_attention() -> None:
    q, k, v = numbers(7, 7)
    e = torch.randn(FEW, 7, dtype=torch.float64)

    found = linformer(q, k, v, e, score=score.cosine(3.0))

    torch.testing.assert_close(found, attention(q, e @ k, e @ v, score=score.cosine(3.0)))


def test_dropout_is_that_of_attention() -> None:
    q, k, v = numbers(7, 7)
    e = torch.randn(FEW, 7, dtype=torch.float64)

    found = linformer(q, k, v, e, dropout=0.5, seed=3)

    torch.testing.assert_close(found, attention(q, e @ k, e @ v, dropout=0.5, seed=3))


@pytest.mark.parametrize("length", [20, 13], ids=["whole", "cut"])
@pytest.mark.parametrize("one_kv_head", [False, True])
@pytest.mark.parametrize("share_kv", [False, True])
@pytest.mark.parametrize("cross", [False, True])
def test_it_is_what_the_package_linformer_computes(length: int, one_kv_head: bool, share_kv: bool, cross: bool) -> None:
    theirs = LinformerSelfAttention(32, 20, k=FEW, heads=4, one_kv_head=one_kv_head, share_kv=share_kv).double()
    x = torch.randn(2, length, 32, dtype=torch.float64)
    context = torch.randn(2, length, 32, dtype=torch.float64) if cross else None
    seen = x if context is None else context

    def heads(rows: Tensor) -> Tensor:
        return rows.unflatten(-1, (-1, 8)).transpose(1, 2)

    e = theirs.proj_k.mT[:, :length]
    f = None if share_kv else theirs.proj_v.mT[:, :length]
    keys, values = theirs.to_k(seen), (theirs.to_k if share_kv else theirs.to_v)(seen)
    found = linformer(heads(theirs.to_q(x)), heads(keys), heads(values), e, f)

    torch.testing.assert_close(theirs.to_out(found.transpose(1, 2).flatten(2)), theirs(x, context=context))


def test_a_matrix_that_is_cut_is_one_for_zeros_behind_the_last_key() -> None:
    q, k, v = numbers(7, 7)
    e = torch.randn(FEW, 12, dtype=torch.float64)
    longer = [torch.nn.functional.pad(x, (0, 0, 0, 5)) for x in (k, v)]

    torch.testing.assert_close(linformer(q, k, v, e[:, :7]), linformer(q, *longer, e))


def test_gradients_reach_everything() -> None:
    sizes = ((4, 3), (5, 3), (5, 2), (2, 5), (2, 5))
    inputs = [torch.randn(size, dtype=torch.float64, requires_grad=True) for size in sizes]

    assert gradcheck(linformer, inputs)
    assert gradcheck(efficient_attention, inputs[:3])


def efficient_written_out(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The weight of each pair is a sum over channels, and the values are summed with it."""
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, dim=1) for x in (k, v))
    of_query, of_key = q.exp() / q.exp().sum(-1, keepdim=True), k.exp() / k.exp().sum(-2, keepdim=True)
    weights = torch.einsum("bhic,bhjc->bhij", of_query, of_key)
    return torch.einsum("bhij,bhjd->bhid", weights, v)


@pytest.mark.parametrize("key_heads", [4, 2])
@pytest.mark.parametrize("n_q, n_k", [(9, 9), (3, 11), (1, 1)])
def test_efficient_attention_weighs_by_channels(key_heads: int, n_q: int, n_k: int) -> None:
    q, k, v = numbers(n_q, n_k, key_heads=key_heads)

    torch.testing.assert_close(efficient_attention(q, k, v), efficient_written_out(q, k, v))


@pytest.mark.parametrize("dimensions", [2, 3])
def test_efficient_attention_takes_rows_without_heads(dimensions: int) -> None:
    q, k, v = numbers(6, 6, heads=1, key_heads=1)
    less = [x[0, 0] if dimensions == 2 else x[:, 0] for x in (q, k, v)]

    found = efficient_attention(*less)

    expected = efficient_written_out(q, k, v)
    torch.testing.assert_close(found, expected[0, 0] if dimensions == 2 else expected[:, 0])


def test_large_keys_neither_overflow_nor_vanish() -> None:
    q, k, v = (x.float() for x in numbers(9, 9))

    found = efficient_attention(1e5 * q, 1e5 * k, v)

    # all weight on the largest channel of a query, and there on its largest key
    best = k.argmax(-2).gather(-1, q.argmax(-1))
    torch.testing.assert_close(found, v.gather(-2, best.unsqueeze(-1).expand(*best.shape, 5)))


def test_what_is_wrong_is_said() -> None:
    q, k, v = numbers(7, 7)
    e = torch.randn(FEW, 12, dtype=torch.float64)
    with pytest.raises(SpecError, match=r"e must have one column a key, 7; got 12. Cut it: e\[..., :7\]"):
        linformer(q, k, v, e)
    with pytest.raises(SpecError, match=r"f must have one column a key, 7; got 5. Make one for longer sequences"):
        linformer(q, k, v, e[:, :7], e[:, :5])
    with pytest.raises(SpecError, match=r"one such matrix for each of 4 key heads; got \(3, 6, 7\)"):
        linformer(q, k, v, e[:, :7].expand(3, -1, -1))
    with pytest.raises(SpecError, match="equally many sums; got 6 and 4"):
        linformer(q, k, v, e[:, :7], e[:4, :7])
    with pytest.raises(SpecError, match=r"the same width; got q=.*7, 8.*, k=.*7, 5"):
        efficient_attention(q, v, v)
    with pytest.raises(SpecError, match="divide that of q; got 3 and 4"):
        efficient_attention(q, k[:, :3], v[:, :3])
