"""LSH attention against explicit sets of keys and Hugging Face's layer, and the collision rates of the hashes."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck
from transformers import ReformerConfig
from transformers.models.reformer.modeling_reformer import LSHSelfAttention

from regard import score
from regard.attention import attention, attention_with_weights
from regard.errors import ArgumentError
from regard.mechanisms import reformer as module
from regard.mechanisms.reformer import lsh_attention, lsh_bucket_ids

HEAD_DIM = 6


def random_inputs(n: int, batch: int = 2, heads: int = 3) -> tuple[Tensor, Tensor]:
    qk, v = (torch.randn(batch, heads, n, width, dtype=torch.float64) for width in (HEAD_DIM, 5))
    return 2.0 * qk, v


def visible_tokens(i: int, buckets: list[int], chunk_size: int, causal: bool, same_bucket_only: bool) -> list[int]:
    """Return the keys of token i in one round: other tokens of its bucket, in its chunk or in the previous one."""
    order = sorted(range(len(buckets)), key=lambda j: (buckets[j], j))
    chunk_of = {j: rank // chunk_size for rank, j in enumerate(order)}
    return [
        j
        for j in range(len(buckets))
        if j != i
        and (j < i or not causal)
        and (buckets[i] == buckets[j] or not same_bucket_only)
        and chunk_of[i] - chunk_of[j] in (0, 1)
    ]


def reference(
    qk: Tensor,
    v: Tensor,
    bucket_ids: Tensor,
    chunk_size: int,
    causal: bool,
    same_bucket_only: bool = True,
    count_pairs_once: bool = True,
) -> Tensor:
    """Compute one softmax per token over the list of its keys, with or without repeated keys."""
    output = torch.zeros_like(v)
    for b in range(qk.shape[0]):
        for h in range(qk.shape[1]):
            rounds = [round_ids[b, h].tolist() for round_ids in bucket_ids]
            for i in range(qk.shape[2]):
                visible = [
                    j
                    for round_ids in rounds
                    for j in visible_tokens(i, round_ids, chunk_size, causal, same_bucket_only)
                ]
                visible = sorted(set(visible)) if count_pairs_once else visible
                visible = visible or [i]
                keys = qk[b, h, visible]
                weights = torch.softmax((keys / keys.norm(dim=-1, keepdim=True)) @ qk[b, h, i], 0)
                output[b, h, i] = weights @ v[b, h, visible]
    return output


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("same_bucket_only", [True, False])
@pytest.mark.parametrize("count_pairs_once", [True, False])
@pytest.mark.parametrize("n, chunk_size, num_hashes", [(24, 4, 1), (23, 4, 3), (17, 5, 2), (1, 4, 2), (9, 1, 3)])
def test_lsh_attention_matches_the_reference(
    causal: bool, same_bucket_only: bool, count_pairs_once: bool, n: int, chunk_size: int, num_hashes: int
) -> None:
    qk, v = random_inputs(n)
    bucket_ids = torch.randint(4, (num_hashes, 2, 3, n))

    output = lsh_attention(
        qk,
        v,
        bucket_ids=bucket_ids,
        chunk_size=chunk_size,
        causal=causal,
        same_bucket_only=same_bucket_only,
        count_pairs_once=count_pairs_once,
    )

    torch.testing.assert_close(
        output, reference(qk, v, bucket_ids, chunk_size, causal, same_bucket_only, count_pairs_once)
    )


@pytest.mark.parametrize("causal", [False, True])
def test_a_bucket_longer_than_two_chunks_is_partly_visible(causal: bool) -> None:
    qk, v = random_inputs(30)
    bucket_ids = torch.zeros(1, 2, 3, 30, dtype=torch.long)

    output = lsh_attention(qk, v, bucket_ids=bucket_ids, chunk_size=4, causal=causal)

    torch.testing.assert_close(output, reference(qk, v, bucket_ids, 4, causal))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("num_hashes", [1, 3])
def test_lsh_attention_uses_lsh_bucket_ids(causal: bool, num_hashes: int) -> None:
    qk, v = random_inputs(50)

    output = lsh_attention(qk, v, num_buckets=6, num_hashes=num_hashes, chunk_size=8, seed=5, causal=causal)

    bucket_ids = lsh_bucket_ids(qk, num_buckets=6, num_hashes=num_hashes, seed=5)
    torch.testing.assert_close(output, reference(qk, v, bucket_ids, 8, causal))


def full_attention(qk: Tensor, v: Tensor, causal: bool) -> Tensor:
    """Compute dense attention with shared queries and keys; a token attends to itself only if it has no other key."""
    n = qk.shape[-2]
    others = ~torch.eye(n, dtype=torch.bool) & (torch.ones(n, n, dtype=torch.bool).tril() if causal else True)
    others = others | torch.diag(~others.any(-1))
    keys = torch.nn.functional.normalize(qk, dim=-1)
    return attention(qk, keys, v, score=score.dot(), mask=others)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("n", [1, 2, 40])
@pytest.mark.parametrize("num_hashes", [1, 4])
def test_one_chunk_and_one_bucket_is_full_attention(causal: bool, n: int, num_hashes: int) -> None:
    qk, v = random_inputs(n)
    expected = full_attention(qk, v, causal)

    one_bucket = lsh_attention(
        qk, v, bucket_ids=torch.zeros(num_hashes, n, dtype=torch.long), chunk_size=40, causal=causal
    )
    all_buckets = lsh_attention(
        qk, v, num_buckets=8, num_hashes=num_hashes, chunk_size=40, causal=causal, same_bucket_only=False
    )

    torch.testing.assert_close(one_bucket, expected)
    torch.testing.assert_close(all_buckets, expected)


def test_a_pair_selected_by_every_round_counts_once() -> None:
    qk, v = random_inputs(30)
    bucket_ids = torch.randint(3, (1, 2, 3, 30))
    more = torch.cat((bucket_ids, torch.randint(3, (1, 2, 3, 30)), bucket_ids))

    torch.testing.assert_close(
        lsh_attention(qk, v, bucket_ids=bucket_ids.expand(4, -1, -1, -1), chunk_size=8),
        lsh_attention(qk, v, bucket_ids=bucket_ids, chunk_size=8),
    )
    torch.testing.assert_close(
        lsh_attention(qk, v, bucket_ids=more, chunk_size=8), lsh_attention(qk, v, bucket_ids=more[:2], chunk_size=8)
    )


def test_a_token_alone_in_one_round_uses_the_other_rounds() -> None:
    qk, v = random_inputs(6, 1, 1)
    alone = torch.arange(6)
    bucket_ids = torch.stack((alone, torch.tensor([0, 0, 1, 1, 2, 3])))

    output = lsh_attention(qk, v, bucket_ids=bucket_ids, chunk_size=2)

    torch.testing.assert_close(output, v[..., [1, 0, 3, 2, 4, 5], :])


def test_padding_in_a_separate_bucket_is_hidden() -> None:
    qk, v = random_inputs(20)
    bucket_ids = torch.randint(3, (2, 2, 3, 20))
    bucket_ids[..., 15:] = 99
    expected = lsh_attention(qk[..., :15, :], v[..., :15, :], bucket_ids=bucket_ids[..., :15], chunk_size=5)
    qk[..., 15:, :] = torch.nan
    v[..., 15:, :] = torch.nan

    output = lsh_attention(qk, v, bucket_ids=bucket_ids, chunk_size=5)

    torch.testing.assert_close(output[..., :15, :], expected)


def test_scale_multiplies_the_scores() -> None:
    qk, v = random_inputs(20)
    bucket_ids = torch.randint(3, (2, 20))
    keys = torch.nn.functional.normalize(qk, dim=-1)

    output = lsh_attention(qk, v, bucket_ids=bucket_ids, chunk_size=20, scale=0.3)

    # with one chunk, the union of two rounds is a mask
    visible = (bucket_ids[:, :, None] == bucket_ids[:, None, :]).any(0) & ~torch.eye(20, dtype=torch.bool)
    torch.testing.assert_close(output, attention(qk, keys, v, score=score.scaled_dot(0.3), mask=visible))


@pytest.mark.parametrize("shape", [(), (4,), (2, 2, 3)], ids=["rows", "batch", "more"])
def test_any_number_of_leading_dimensions(shape: tuple[int, ...]) -> None:
    qk, v = (torch.randn(*shape, 20, width, dtype=torch.float64) for width in (HEAD_DIM, 5))
    heads = shape[-1] if len(shape) > 1 else 1

    output = lsh_attention(qk, v, num_buckets=4, chunk_size=5, seed=2)

    assert lsh_bucket_ids(qk, num_buckets=4, num_hashes=3).shape == (3, *shape, 20)
    expected = lsh_attention(
        qk.reshape(-1, heads, 20, HEAD_DIM), v.reshape(-1, heads, 20, 5), num_buckets=4, chunk_size=5, seed=2
    )
    torch.testing.assert_close(output, expected.reshape(v.shape))


def test_no_tokens_return_an_empty_output() -> None:
    qk, v = random_inputs(0)

    assert lsh_attention(qk, v, num_hashes=2).shape == v.shape


def test_float32_is_close_to_float64() -> None:
    qk, v = random_inputs(200)
    bucket_ids = torch.randint(8, (3, 2, 3, 200))

    output = lsh_attention(qk.float(), v.float(), bucket_ids=bucket_ids, chunk_size=16, causal=True)

    # different backends than in float64, and sums of up to a hundred terms
    expected = lsh_attention(qk, v, bucket_ids=bucket_ids, chunk_size=16, causal=True)
    torch.testing.assert_close(output.double(), expected, rtol=1e-4, atol=1e-5)


def test_visited_tiles_grow_linearly_with_the_length(monkeypatch: pytest.MonkeyPatch) -> None:
    visited: list[int] = []

    def count_tiles(*tensors: Tensor, **options: Any) -> Any:
        result = attention_with_weights(*tensors, **options)
        coverage = result.plan.coverage
        assert coverage is not None
        visited.append(coverage.tile_counts["partial"] + coverage.tile_counts["full"])
        return result

    monkeypatch.setattr(module, "attention_with_weights", count_tiles)
    for n in (4096, 16384):
        x = torch.randn(1, 1, n, 8)
        lsh_attention(x, x, num_hashes=2, chunk_size=64)

    assert len(visited) == 4
    assert sum(visited[2:]) < 4.4 * sum(
        visited[:2]
    )  # four times the length; dense attention would visit 16 times as many


# Hashes


def test_opposite_vectors_have_opposite_buckets() -> None:
    x = torch.randn(5, 200, HEAD_DIM)

    bucket_ids = lsh_bucket_ids(x, num_buckets=8, num_hashes=3)

    assert bucket_ids.shape == (3, 5, 200) and set(bucket_ids.unique().tolist()) == set(range(8))
    assert torch.equal(lsh_bucket_ids(-x, num_buckets=8, num_hashes=3), (bucket_ids + 4) % 8)
    assert torch.equal(lsh_bucket_ids(100.0 * x, num_buckets=8, num_hashes=3), bucket_ids)


@pytest.mark.parametrize("angle", [0.3, 1.0, 2.5])
def test_two_buckets_have_the_collision_rate_of_a_random_plane(angle: float) -> None:
    x = torch.tensor([[1.0, 0.0], [math.cos(angle), math.sin(angle)]])

    bucket_ids = lsh_bucket_ids(x, num_buckets=2, num_hashes=4000)

    collision_rate = float((bucket_ids[:, 0] == bucket_ids[:, 1]).double().mean())
    # 1 - θ/π, within four standard deviations of 4000 fair coin tosses
    assert collision_rate == pytest.approx(1 - angle / math.pi, abs=4 * 0.5 / 4000**0.5)


def test_several_bucket_factors_combine_independent_hashes() -> None:
    x = torch.randn(300, HEAD_DIM)

    bucket_ids = lsh_bucket_ids(x, num_buckets=(4, 6), num_hashes=2)

    assert bucket_ids.max() < 24 and len(bucket_ids.unique()) == 24
    first, second = bucket_ids % 4, bucket_ids // 4
    negative = lsh_bucket_ids(-x, num_buckets=(4, 6), num_hashes=2)
    assert torch.equal(negative % 4, (first + 2) % 4) and torch.equal(negative // 4, (second + 3) % 6)


@pytest.mark.parametrize("n, chunk_size, buckets", [(1, 64, 2), (256, 64, 8), (250, 64, 8), (4096, 64, 128)])
def test_default_is_two_buckets_per_chunk(n: int, chunk_size: int, buckets: int) -> None:
    qk, v = random_inputs(n, 1, 1)

    output = lsh_attention(qk, v, chunk_size=chunk_size, num_hashes=2, seed=3)

    torch.testing.assert_close(
        output, lsh_attention(qk, v, chunk_size=chunk_size, num_buckets=buckets, num_hashes=2, seed=3)
    )


def test_many_buckets_use_two_factors() -> None:
    qk, v = random_inputs(1000, 1, 1)

    output = lsh_attention(qk, v, chunk_size=4, seed=3)  # 500 buckets

    torch.testing.assert_close(output, lsh_attention(qk, v, chunk_size=4, num_buckets=(24, 22), seed=3))


# Hugging Face's layer


def hf_layer(
    chunk_size: int, num_hashes: int, causal: bool, num_chunks_before: int, buckets: Any = None
) -> LSHSelfAttention:
    config = ReformerConfig(
        hidden_size=16,
        num_attention_heads=2,
        attention_head_size=8,
        lsh_attn_chunk_length=chunk_size,
        lsh_num_chunks_before=num_chunks_before,
        num_hashes=num_hashes,
        num_buckets=buckets,
        is_decoder=causal,
        hash_seed=11,
    )
    layer = LSHSelfAttention(config, layer_idx=0).double().eval()
    len_norm = layer._len_norm
    layer._len_norm = lambda x: len_norm(x, epsilon=0.0)  # keys of norm exactly 1
    return layer


def project(layer: LSHSelfAttention, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the shared queries and keys, and the values, of the layer, by head."""
    qk, v = (f(x).unflatten(-1, (2, 8)).transpose(1, 2) for f in (layer.query_key, layer.value))
    return qk, v


