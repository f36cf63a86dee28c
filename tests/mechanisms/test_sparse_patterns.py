"""Attention with sparse masks, and its gradients, against torch, Hugging Face's BigBird and local-attention.

`tests/test_mask.py` tests the pairs of each mask.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from local_attention import LocalAttention
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import BigBirdConfig
from transformers.models.big_bird.modeling_big_bird import BigBirdBlockSparseAttention, BigBirdModel

from regard import attention, attention_with_weights, mask

N = 200
IDS = torch.tensor([0, 2, 1, 2, 5]).repeat_interleave(torch.tensor([30, 71, 9, 40, 50]))


def pair_mask(visible: Any) -> Tensor:
    """Return the visible pairs; `visible` maps a query index to its key indices."""
    table = torch.zeros(N, N, dtype=torch.bool)
    for i in range(N):
        table[i, [j for j in visible(i) if 0 <= j < N]] = True
    return table


def drawn(size: int, count: int, seed: int) -> Tensor:
    """Return the pairs of `random_blocks`, from its value at the first pair of each block."""
    blocks = mask.random_blocks(size, count, seed).to_dense(N)[0, 0][::size, ::size]
    return torch.kron(blocks.long(), torch.ones(size, size, dtype=torch.long))[:N, :N].bool()


LAST = (N - 1) // 16  # the last block of 16
PATTERNS: dict[str, tuple[mask.Mask, Tensor]] = {
    "window": (mask.sliding_window(9), pair_mask(lambda i: range(i - 8, i + 9))),
    "window, more on one side": (mask.sliding_window(40, 3), pair_mask(lambda i: range(i - 39, i + 3))),
    "dilated": (mask.dilated(6, 5), pair_mask(lambda i: range(i - 25, i + 26, 5))),
    "blocks": (mask.chunked(24), torch.block_diag(*[torch.ones(24, 24)] * 9)[:N, :N].bool()),
    "blocks, looking back": (mask.chunked(24, 2), pair_mask(lambda i: range(i // 24 * 24 - 48, i // 24 * 24 + 24))),
    "strided": (mask.strided(14), pair_mask(lambda i: [*range(i - 14, i + 1), *range(i % 14, i + 1, 14)])),
    "fixed": (
        mask.fixed(14, 2),
        pair_mask(lambda i: [*range(i // 14 * 14, i + 1), *(j for j in range(i + 1) if j % 14 in (12, 13))]),
    ),
    "tokens": (
        mask.sliding_window(1) | mask.global_tokens([0, 77, 199]),
        pair_mask(lambda i: range(N) if i in (0, 77, 199) else [i, 0, 77, 199]),
    ),
    "longformer": (
        mask.longformer(20, [3, 120]),
        pair_mask(lambda i: range(N) if i in (3, 120) else [*range(i - 10, i + 11), 3, 120]),
    ),
    "random blocks": (mask.random_blocks(16, 3, seed=4), drawn(16, 3, 4)),
    "bigbird": (
        mask.bigbird(16, num_random_blocks=2, seed=4),
        drawn(16, 2, 4)
        | pair_mask(
            lambda i: (
                range(N)
                if i // 16 in (0, LAST)
                else [*range(i // 16 * 16 - 16, i // 16 * 16 + 32), *range(16), *range(LAST * 16, N)]
            )
        ),
    ),
    "documents": (mask.document(IDS), pair_mask(lambda i: [j for j in range(N) if IDS[i] == IDS[j]])),
    "prefix": (mask.causal() | mask.prefix(60), pair_mask(lambda i: range(max(i + 1, 60)))),
    "causal documents": (
        mask.causal() & mask.document(IDS),
        pair_mask(lambda i: [j for j in range(i + 1) if IDS[i] == IDS[j]]),
    ),
}


# The dtype of a backend and its tolerance: sums of 200 terms near 1 have errors below 100 units in the last place.
BACKENDS = {"native": (torch.float32, 2e-5), "tiled": (torch.float64, 2e-12)}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", PATTERNS)
def test_sparse_masks_match_dense_attention(name: str, backend: str) -> None:
    pattern, visible = PATTERNS[name]
    dtype, tolerance = BACKENDS[backend]
    tensors = [torch.randn(2, 3, N, 8, dtype=dtype, requires_grad=True) for _ in "qkv"]
    cotangent = torch.randn(2, 3, N, 8, dtype=dtype)

    output = attention(*tensors, mask=pattern, backend=backend)
    gradients = torch.autograd.grad((output * cotangent).sum(), tensors)

    dense = scaled_dot_product_attention(*tensors, attn_mask=visible)
    expected_gradients = torch.autograd.grad((dense * cotangent).sum(), tensors)
    assert 0.0 < visible.double().mean() < 0.75
    for actual, desired in zip((output, *gradients), (dense, *expected_gradients), strict=True):
        torch.testing.assert_close(actual, desired, rtol=0, atol=10 * tolerance if actual is not output else tolerance)


HEADS, HEAD_DIM = 2, 6


class HuggingFaceBigBird:
    """Hugging Face's block-sparse layer in float64, and the blocks that it draws.

    The layer has a window of three blocks, and the first and the last block are global. It differs from `mask.bigbird`:
    each head draws its own random blocks, outside the window and the ends. For 1024, 3072 and 4096 tokens a draw may
    fall into the window, and its keys count twice. In eval mode the layer uses block 0 in place of every random block.
    """

    def __init__(self, num_random_blocks: int, block_size: int = 4, num_blocks: int = 12, seed: int = 5) -> None:
        self.seed, self.num_random_blocks, self.block_size, self.num_blocks = (
            seed,
            num_random_blocks,
            block_size,
            num_blocks,
        )
        self.n = block_size * num_blocks
        config = BigBirdConfig(
            hidden_size=HEADS * HEAD_DIM,
            num_attention_heads=HEADS,
            num_random_blocks=num_random_blocks,
            block_size=block_size,
            max_position_embeddings=self.n,
            attention_probs_dropout_prob=0.0,
        )
        self.layer = BigBirdBlockSparseAttention(config, seed).double()

    def project(self, x: Tensor) -> list[Tensor]:
        projections = (self.layer.query, self.layer.key, self.layer.value)
        return [p(x).unflatten(-1, (HEADS, HEAD_DIM)).transpose(1, 2) for p in projections]

    def output(self, x: Tensor, is_real: Tensor) -> Tensor:
        masks = BigBirdModel.create_masks_for_block_sparse_attn(is_real.double(), self.block_size)
        blocked, band, query_mask, key_mask = masks
        with preserve_numpy_rng():
            output, _ = self.layer(x, band, query_mask, key_mask, blocked, blocked)
        return output.unflatten(-1, (HEADS, HEAD_DIM)).transpose(1, 2)

    def block_counts(self) -> Tensor:
        """Return how often each block of queries draws each block of keys, (heads, num_blocks, num_blocks)."""
        n, size = self.n, self.block_size
        with preserve_numpy_rng():
            np.random.seed(self.seed)
            if n in (1024, 3072, 4096):
                count = self.num_random_blocks
                rows = [
                    self.layer._bigbird_block_rand_mask(n, n, size, size, count, last_idx=1024) for _ in range(HEADS)
                ]
            else:
                lengths, counts = self.layer._get_rand_attn_plan(n, size, self.num_random_blocks)
                rows = self.layer._bigbird_block_rand_mask_with_head(n, n, size, size, HEADS, lengths, counts)
        table = torch.zeros(HEADS, self.num_blocks, self.num_blocks, dtype=torch.float64)
        block_ids = torch.from_numpy(np.stack(rows)).long()  # the first and the last block draw nothing
        table[:, 1:-1].scatter_add_(-1, block_ids, torch.ones_like(block_ids, dtype=table.dtype))
        return table


@contextmanager
def preserve_numpy_rng() -> Iterator[None]:
    """Restore numpy's global generator, which the layer seeds."""
    state = np.random.get_state()
    yield
    np.random.set_state(state)


