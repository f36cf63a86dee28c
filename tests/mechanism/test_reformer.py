"""Hashed attention: the sets it sees written out, Hugging Face's layer, hashes with the collisions they should have."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck
from transformers import ReformerConfig
from transformers.models.reformer.modeling_reformer import LSHSelfAttention

from regard.attention import attend, attention
from regard.errors import SpecError
from regard.mechanism import reformer as module
from regard.mechanism.reformer import lsh_attention, lsh_hashes
from regard.spec import score

WIDTH = 6


def numbers(n: int, batch: int = 2, heads: int = 3) -> tuple[Tensor, Tensor]:
    qk, v = (torch.randn(batch, heads, n, width, dtype=torch.float64) for width in (WIDTH, 5))
    return 2.0 * qk, v


def seen_by(i: int, buckets: list[int], chunk: int, causal: bool, same_bucket: bool) -> list[int]:
    """The others that token i sees in a round: of its bucket, in its chunk of the sorted row or in the one before."""
    row = sorted(range(len(buckets)), key=lambda j: (buckets[j], j))
    chunk_of = {j: place // chunk for place, j in enumerate(row)}
    return [
        j
        for j in range(len(buckets))
        if j != i
        and (j < i or not causal)
        and (buckets[i] == buckets[j] or not same_bucket)
        and chunk_of[i] - chunk_of[j] in (0, 1)
    ]


def written_out(
    qk: Tensor, v: Tensor, hashes: Tensor, chunk: int, causal: bool, same_bucket: bool = True, once: bool = True
) -> Tensor:
    """One softmax for each token, over a list of those it sees; those seen twice are in it once, or twice."""
    output = torch.zeros_like(v)
    for b in range(qk.shape[0]):
        for h in range(qk.shape[1]):
            rounds = [each[b, h].tolist() for each in hashes]
            for i in range(qk.shape[2]):
                seen = [j for each in rounds for j in seen_by(i, each, chunk, causal, same_bucket)]
                seen = sorted(set(seen)) if once else seen
                seen = seen or [i]
                keys = qk[b, h, seen]
                weights = torch.softmax((keys / keys.norm(dim=-1, keepdim=True)) @ qk[b, h, i], 0)
                output[b, h, i] = weights @ v[b, h, seen]
    return output


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("same_bucket", [True, False])
@pytest.mark.parametrize("once", [True, False])
@pytest.mark.parametrize("n, chunk, rounds", [(24, 4, 1), (23, 4, 3), (17, 5, 2), (1, 4, 2), (9, 1, 3)])
def test_a_token_sees_its_bucket_near_its_chunk(
    causal: bool, same_bucket: bool, once: bool, n: int, chunk: int, rounds: int
) -> None:
    qk, v = numbers(n)
    hashes = torch.randint(4, (rounds, 2, 3, n))

    found = lsh_attention(qk, v, hashes=hashes, chunk=chunk, causal=causal, same_bucket=same_bucket, once=once)

    torch.testing.assert_close(found, written_out(qk, v, hashes, chunk, causal, same_bucket, once))


@pytest.mark.parametrize("causal", [False, True])
def test_a_bucket_longer_than_two_chunks_is_seen_in_part(causal: bool) -> None:
    qk, v = numbers(30)
    hashes = torch.zeros(1, 2, 3, 30, dtype=torch.long)

    found = lsh_attention(qk, v, hashes=hashes, chunk=4, causal=causal)

    torch.testing.assert_close(found, written_out(qk, v, hashes, 4, causal))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("rounds", [1, 3])
def test_its_own_hashes_are_those_it_would_be_given(causal: bool, rounds: int) -> None:
    qk, v = numbers(50)

    found = lsh_attention(qk, v, buckets=6, rounds=rounds, chunk=8, seed=5, causal=causal)

    hashes = lsh_hashes(qk, buckets=6, rounds=rounds, seed=5)
    torch.testing.assert_close(found, written_out(qk, v, hashes, 8, causal))


def in_full(qk: Tensor, v: Tensor, causal: bool) -> Tensor:
    """Attention of all over all, with the same vectors as queries and keys; only who has nobody else sees itself."""
    n = qk.shape[-2]
    others = ~torch.eye(n, dtype=torch.bool) & (torch.ones(n, n, dtype=torch.bool).tril() if causal else True)
    others = others | torch.diag(~others.any(-1))
    keys = torch.nn.functional.normalize(qk, dim=-1)
    return attention(qk, keys, v, score=score.dot(), mask=others)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("n", [1, 2, 40])
@pytest.mark.parametrize("rounds", [1, 4])
def test_one_chunk_and_one_bucket_are_attention_in_full(causal: bool, n: int, rounds: int) -> None:
    qk, v = numbers(n)
    expected = in_full(qk, v, causal)

    together = lsh_attention(qk, v, hashes=torch.zeros(rounds, n, dtype=torch.long), chunk=40, causal=causal)
    apart = lsh_attention(qk, v, buckets=8, rounds=rounds, chunk=40, causal=causal, same_bucket=False)

    torch.testing.assert_close(together, expected)
    torch.testing.assert_close(apart, expected)


def test_a_pair_that_every_round_finds_counts_once() -> None:
    qk, v = numbers(30)
    hashes = torch.randint(3, (1, 2, 3, 30))
    more = torch.cat((hashes, torch.randint(3, (1, 2, 3, 30)), hashes))

    torch.testing.assert_close(
        lsh_attention(qk, v, hashes=hashes.expand(4, -1, -1, -1), chunk=8), lsh_attention(qk, v, hashes=hashes, chunk=8)
    )
    torch.testing.assert_close(
        lsh_attention(qk, v, hashes=more, chunk=8), lsh_attention(qk, v, hashes=more[:2], chunk=8)
    )


def test_a_token_that_sees_nobody_in_one_round_takes_what_the_others_find() -> None:
    qk, v = numbers(6, 1, 1)
    alone = torch.arange(6)
    both = torch.stack((alone, torch.tensor([0, 0, 1, 1, 2, 3])))

    found = lsh_attention(qk, v, hashes=both, chunk=2)

    torch.testing.assert_close(found, v[..., [1, 0, 3, 2, 4, 5], :])


def test_padding_in_a_bucket_of_its_own_is_seen_by_nobody() -> None:
    qk, v = numbers(20)
    hashes = torch.randint(3, (2, 2, 3, 20))
    hashes[..., 15:] = 99
    expected = lsh_attention(qk[..., :15, :], v[..., :15, :], hashes=hashes[..., :15], chunk=5)
    qk[..., 15:, :] = torch.nan
    v[..., 15:, :] = torch.nan

    found = lsh_attention(qk, v, hashes=hashes, chunk=5)

    torch.testing.assert_close(found[..., :15, :], expected)


def test_a_query_may_be_scaled() -> None:
    qk, v = numbers(20)
    hashes = torch.randint(3, (2, 20))
    keys = torch.nn.functional.normalize(qk, dim=-1)

    found = lsh_attention(qk, v, hashes=hashes, chunk=20, scale=0.3)

    # twenty tokens in one chunk: the union of two rounds as a mask
    seen = (hashes[:, :, None] == hashes[:, None, :]).any(0) & ~torch.eye(20, dtype=torch.bool)
    torch.testing.assert_close(found, attention(qk, keys, v, score=score.scaled_dot(0.3), mask=seen))


@pytest.mark.parametrize("shape", [(), (4,), (2, 2, 3)], ids=["rows", "batch", "more"])
def test_any_number_of_leading_dimensions_will_do(shape: tuple[int, ...]) -> None:
    qk, v = (torch.randn(*shape, 20, width, dtype=torch.float64) for width in (WIDTH, 5))
    heads = shape[-1] if len(shape) > 1 else 1

    found = lsh_attention(qk, v, buckets=4, chunk=5, seed=2)

    assert lsh_hashes(qk, buckets=4, rounds=3).shape == (3, *shape, 20)
    whole = lsh_attention(qk.reshape(-1, heads, 20, WIDTH), v.reshape(-1, heads, 20, 5), buckets=4, chunk=5, seed=2)
    torch.testing.assert_close(found, whole.reshape(v.shape))


def test_no_tokens_give_nothing() -> None:
    qk, v = numbers(0)

    assert lsh_attention(qk, v, rounds=2).shape == v.shape


def test_single_precision_gives_the_same_to_its_own_precision() -> None:
    qk, v = numbers(200)
    hashes = torch.randint(8, (3, 2, 3, 200))

    found = lsh_attention(qk.float(), v.float(), hashes=hashes, chunk=16, causal=True)

    # other engines than in float64, and sums of up to a hundred terms
    expected = lsh_attention(qk, v, hashes=hashes, chunk=16, causal=True)
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-5)


def test_the_tiles_that_are_visited_grow_with_the_length(monkeypatch: pytest.MonkeyPatch) -> None:
    visited: list[int] = []

    def watched(*tensors: Tensor, **options: Any) -> Any:
        found = attend(*tensors, **options)
        cover = found.plan.cover
        assert cover is not None
        visited.append(cover.counts["partial"] + cover.counts["full"])
        return found

    monkeypatch.setattr(module, "attend", watched)
    for n in (4096, 16384):
        x = torch.randn(1, 1, n, 8)
        lsh_attention(x, x, rounds=2, chunk=64)

    assert len(visited) == 4
    assert sum(visited[2:]) < 4.4 * sum(visited[:2])  # four times the length; all pairs would be 16 times as many


# Hashes


def test_opposite_vectors_fall_into_opposite_buckets() -> None:
    x = torch.randn(5, 200, WIDTH)

    found = lsh_hashes(x, buckets=8, rounds=3)

    assert found.shape == (3, 5, 200) and set(found.unique().tolist()) == set(range(8))
    assert torch.equal(lsh_hashes(-x, buckets=8, rounds=3), (found + 4) % 8)
    assert torch.equal(lsh_hashes(100.0 * x, buckets=8, rounds=3), found)


@pytest.mark.parametrize("angle", [0.3, 1.0, 2.5])
def test_two_buckets_part_vectors_as_often_as_a_random_plane_does(angle: float) -> None:
    x = torch.tensor([[1.0, 0.0], [math.cos(angle), math.sin(angle)]])

    found = lsh_hashes(x, buckets=2, rounds=4000)

    together = float((found[:, 0] == found[:, 1]).double().mean())
    # 1 - θ/π, to within four standard deviations of 4000 coins
    assert together == pytest.approx(1 - angle / math.pi, abs=4 * 0.5 / 4000**0.5)


def test_several_numbers_of_buckets_are_hashes_side_by_side() -> None:
    x = torch.randn(300, WIDTH)

    found = lsh_hashes(x, buckets=(4, 6), rounds=2)

    assert found.max() < 24 and len(found.unique()) == 24
    first, second = found % 4, found // 4
    negative = lsh_hashes(-x, buckets=(4, 6), rounds=2)
    assert torch.equal(negative % 4, (first + 2) % 4) and torch.equal(negative // 4, (second + 3) % 6)


@pytest.mark.parametrize("n, chunk, buckets", [(1, 64, 2), (256, 64, 8), (250, 64, 8), (4096, 64, 128)])
def test_there_are_two_buckets_a_chunk_unless_told_otherwise(n: int, chunk: int, buckets: int) -> None:
    qk, v = numbers(n, 1, 1)

    found = lsh_attention(qk, v, chunk=chunk, rounds=2, seed=3)

    torch.testing.assert_close(found, lsh_attention(qk, v, chunk=chunk, buckets=buckets, rounds=2, seed=3))


def test_many_buckets_come_from_two_hashes() -> None:
    qk, v = numbers(1000, 1, 1)

    found = lsh_attention(qk, v, chunk=4, seed=3)  # 500 buckets

    torch.testing.assert_close(found, lsh_attention(qk, v, chunk=4, buckets=(24, 22), seed=3))


# Others' programs


def theirs(chunk: int, rounds: int, causal: bool, before: int, buckets: Any = None) -> LSHSelfAttention:
    config = ReformerConfig(
        hidden_size=16,
        num_attention_heads=2,
        attention_head_size=8,
        lsh_attn_chunk_length=chunk,
        lsh_num_chunks_before=before,
        num_hashes=rounds,
        num_buckets=buckets,
        is_decoder=causal,
        hash_seed=11,
    )
    layer = LSHSelfAttention(config, layer_idx=0).double().eval()
    usual = layer._len_norm
    layer._len_norm = lambda x: usual(x, epsilon=0.0)  # keys of length 1, not all but 1
    return layer


def rows(layer: LSHSelfAttention, x: Tensor) -> tuple[Tensor, Tensor]:
    """The layer's vectors, by head."""
    qk, v = (f(x).unflatten(-1, (2, 8)).transpose(1, 2) for f in (layer.query_key, layer.value))
    return qk, v