@pytest.mark.parametrize("buckets", [6, [4, 2]], ids=["one number", "two numbers"])
def test_bucket_ids_match_transformers(buckets: int | list[int]) -> None:
    layer = hf_layer(8, 3, False, 1, buckets)
    x = torch.randn(2, 48, 16, dtype=torch.float64)

    bucket_ids = lsh_bucket_ids(project(layer, x)[0], num_buckets=buckets, num_hashes=3, seed=11)

    expected = layer(x).buckets  # (batch, heads, rounds, n), with an offset per round
    count = math.prod(buckets) if isinstance(buckets, list) else buckets
    assert torch.equal(bucket_ids.movedim(0, 2), expected % count)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("num_hashes", [1, 3])
def test_output_matches_transformers_when_buckets_are_chunks(causal: bool, num_hashes: int) -> None:
    """The layer masks by chunks, not by buckets; here both are the same."""
    layer = hf_layer(8, num_hashes, causal, num_chunks_before=0, buckets=6)
    x = 3.0 * torch.randn(2, 48, 16, dtype=torch.float64)
    bucket_ids = torch.stack([torch.randperm(48) // 8 for _ in range(4 * num_hashes)]).view(num_hashes, 2, 2, 48)
    offset_ids = bucket_ids + 6 * torch.arange(num_hashes).view(-1, 1, 1, 1)

    expected = layer(x, buckets=offset_ids.movedim(0, 2).contiguous()).hidden_states

    output = lsh_attention(
        *project(layer, x), bucket_ids=bucket_ids, chunk_size=8, causal=causal, count_pairs_once=False
    )
    torch.testing.assert_close(output.transpose(1, 2).flatten(2), expected)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("num_hashes", [1, 3])
def test_output_across_buckets_matches_transformers_except_in_first_chunks(causal: bool, num_hashes: int) -> None:
    """In the layer, the first chunk of a round attends to the last chunk of the previous round, or of all rounds."""
    layer = hf_layer(8, num_hashes, causal, num_chunks_before=1, buckets=6)
    x = 3.0 * torch.randn(2, 96, 16, dtype=torch.float64)

    expected = layer(x).hidden_states.unflatten(-1, (2, 8)).transpose(1, 2)

    qk, v = project(layer, x)
    options = {"chunk_size": 8, "causal": causal, "same_bucket_only": False, "count_pairs_once": False}
    output = lsh_attention(qk, v, num_buckets=6, num_hashes=num_hashes, seed=11, **options)
    bucket_ids = lsh_bucket_ids(qk, num_buckets=6, num_hashes=num_hashes, seed=11)
    is_later = (bucket_ids.sort(dim=-1, stable=True).indices.argsort(-1) >= 8).all(0)
    assert is_later.double().mean() > 0.7
    torch.testing.assert_close(output[is_later], expected[is_later])
    assert not torch.allclose(output[~is_later], expected[~is_later])


@pytest.mark.parametrize("causal", [False, True])
def test_a_sequence_of_one_chunk_matches_transformers(causal: bool) -> None:
    layer = hf_layer(32, 1, causal, num_chunks_before=1)
    x = 3.0 * torch.randn(2, 20, 16, dtype=torch.float64)

    output = lsh_attention(
        *project(layer, x), bucket_ids=torch.zeros(1, 20, dtype=torch.long), chunk_size=32, causal=causal
    )

    torch.testing.assert_close(output.transpose(1, 2).flatten(2), layer(x).hidden_states)


# Gradients, errors


@pytest.mark.parametrize("causal, count_pairs_once", [(False, True), (True, False)])
def test_gradients(causal: bool, count_pairs_once: bool) -> None:
    qk, v = (torch.randn(1, 1, 6, 2, dtype=torch.float64, requires_grad=True) for _ in range(2))
    bucket_ids = torch.tensor([[0, 1, 1, 1, 0, 2], [0, 0, 1, 1, 0, 2]])

    assert gradcheck(
        lambda qk, v: lsh_attention(
            qk, v, bucket_ids=bucket_ids, chunk_size=2, causal=causal, count_pairs_once=count_pairs_once
        ),
        (qk, v),
    )


def test_gradients_match_the_reference() -> None:
    qk, v = (x.requires_grad_() for x in random_inputs(20, 1, 1))
    bucket_ids = torch.randint(3, (2, 1, 1, 20))
    cotangent = torch.randn(1, 1, 20, 5, dtype=torch.float64)

    gradients = torch.autograd.grad(
        (lsh_attention(qk, v, bucket_ids=bucket_ids, chunk_size=4) * cotangent).sum(), (qk, v)
    )

    expected = torch.autograd.grad((reference(qk, v, bucket_ids, 4, False) * cotangent).sum(), (qk, v))
    for actual, desired in zip(gradients, expected, strict=True):
        torch.testing.assert_close(actual, desired)


def test_invalid_arguments_raise() -> None:
    qk, v = random_inputs(6)
    with pytest.raises(
        ArgumentError, match=r"the shape of qk except for the last dimension; got qk=\(2, 3, 6, 6\), v=\(2, 3, 5, 5\)"
    ):
        lsh_attention(qk, v[..., :5, :])
    with pytest.raises(ArgumentError, match="chunk_size must be at least 1; got 0"):
        lsh_attention(qk, v, chunk_size=0)
    with pytest.raises(ArgumentError, match="even and at least 2; got 3"):
        lsh_attention(qk, v, num_buckets=3)
    with pytest.raises(ArgumentError, match=r"even and at least 2; got \(4, 0\)"):
        lsh_attention(qk, v, num_buckets=(4, 0))
    with pytest.raises(ArgumentError, match="num_hashes must be at least 1; got 0"):
        lsh_attention(qk, v, num_hashes=0)
    with pytest.raises(ArgumentError, match=r"num_buckets must be None with bucket_ids; got 4"):
        lsh_attention(qk, v, num_buckets=4, bucket_ids=torch.zeros(1, 6, dtype=torch.long))
    with pytest.raises(ArgumentError, match=r"bucket_ids must be integers; got torch.float32"):
        lsh_attention(qk, v, bucket_ids=torch.zeros(1, 6))
    with pytest.raises(ArgumentError, match=r"broadcast to \(2, 3, 6\) after the first dimension; got \(1, 2, 6\)"):
        lsh_attention(qk, v, bucket_ids=torch.zeros(1, 2, 6, dtype=torch.long))
    with pytest.raises(ArgumentError, match=r"broadcast to \(2, 3, 6\) after the first dimension; got \(6,\)"):
        lsh_attention(qk, v, bucket_ids=torch.zeros(6, dtype=torch.long))
    with pytest.raises(ArgumentError, match=r"broadcast to \(2, 3, 6\) after the first dimension; got \(0, 6\)"):
        lsh_attention(qk, v, bucket_ids=torch.zeros(0, 6, dtype=torch.long))