def test_bigbird_with_the_same_random_blocks_matches_hugging_face() -> None:
    hf_layer = HuggingFaceBigBird(num_random_blocks=2)
    x, block = torch.randn(2, hf_layer.n, HEADS * HEAD_DIM, dtype=torch.float64), hf_layer.block_size
    is_real = torch.arange(hf_layer.n) < torch.tensor([[48], [39]])
    drawn = hf_layer.block_counts() > 0
    visible = mask.bigbird(block, num_random_blocks=0) | (lambda b, h, i, j: drawn[h, i // block, j // block])

    output = attention(*hf_layer.project(x), mask=visible & mask.padding([48, 39]))

    assert drawn[:, 1:-1].sum(-1).eq(2).all() and not torch.equal(drawn[0], drawn[1])
    of_real = is_real[:, None, :, None]  # the output of the layer is 0 at padding
    expected = hf_layer.output(x, is_real)
    torch.testing.assert_close(torch.where(of_real, output, 0.0), expected, rtol=0, atol=1e-12)  # both in float64


def test_hugging_face_draws_blocks_per_head_outside_the_window() -> None:
    drawn = HuggingFaceBigBird(num_random_blocks=3).block_counts()

    is_local = mask.bigbird(1, num_random_blocks=0).to_dense(12)[0, 0]
    assert not (drawn[:, is_local] > 0).any() and drawn.max() == 1 and not torch.equal(drawn[0], drawn[1])
    own_blocks = mask.random_blocks(1, 3).to_dense(12, num_heads=2)[0]
    assert torch.equal(own_blocks[0], own_blocks[1]) and (own_blocks[0] & is_local).any()


@pytest.mark.parametrize("mode, block, blocks", [("eval", 4, 12), ("train", 64, 16)])
def test_repeated_blocks_of_hugging_face_bigbird_count_twice(mode: str, block: int, blocks: int) -> None:
    """In eval mode the first block counts more than once; with 1024 tokens, blocks drawn from the window do."""
    hf_layer = HuggingFaceBigBird(num_random_blocks=3, block_size=block, num_blocks=blocks)
    hf_layer.layer.train(mode == "train")
    x = torch.randn(1, hf_layer.n, HEADS * HEAD_DIM, dtype=torch.float64)
    drawn, is_local = hf_layer.block_counts(), mask.bigbird(1, num_random_blocks=0).to_dense(blocks)[0, 0]
    counts = drawn + is_local
    log_counts = counts.log()  # a key that counts c times has log c added to its score; c = 0 hides it
    if mode == "eval":
        assert counts[:, 1:-1, 0].eq(4).all()

    output = attention(*hf_layer.project(x), score=lambda s, b, h, i, j: s + log_counts[h, i // block, j // block])

    assert (drawn[:, is_local] > 0).any() and counts.max() > 1
    expected = hf_layer.output(x, torch.ones(1, hf_layer.n))
    torch.testing.assert_close(output, expected, rtol=0, atol=1e-12)  # both in float64


C = 16  # local-attention's window_size
LOCAL: dict[str, tuple[dict[str, Any], mask.Mask]] = {
    "own block": (dict(look_backward=0, look_forward=0), mask.chunked(C)),
    "own block, causal": (dict(look_backward=0, causal=True), mask.causal() & mask.chunked(C)),
    "back": (dict(look_backward=1, look_forward=0), mask.chunked(C, 1)),
    "back, causal": (dict(look_backward=1, causal=True), mask.causal() & mask.chunked(C, 1)),
    "two back, causal": (dict(look_backward=2, causal=True), mask.causal() & mask.chunked(C, 2)),
    "default": (dict(), mask.chunked(C, 1) | mask.from_function(lambda b, h, i, j: j // C == i // C + 1)),
    # `exact_windowsize` includes the query and window_size keys on a side, one more than its name suggests
    "exact, causal": (dict(causal=True, exact_windowsize=True), mask.causal() & mask.sliding_window(C + 1)),
    "exact, two back": (
        dict(causal=True, exact_windowsize=True, look_backward=2),
        mask.causal() & mask.sliding_window(2 * C + 1),
    ),
    "exact": (dict(exact_windowsize=True), mask.sliding_window(C + 1)),
}


@pytest.mark.parametrize("name", LOCAL)
@pytest.mark.parametrize("is_padded", [False, True])
def test_chunked_masks_match_local_attention(name: str, is_padded: bool) -> None:
    options, pattern = LOCAL[name]
    tensors = [torch.randn(2, 3, 5 * C, 8, dtype=torch.float64, requires_grad=True) for _ in "qkv"]
    cotangent = torch.randn(2, 3, 5 * C, 8, dtype=torch.float64)
    lengths = torch.tensor([5 * C, 3 * C + 5] if is_padded else [5 * C, 5 * C])
    is_real = torch.arange(5 * C) < lengths[:, None]
    cotangent = torch.where(
        is_real[:, None, :, None], cotangent, 0.0
    )  # local-attention averages the values for a query with padding only

    expected = LocalAttention(C, **options)(*tensors, mask=is_real if is_padded else None)
    output = attention(*tensors, mask=pattern & mask.padding(lengths))

    close = dict(rtol=0, atol=1e-11)  # both in float64
    torch.testing.assert_close(output * cotangent, expected * cotangent, **close)
    gradients = (torch.autograd.grad((x * cotangent).sum(), tensors) for x in (output, expected))
    for actual, desired in zip(*gradients, strict=True):
        torch.testing.assert_close(actual, desired, **close)


def test_noncausal_local_attention_with_autopad_attends_to_its_padding() -> None:
    q, k, v = torch.randn(3, 1, 2, 5 * C - 6, 8, dtype=torch.float64)
    n = q.shape[-2]

    causal = LocalAttention(C, causal=True, autopad=True)(q, k, v)
    bidirectional = LocalAttention(C, look_forward=0, autopad=True)(q, k, v)
    masked = LocalAttention(C, look_forward=0, autopad=True)(q, k, v, mask=torch.ones(1, n, dtype=torch.bool))

    close = dict(rtol=0, atol=1e-12)  # all in float64
    torch.testing.assert_close(causal, attention(q, k, v, mask=mask.causal() & mask.chunked(C, 1)), **close)
    torch.testing.assert_close(masked, attention(q, k, v, mask=mask.chunked(C, 1)), **close)
    zeros = [torch.nn.functional.pad(x, (0, 0, 0, 6)) for x in (q, k, v)]
    torch.testing.assert_close(bidirectional, attention(*zeros, mask=mask.chunked(C, 1))[..., :n, :], **close)
    assert (bidirectional - masked)[..., 4 * C :, :].abs().min() > 1e-6


@pytest.mark.parametrize("name", PATTERNS)
def test_weights_are_positive_exactly_at_visible_pairs(name: str) -> None:
    pattern, table = PATTERNS[name]
    q, k, v = torch.randn(3, N, 8, dtype=torch.float64)

    assert torch.equal(attention_with_weights(q, k, v, mask=pattern).weights[...] > 0, table)