@pytest.mark.parametrize("buckets", [6, [4, 2]], ids=["one number", "two numbers"])
def test_the_hashes_are_those_of_transformers(buckets: int | list[int]) -> None:
    layer = theirs(8, 3, False, 1, buckets)
    x = torch.randn(2, 48, 16, dtype=torch.float64)

    found = lsh_hashes(rows(layer, x)[0], buckets=buckets, rounds=3, seed=11)

    expected = layer(x).buckets  # (batch, heads, rounds, n), where rounds have buckets of their own
    count = math.prod(buckets) if isinstance(buckets, list) else buckets
    assert torch.equal(found.movedim(0, 2), expected % count)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("rounds", [1, 3])
def test_where_buckets_are_chunks_it_is_what_transformers_computes(causal: bool, rounds: int) -> None:
    """Its layer does not look at buckets, only at chunks; here they are the same."""
    layer = theirs(8, rounds, causal, before=0, buckets=6)
    x = 3.0 * torch.randn(2, 48, 16, dtype=torch.float64)
    hashes = torch.stack([torch.randperm(48) // 8 for _ in range(4 * rounds)]).view(rounds, 2, 2, 48)
    apart = hashes + 6 * torch.arange(rounds).view(-1, 1, 1, 1)

    expected = layer(x, buckets=apart.movedim(0, 2).contiguous()).hidden_states

    found = lsh_attention(*rows(layer, x), hashes=hashes, chunk=8, causal=causal, once=False)
    torch.testing.assert_close(found.transpose(1, 2).flatten(2), expected)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("rounds", [1, 3])
def test_across_buckets_it_is_what_transformers_computes_but_for_first_chunks(causal: bool, rounds: int) -> None:
    """There the first chunk of a round looks back at the last one of the round before, or of all."""
    layer = theirs(8, rounds, causal, before=1, buckets=6)
    x = 3.0 * torch.randn(2, 96, 16, dtype=torch.float64)

    expected = layer(x).hidden_states.unflatten(-1, (2, 8)).transpose(1, 2)

    qk, v = rows(layer, x)
    options = {"chunk": 8, "causal": causal, "same_bucket": False, "once": False}
    found = lsh_attention(qk, v, buckets=6, rounds=rounds, seed=11, **options)
    hashes = lsh_hashes(qk, buckets=6, rounds=rounds, seed=11)
    later = (hashes.sort(dim=-1, stable=True).indices.argsort(-1) >= 8).all(0)
    assert later.double().mean() > 0.7
    torch.testing.assert_close(found[later], expected[later])
    assert not torch.allclose(found[~later], expected[~later])


@pytest.mark.parametrize("causal", [False, True])
def test_a_sequence_of_one_chunk_is_attention_in_full_for_transformers_too(causal: bool) -> None:
    layer = theirs(32, 1, causal, before=1)
    x = 3.0 * torch.randn(2, 20, 16, dtype=torch.float64)

    found = lsh_attention(*rows(layer, x), hashes=torch.zeros(1, 20, dtype=torch.long), chunk=32, causal=causal)

    torch.testing.assert_close(found.transpose(1, 2).flatten(2), layer(x).hidden_states)


# Gradients, errors


@pytest.mark.parametrize("causal, once", [(False, True), (True, False)])
def test_gradients(causal: bool, once: bool) -> None:
    qk, v = (torch.randn(1, 1, 6, 2, dtype=torch.float64, requires_grad=True) for _ in range(2))
    hashes = torch.tensor([[0, 1, 1, 1, 0, 2], [0, 0, 1, 1, 0, 2]])

    assert gradcheck(lambda qk, v: lsh_attention(qk, v, hashes=hashes, chunk=2, causal=causal, once=once), (qk, v))


def test_gradients_are_those_of_the_sets_written_out() -> None:
    qk, v = (x.requires_grad_() for x in numbers(20, 1, 1))
    hashes = torch.randint(3, (2, 1, 1, 20))
    along = torch.randn(1, 1, 20, 5, dtype=torch.float64)

    found = torch.autograd.grad((lsh_attention(qk, v, hashes=hashes, chunk=4) * along).sum(), (qk, v))

    expected = torch.autograd.grad((written_out(qk, v, hashes, 4, False) * along).sum(), (qk, v))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


def test_what_is_wrong_is_said() -> None:
    qk, v = numbers(6)
    with pytest.raises(SpecError, match=r"as qk but for its width; got qk=\(2, 3, 6, 6\), v=\(2, 3, 5, 5\)"):
        lsh_attention(qk, v[..., :5, :])
    with pytest.raises(SpecError, match="at least 1 token; got 0"):
        lsh_attention(qk, v, chunk=0)
    with pytest.raises(SpecError, match="even and at least 2; got 3"):
        lsh_attention(qk, v, buckets=3)
    with pytest.raises(SpecError, match=r"even and at least 2; got \(4, 0\)"):
        lsh_attention(qk, v, buckets=(4, 0))
    with pytest.raises(SpecError, match="rounds must be at least 1; got 0"):
        lsh_attention(qk, v, rounds=0)
    with pytest.raises(SpecError, match=r"must not be given with hashes.*; got 4"):
        lsh_attention(qk, v, buckets=4, hashes=torch.zeros(1, 6, dtype=torch.long))
    with pytest.raises(SpecError, match=r"whole numbers; got torch.float32"):
        lsh_attention(qk, v, hashes=torch.zeros(1, 6))
    with pytest.raises(SpecError, match=r"broadcast over \(2, 3, 6\) behind that; got \(1, 2, 6\)"):
        lsh_attention(qk, v, hashes=torch.zeros(1, 2, 6, dtype=torch.long))
    with pytest.raises(SpecError, match=r"broadcast over \(2, 3, 6\) behind that; got \(6,\)"):
        lsh_attention(qk, v, hashes=torch.zeros(6, dtype=torch.long))
    with pytest.raises(SpecError, match=r"broadcast over \(2, 3, 6\) behind that; got \(0, 6\)"):
        lsh_attention(qk, v, hashes=torch.zeros(0, 6, dtype=torch.long))
