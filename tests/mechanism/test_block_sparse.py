"""Blocks chosen by their means: the choice written out, torch's dense attention within it, the weight that it keeps."""

from itertools import product

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck
from torch.nn.functional import scaled_dot_product_attention

from regard import attend, attention, mask, measure
from regard.errors import SpecError
from regard.mechanism.block_sparse import block_choice, block_sparse


def numbers(n_q: int, n_k: int, heads: int = 4, key_heads: int = 2) -> list[Tensor]:
    sizes = ((heads, n_q, 6), (key_heads, n_k, 6), (key_heads, n_k, 5))
    return [torch.randn(2, *size, dtype=torch.float64) for size in sizes]


def written_out(q: Tensor, k: Tensor, block: int, keep: int, causal: bool) -> Tensor:
    """The pairs that are seen (batch, heads, n_q, n_k); blocks are gathered, averaged and sorted one by one."""
    n_q, n_k = q.shape[2], k.shape[2]
    standing = [n_k - n_q + i for i in range(n_q)]
    seen = torch.zeros(*q.shape[:3], n_k, dtype=torch.bool)
    for b, h in product(range(q.shape[0]), range(q.shape[1])):
        keys = k[b, h * k.shape[1] // q.shape[1]]
        means = [keys[first : first + block].mean(0) for first in range(0, n_k, block)]
        for own in sorted({p // block for p in standing}):
            members = [i for i, p in enumerate(standing) if p // block == own]
            mean = q[b, h, members].mean(0)
            allowed = range(own + 1) if causal else range(len(means))
            best = sorted(allowed, key=lambda at: -float(mean @ means[at]))[:keep]
            for i, j in product(members, range(n_k)):
                seen[b, h, i, j] = j // block in {*best, own} and (not causal or j <= standing[i])
    return seen


SIZES = [(32, 32, 8), (30, 30, 8), (1, 1, 8), (1, 29, 8), (11, 29, 8), (16, 29, 5), (9, 9, 1), (7, 7, 100)]
every_size = pytest.mark.parametrize("n_q, n_k, block", SIZES)


@every_size
@pytest.mark.parametrize("keep", [0, 1, 3])
@pytest.mark.parametrize("causal", [False, True])
def test_a_block_of_queries_sees_its_best_blocks_and_its_own(
    n_q: int, n_k: int, block: int, keep: int, causal: bool
) -> None:
    q, k, v = numbers(n_q, n_k)

    chosen = block_choice(q, k, block=block, keep=keep, causal=causal)
    found = block_sparse(q, k, v, block=block, keep=keep, causal=causal)

    expected = written_out(q, k, block, keep, causal)
    assert torch.equal(chosen.dense(n_q, n_k, batch=2, heads=4), expected)
    dense = scaled_dot_product_attention(q, k, v, attn_mask=expected, enable_gqa=True)
    torch.testing.assert_close(found, dense, rtol=0, atol=1e-12)  # both in float64


@every_size
@pytest.mark.parametrize("causal", [False, True])
def test_with_every_block_it_is_full_attention(n_q: int, n_k: int, block: int, causal: bool) -> None:
    q, k, v = numbers(n_q, n_k)

    found = block_sparse(q, k, v, block=block, keep=-(-n_k // block), causal=causal)

    torch.testing.assert_close(found, attention(q, k, v, mask=mask.causal() if causal else None))


def test_with_none_it_is_a_block_of_its_own() -> None:
    q, k, v = numbers(50, 50)

    found = block_sparse(q, k, v, block=16, keep=0, causal=True)

    torch.testing.assert_close(found, attention(q, k, v, mask=mask.causal() & mask.blocks(16)))


@pytest.mark.parametrize("engine", ["native", "tiled"])
def test_the_kernels_that_skip_what_is_hidden_take_the_choice(engine: str) -> None:
    q, k, v = torch.randn(3, 1, 2, 512, 16, requires_grad=True)
    chosen = block_choice(q, k, block=64, keep=1)
    table = chosen.dense(512, heads=2)

    found = attention(q, k, v, mask=chosen, engine=engine)
    got = torch.autograd.grad(found.square().sum(), (q, k, v))

    dense = scaled_dot_product_attention(q, k, v, attn_mask=table)
    expected = torch.autograd.grad(dense.square().sum(), (q, k, v))
    for one, other in zip((found, *got), (dense, *expected), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=2e-5)  # sums of 128 terms of size about 1 in float32
    assert table[0, :, ::64, ::64].sum(-1).max() <= 2
    counts = chosen.regions(512, heads=2, size=64).counts
    assert counts["partial"] == 0 and counts["empty"] >= 2 * 8 * 6


def test_keys_that_gather_by_topic_keep_their_weight_in_few_blocks() -> None:
    """Queries that look for one of 16 topics, each a block of keys: two blocks of 16 hold all but a little."""
    topics = torch.nn.functional.normalize(torch.randn(16, 32, dtype=torch.float64), dim=-1)
    k = topics.repeat_interleave(20, 0) + 0.05 * torch.randn(320, 32, dtype=torch.float64)
    q = 60.0 * k.view(16, 20, 32).roll(5, 0).flatten(0, 1)

    whole = attend(q, k, k)
    kept = {keep: whole.weights.measure(measure.mass(block_choice(q, k, block=20, keep=keep))).mass for keep in (0, 1)}

    assert kept[0].max() < 0.05 and kept[1].min() > 0.95
    chosen = block_choice(q, k, block=20, keep=1)
    torch.testing.assert_close(kept[1], (whole.weights[...] * chosen.dense(320)[0, 0]).sum(-1))
    away = (block_sparse(q, k, k, block=20, keep=1) - whole.output).abs().amax(-1)
    assert (away <= 2.0 * (1.0 - kept[1]) * k.abs().max()).all()  # what is lost, and what the rest gains by it


def test_more_blocks_keep_more_of_the_weight() -> None:
    q, k, v = numbers(60, 60)
    weights = attend(q, k, v).weights

    kept = [float(weights.measure(measure.mass(block_choice(q, k, block=8, keep=n))).mass.mean()) for n in range(9)]

    assert kept == sorted(kept) and kept[0] < 0.3 and kept[-1] == pytest.approx(1.0)


def test_no_head_and_no_batch_need_be_given() -> None:
    q, k, v = numbers(21, 21, 1, 1)
    expected = block_sparse(q, k, v, block=4, keep=2)

    torch.testing.assert_close(block_sparse(q[:, 0], k[:, 0], v[:, 0], block=4, keep=2), expected[:, 0])
    torch.testing.assert_close(block_sparse(q[1, 0], k[1, 0], v[1, 0], block=4, keep=2), expected[1, 0])
    five = block_sparse(*(x.unsqueeze(1) for x in (q, k, v)), block=4, keep=2)
    torch.testing.assert_close(five.squeeze(1), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_choice_is_made_in_float32_at_least(dtype: torch.dtype) -> None:
    q, k, _ = (x.to(dtype) for x in numbers(240, 240, 1, 1))

    chosen = block_choice(q, k, block=4, keep=5).dense(240, batch=2)

    assert torch.equal(chosen, written_out(q.double(), k.double(), 4, 5, False))  # of 60 scores some lie close together


def test_gradients_flow_through_what_is_seen_and_not_through_the_choice() -> None:
    q, k, v = (torch.randn(1, 2, 7, 3, dtype=torch.float64, requires_grad=True) for _ in range(3))

    assert gradcheck(lambda q, k, v: block_sparse(q, k, v, block=2, keep=1, causal=True), (q, k, v))


def test_nothing_gives_nothing() -> None:
    q, k, v = numbers(0, 0)
    assert block_sparse(q, k, v, block=4, keep=1).shape == (2, 4, 0, 5)
    q, k, v = numbers(0, 6)
    assert block_sparse(q, k, v, block=4, keep=1).shape == (2, 4, 0, 5)


def test_what_is_wrong_is_said() -> None:
    q, k, v = numbers(5, 4)
    with pytest.raises(SpecError, match="no more than the keys, among which they stand; got 5 queries and 4 keys"):
        block_sparse(q, k, v, block=2, keep=1)
    q, k, v = numbers(4, 4)
    with pytest.raises(SpecError, match="block must be at least 1 and keep at least 0; got block=0, keep=1"):
        block_choice(q, k, block=0, keep=1)
    with pytest.raises(SpecError, match="block must be at least 1 and keep at least 0; got block=2, keep=-1"):
        block_choice(q, k, block=2, keep=-1)
    with pytest.raises(SpecError, match=r"one batch and one width; got q=\(2, 4, 4, 6\), k=\(2, 2, 4, 5\)"):
        block_choice(q, v, block=2, keep=1)
    with pytest.raises(SpecError, match=r"one batch and one width; got q=\(2, 4, 4, 6\), k=\(2, 4, 6\)"):
        block_choice(q, k[:, 0], block=2, keep=1)
    with pytest.raises(SpecError, match="the number of key heads must divide that of q; got 2 and 3"):
        block_choice(q[:, :3], k, block=2, keep=1)
