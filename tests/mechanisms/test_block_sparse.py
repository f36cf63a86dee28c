"""Block-sparse attention against an explicit choice of blocks, torch's dense attention and the covered mass."""

from itertools import product

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck
from torch.nn.functional import scaled_dot_product_attention

from regard import attention, attention_with_weights, mask, measure
from regard.errors import ArgumentError
from regard.mechanisms.block_sparse import block_sparse_attention, topk_block_mask


def random_inputs(n_q: int, n_k: int, heads: int = 4, num_kv_heads: int = 2) -> list[Tensor]:
    sizes = ((heads, n_q, 6), (num_kv_heads, n_k, 6), (num_kv_heads, n_k, 5))
    return [torch.randn(2, *size, dtype=torch.float64) for size in sizes]


def reference_mask(q: Tensor, k: Tensor, block_size: int, topk: int, causal: bool) -> Tensor:
    """Return the visible pairs (batch, heads, n_q, n_k), with blocks averaged and sorted one at a time."""
    n_q, n_k = q.shape[2], k.shape[2]
    positions = [n_k - n_q + i for i in range(n_q)]
    visible = torch.zeros(*q.shape[:3], n_k, dtype=torch.bool)
    for b, h in product(range(q.shape[0]), range(q.shape[1])):
        keys = k[b, h * k.shape[1] // q.shape[1]]
        means = [keys[first : first + block_size].mean(0) for first in range(0, n_k, block_size)]
        for query_block in sorted({p // block_size for p in positions}):
            members = [i for i, p in enumerate(positions) if p // block_size == query_block]
            mean = q[b, h, members].mean(0)
            allowed = range(query_block + 1) if causal else range(len(means))
            best = sorted(allowed, key=lambda at: -float(mean @ means[at]))[:topk]
            for i, j in product(members, range(n_k)):
                visible[b, h, i, j] = j // block_size in {*best, query_block} and (not causal or j <= positions[i])
    return visible


SIZES = [(32, 32, 8), (30, 30, 8), (1, 1, 8), (1, 29, 8), (11, 29, 8), (16, 29, 5), (9, 9, 1), (7, 7, 100)]
every_size = pytest.mark.parametrize("n_q, n_k, block_size", SIZES)


@every_size
@pytest.mark.parametrize("topk", [0, 1, 3])
@pytest.mark.parametrize("causal", [False, True])
def test_a_query_block_attends_to_its_topk_blocks_and_its_own(
    n_q: int, n_k: int, block_size: int, topk: int, causal: bool
) -> None:
    q, k, v = random_inputs(n_q, n_k)

    block_mask = topk_block_mask(q, k, block_size=block_size, topk=topk, causal=causal)
    output = block_sparse_attention(q, k, v, block_size=block_size, topk=topk, causal=causal)

    expected = reference_mask(q, k, block_size, topk, causal)
    assert torch.equal(block_mask.to_dense(n_q, n_k, batch_size=2, num_heads=4), expected)
    dense = scaled_dot_product_attention(q, k, v, attn_mask=expected, enable_gqa=True)
    torch.testing.assert_close(output, dense, rtol=0, atol=1e-12)  # both in float64


@every_size
@pytest.mark.parametrize("causal", [False, True])
def test_all_blocks_are_full_attention(n_q: int, n_k: int, block_size: int, causal: bool) -> None:
    q, k, v = random_inputs(n_q, n_k)

    output = block_sparse_attention(q, k, v, block_size=block_size, topk=-(-n_k // block_size), causal=causal)

    torch.testing.assert_close(output, attention(q, k, v, mask=mask.causal() if causal else None))


def test_topk_zero_is_chunked_attention() -> None:
    q, k, v = random_inputs(50, 50)

    output = block_sparse_attention(q, k, v, block_size=16, topk=0, causal=True)

    torch.testing.assert_close(output, attention(q, k, v, mask=mask.causal() & mask.chunked(16)))


@pytest.mark.parametrize("backend", ["native", "tiled"])
def test_native_and_tiled_backends_skip_unselected_blocks(backend: str) -> None:
    q, k, v = torch.randn(3, 1, 2, 512, 16, requires_grad=True)
    block_mask = topk_block_mask(q, k, block_size=64, topk=1)
    visible = block_mask.to_dense(512, num_heads=2)

    output = attention(q, k, v, mask=block_mask, backend=backend)
    gradients = torch.autograd.grad(output.square().sum(), (q, k, v))

    dense = scaled_dot_product_attention(q, k, v, attn_mask=visible)
    expected = torch.autograd.grad(dense.square().sum(), (q, k, v))
    for actual, desired in zip((output, *gradients), (dense, *expected), strict=True):
        torch.testing.assert_close(actual, desired, rtol=0, atol=2e-5)  # sums of 128 terms of size about 1 in float32
    assert visible[0, :, ::64, ::64].sum(-1).max() <= 2
    counts = block_mask.tile_coverage(512, num_heads=2, tile_size=64).tile_counts
    assert counts["partial"] == 0 and counts["empty"] >= 2 * 8 * 6


def test_clustered_keys_have_their_mass_in_few_blocks() -> None:
    """Each query matches one of 16 topics, each topic a block of keys: two of 16 blocks hold nearly all mass."""
    topics = torch.nn.functional.normalize(torch.randn(16, 32, dtype=torch.float64), dim=-1)
    k = topics.repeat_interleave(20, 0) + 0.05 * torch.randn(320, 32, dtype=torch.float64)
    q = 60.0 * k.view(16, 20, 32).roll(5, 0).flatten(0, 1)

    full = attention_with_weights(q, k, k)
    mass = {
        topk: full.weights.measure(measure.mass(topk_block_mask(q, k, block_size=20, topk=topk))).mass
        for topk in (0, 1)
    }

    assert mass[0].max() < 0.05 and mass[1].min() > 0.95
    block_mask = topk_block_mask(q, k, block_size=20, topk=1)
    torch.testing.assert_close(mass[1], (full.weights[...] * block_mask.to_dense(320)[0, 0]).sum(-1))
    errors = (block_sparse_attention(q, k, k, block_size=20, topk=1) - full.output).abs().amax(-1)
    assert (
        errors <= 2.0 * (1.0 - mass[1]) * k.abs().max()
    ).all()  # the lost mass, and the gain of the other keys by it


def test_more_blocks_cover_more_mass() -> None:
    q, k, v = random_inputs(60, 60)
    weights = attention_with_weights(q, k, v).weights

    mass = [
        float(weights.measure(measure.mass(topk_block_mask(q, k, block_size=8, topk=n))).mass.mean()) for n in range(9)
    ]

    assert mass == sorted(mass) and mass[0] < 0.3 and mass[-1] == pytest.approx(1.0)


def test_inputs_without_heads_and_batch() -> None:
    q, k, v = random_inputs(21, 21, 1, 1)
    expected = block_sparse_attention(q, k, v, block_size=4, topk=2)

    torch.testing.assert_close(block_sparse_attention(q[:, 0], k[:, 0], v[:, 0], block_size=4, topk=2), expected[:, 0])
    torch.testing.assert_close(block_sparse_attention(q[1, 0], k[1, 0], v[1, 0], block_size=4, topk=2), expected[1, 0])
    five_dimensional = block_sparse_attention(*(x.unsqueeze(1) for x in (q, k, v)), block_size=4, topk=2)
    torch.testing.assert_close(five_dimensional.squeeze(1), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_blocks_are_selected_in_at_least_float32(dtype: torch.dtype) -> None:
    q, k, _ = (x.to(dtype) for x in random_inputs(240, 240, 1, 1))

    block_mask = topk_block_mask(q, k, block_size=4, topk=5).to_dense(240, batch_size=2)

    assert torch.equal(
        block_mask, reference_mask(q.double(), k.double(), 4, 5, False)
    )  # some of the 60 scores are nearly equal


def test_gradients_ignore_the_selection_of_blocks() -> None:
    q, k, v = (torch.randn(1, 2, 7, 3, dtype=torch.float64, requires_grad=True) for _ in range(3))

    assert gradcheck(lambda q, k, v: block_sparse_attention(q, k, v, block_size=2, topk=1, causal=True), (q, k, v))


def test_empty_inputs_return_empty_outputs() -> None:
    q, k, v = random_inputs(0, 0)
    assert block_sparse_attention(q, k, v, block_size=4, topk=1).shape == (2, 4, 0, 5)
    q, k, v = random_inputs(0, 6)
    assert block_sparse_attention(q, k, v, block_size=4, topk=1).shape == (2, 4, 0, 5)


def test_invalid_arguments_raise() -> None:
    q, k, v = random_inputs(5, 4)
    with pytest.raises(ArgumentError, match="q must not have more positions than k; got 5 queries and 4 keys"):
        block_sparse_attention(q, k, v, block_size=2, topk=1)
    q, k, v = random_inputs(4, 4)
    with pytest.raises(
        ArgumentError, match="block_size must be at least 1 and topk at least 0; got block_size=0, topk=1"
    ):
        topk_block_mask(q, k, block_size=0, topk=1)
    with pytest.raises(
        ArgumentError, match="block_size must be at least 1 and topk at least 0; got block_size=2, topk=-1"
    ):
        topk_block_mask(q, k, block_size=2, topk=-1)
    with pytest.raises(ArgumentError, match=r"the same head dimension; got q=\(2, 4, 4, 6\), k=\(2, 2, 4, 5\)"):
        topk_block_mask(q, v, block_size=2, topk=1)
    with pytest.raises(ArgumentError, match=r"the same head dimension; got q=\(2, 4, 4, 6\), k=\(2, 4, 6\)"):
        topk_block_mask(q, k[:, 0], block_size=2, topk=1)
    with pytest.raises(ArgumentError, match="num_kv_heads must divide num_heads; got num_kv_heads=2 and num_heads=3"):
        topk_block_mask(q[:, :3], k, block_size=2, topk=1)
