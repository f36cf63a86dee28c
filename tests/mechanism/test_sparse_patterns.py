"""Sparse patterns against what others compute: torch's dense attention, Hugging Face's BigBird, local-attention.

`tests/spec/test_mask.py` has what each mask sees; here attention with it, and its gradients, is what others say.
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

from regard import attend, attention, mask

N = 200
IDS = torch.tensor([0, 2, 1, 2, 5]).repeat_interleave(torch.tensor([30, 71, 9, 40, 50]))


def pairs(seen: Any) -> Tensor:
    """Which pairs are seen, one row of keys after another."""
    table = torch.zeros(N, N, dtype=torch.bool)
    for i in range(N):
        table[i, [j for j in seen(i) if 0 <= j < N]] = True
    return table


def drawn(size: int, count: int, seed: int) -> Tensor:
    """The blocks that `random_blocks` draws for one position of each, spread over all of their pairs."""
    blocks = mask.random_blocks(size, count, seed).dense(N)[0, 0][::size, ::size]
    return torch.kron(blocks.long(), torch.ones(size, size, dtype=torch.long))[:N, :N].bool()


LAST = (N - 1) // 16  # the last block of 16
PATTERNS: dict[str, tuple[mask.Mask, Tensor]] = {
    "window": (mask.window(9), pairs(lambda i: range(i - 8, i + 9))),
    "window, more on one side": (mask.window(40, 3), pairs(lambda i: range(i - 39, i + 3))),
    "dilated": (mask.dilated(6, 5), pairs(lambda i: range(i - 25, i + 26, 5))),
    "blocks": (mask.blocks(24), torch.block_diag(*[torch.ones(24, 24)] * 9)[:N, :N].bool()),
    "blocks, looking back": (mask.blocks(24, 2), pairs(lambda i: range(i // 24 * 24 - 48, i // 24 * 24 + 24))),
    "strided": (mask.strided(14), pairs(lambda i: [*range(i - 14, i + 1), *range(i % 14, i + 1, 14)])),
    "fixed": (
        mask.fixed(14, 2),
        pairs(lambda i: [*range(i // 14 * 14, i + 1), *(j for j in range(i + 1) if j % 14 in (12, 13))]),
    ),
    "tokens": (
        mask.window(1) | mask.tokens([0, 77, 199]),
        pairs(lambda i: range(N) if i in (0, 77, 199) else [i, 0, 77, 199]),
    ),
    "longformer": (
        mask.longformer(20, [3, 120]),
        pairs(lambda i: range(N) if i in (3, 120) else [*range(i - 10, i + 11), 3, 120]),
    ),
    "random blocks": (mask.random_blocks(16, 3, seed=4), drawn(16, 3, 4)),
    "bigbird": (
        mask.bigbird(16, random=2, seed=4),
        drawn(16, 2, 4)
        | pairs(
            lambda i: (
                range(N)
                if i // 16 in (0, LAST)
                else [*range(i // 16 * 16 - 16, i // 16 * 16 + 32), *range(16), *range(LAST * 16, N)]
            )
        ),
    ),
    "documents": (mask.documents(IDS), pairs(lambda i: [j for j in range(N) if IDS[i] == IDS[j]])),
    "prefix": (mask.causal() | mask.prefix(60), pairs(lambda i: range(max(i + 1, 60)))),
    "causal documents": (
        mask.causal() & mask.documents(IDS),
        pairs(lambda i: [j for j in range(i + 1) if IDS[i] == IDS[j]]),
    ),
}


# The engine's precision; sums of up to 200 terms of size about 1 stay under 100 units of the last place.
ENGINES = {"native": (torch.float32, 2e-5), "tiled": (torch.float64, 2e-12)}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", PATTERNS)
def test_a_pattern_is_dense_attention_without_the_other_pairs(name: str, engine: str) -> None:
    chosen, table = PATTERNS[name]
    dtype, tolerance = ENGINES[engine]
    tensors = [torch.randn(2, 3, N, 8, dtype=dtype, requires_grad=True) for _ in "qkv"]
    change = torch.randn(2, 3, N, 8, dtype=dtype)

    found = attention(*tensors, mask=chosen, engine=engine)
    got = torch.autograd.grad((found * change).sum(), tensors)

    dense = scaled_dot_product_attention(*tensors, attn_mask=table)
    expected = torch.autograd.grad((dense * change).sum(), tensors)
    assert 0.0 < table.double().mean() < 0.75
    for one, other in zip((found, *got), (dense, *expected), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=10 * tolerance if one is not found else tolerance)


HEADS, WIDTH = 2, 6


class BigBird:
    """Hugging Face's block-sparse layer in float64, and what it looks at.

    It differs from `mask.bigbird` in this. Its window is three blocks and its global blocks are the first and the last.
    Each head draws its own random blocks, outside the window and the ends; for 1024, 3072 and 4096 tokens the draw
    may fall into the window, and a key counts twice then. In eval mode it draws nothing, and takes block 0 instead as
    often as it would have drawn.
    """

    def __init__(self, random: int, block: int = 4, blocks: int = 12, seed: int = 5) -> None:
        self.seed, self.random, self.block, self.blocks, self.n = seed, random, block, blocks, block * blocks
        config = BigBirdConfig(
            hidden_size=HEADS * WIDTH,
            num_attention_heads=HEADS,
            num_random_blocks=random,
            block_size=block,
            max_position_embeddings=self.n,
            attention_probs_dropout_prob=0.0,
        )
        self.layer = BigBirdBlockSparseAttention(config, seed).double()

    def projected(self, x: Tensor) -> list[Tensor]:
        every = (self.layer.query, self.layer.key, self.layer.value)
        return [p(x).unflatten(-1, (HEADS, WIDTH)).transpose(1, 2) for p in every]

    def output(self, x: Tensor, is_real: Tensor) -> Tensor:
        masks = BigBirdModel.create_masks_for_block_sparse_attn(is_real.double(), self.block)
        blocked, band, of_queries, of_keys = masks
        with numpys_own_numbers():
            found, _ = self.layer(x, band, of_queries, of_keys, blocked, blocked)
        return found.unflatten(-1, (HEADS, WIDTH)).transpose(1, 2)

    def drawn(self) -> Tensor:
        """How often each block of queries draws each block of keys: (heads, blocks, blocks)."""
        n, size = self.n, self.block
        with numpys_own_numbers():
            np.random.seed(self.seed)
            if n in (1024, 3072, 4096):
                one = lambda: self.layer._bigbird_block_rand_mask(n, n, size, size, self.random, last_idx=1024)
                rows = [one() for _ in range(HEADS)]
            else:
                lengths, counts = self.layer._get_rand_attn_plan(n, size, self.random)
                rows = self.layer._bigbird_block_rand_mask_with_head(n, n, size, size, HEADS, lengths, counts)
        table = torch.zeros(HEADS, self.blocks, self.blocks, dtype=torch.float64)
        chosen = torch.from_numpy(np.stack(rows)).long()  # the first and the last block draw nothing
        table[:, 1:-1].scatter_add_(-1, chosen, torch.ones_like(chosen, dtype=table.dtype))
        return table


@contextmanager
def numpys_own_numbers() -> Iterator[None]:
    """The layer sets numpy's seed for everyone; set it back."""
    state = np.random.get_state()
    yield
    np.random.set_state(state)


def test_bigbird_with_the_blocks_that_hugging_face_draws_is_hugging_faces() -> None:
    witness = BigBird(random=2)
    x, block = torch.randn(2, witness.n, HEADS * WIDTH, dtype=torch.float64), witness.block
    is_real = torch.arange(witness.n) < torch.tensor([[48], [39]])
    drawn = witness.drawn() > 0
    seen = mask.bigbird(block, random=0) | (lambda b, h, i, j: drawn[h, i // block, j // block])

    found = attention(*witness.projected(x), mask=seen & mask.padding([48, 39]))

    assert drawn[:, 1:-1].sum(-1).eq(2).all() and not torch.equal(drawn[0], drawn[1])
    of_real = is_real[:, None, :, None]  # the layer gives 0 at padding
    expected = witness.output(x, is_real)
    torch.testing.assert_close(torch.where(of_real, found, 0.0), expected, rtol=0, atol=1e-12)  # both in float64


def test_hugging_face_draws_outside_the_window_and_the_ends_and_for_each_head_by_itself() -> None:
    drawn = BigBird(random=3).drawn()

    own = mask.bigbird(1, random=0).dense(12)[0, 0]
    assert not (drawn[:, own] > 0).any() and drawn.max() == 1 and not torch.equal(drawn[0], drawn[1])
    ours = mask.random_blocks(1, 3).dense(12, heads=2)[0]
    assert torch.equal(ours[0], ours[1]) and (ours[0] & own).any()


@pytest.mark.parametrize("mode, block, blocks", [("eval", 4, 12), ("train", 64, 16)])
def test_a_block_that_hugging_faces_bigbird_takes_twice_counts_twice(mode: str, block: int, blocks: int) -> None:
    """In eval mode the first block, and of 1024 tokens what is drawn from the window."""
    witness = BigBird(random=3, block=block, blocks=blocks)
    witness.layer.train(mode == "train")
    x = torch.randn(1, witness.n, HEADS * WIDTH, dtype=torch.float64)
    drawn, own = witness.drawn(), mask.bigbird(1, random=0).dense(blocks)[0, 0]
    counts = drawn + own
    times = counts.log()  # a key that counts c times has log c added to its score, one that counts 0 times is hidden
    if mode == "eval":
        assert counts[:, 1:-1, 0].eq(4).all()

    found = attention(*witness.projected(x), score=lambda s, b, h, i, j: s + times[h, i // block, j // block])

    assert (drawn[:, own] > 0).any() and counts.max() > 1
    expected = witness.output(x, torch.ones(1, witness.n))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)  # both in float64


C = 16  # local-attention's window_size
LOCAL: dict[str, tuple[dict[str, Any], mask.Mask]] = {
    "own block": (dict(look_backward=0, look_forward=0), mask.blocks(C)),
    "own block, causal": (dict(look_backward=0, causal=True), mask.causal() & mask.blocks(C)),
    "back": (dict(look_backward=1, look_forward=0), mask.blocks(C, 1)),
    "back, causal": (dict(look_backward=1, causal=True), mask.causal() & mask.blocks(C, 1)),
    "two back, causal": (dict(look_backward=2, causal=True), mask.causal() & mask.blocks(C, 2)),
    "as it comes": (dict(), mask.blocks(C, 1) | mask.where(lambda b, h, i, j: j // C == i // C + 1)),
    # `exact_windowsize` sees the query and window_size keys on a side, one more than the name says
    "exact, causal": (dict(causal=True, exact_windowsize=True), mask.causal() & mask.window(C + 1)),
    "exact, two back": (
        dict(causal=True, exact_windowsize=True, look_backward=2),
        mask.causal() & mask.window(2 * C + 1),
    ),
    "exact": (dict(exact_windowsize=True), mask.window(C + 1)),
}


@pytest.mark.parametrize("name", LOCAL)
@pytest.mark.parametrize("is_padded", [False, True])
def test_blocks_that_look_back_are_those_of_local_attention(name: str, is_padded: bool) -> None:
    options, chosen = LOCAL[name]
    tensors = [torch.randn(2, 3, 5 * C, 8, dtype=torch.float64, requires_grad=True) for _ in "qkv"]
    change = torch.randn(2, 3, 5 * C, 8, dtype=torch.float64)
    lengths = torch.tensor([5 * C, 3 * C + 5] if is_padded else [5 * C, 5 * C])
    is_real = torch.arange(5 * C) < lengths[:, None]
    change = torch.where(is_real[:, None, :, None], change, 0.0)  # a query that sees padding only is averaged there

    expected = LocalAttention(C, **options)(*tensors, mask=is_real if is_padded else None)
    found = attention(*tensors, mask=chosen & mask.padding(lengths))

    close = dict(rtol=0, atol=1e-11)  # both in float64
    torch.testing.assert_close(found * change, expected * change, **close)
    both = (torch.autograd.grad((x * change).sum(), tensors) for x in (found, expected))
    for one, other in zip(*both, strict=True):
        torch.testing.assert_close(one, other, **close)


def test_local_attention_that_pads_by_itself_looks_at_the_padding_unless_it_is_causal() -> None:
    q, k, v = torch.randn(3, 1, 2, 5 * C - 6, 8, dtype=torch.float64)
    n = q.shape[-2]

    causal = LocalAttention(C, causal=True, autopad=True)(q, k, v)
    both_ways = LocalAttention(C, look_forward=0, autopad=True)(q, k, v)
    told = LocalAttention(C, look_forward=0, autopad=True)(q, k, v, mask=torch.ones(1, n, dtype=torch.bool))

    close = dict(rtol=0, atol=1e-12)  # all in float64
    torch.testing.assert_close(causal, attention(q, k, v, mask=mask.causal() & mask.blocks(C, 1)), **close)
    torch.testing.assert_close(told, attention(q, k, v, mask=mask.blocks(C, 1)), **close)
    zeros = [torch.nn.functional.pad(x, (0, 0, 0, 6)) for x in (q, k, v)]
    torch.testing.assert_close(both_ways, attention(*zeros, mask=mask.blocks(C, 1))[..., :n, :], **close)
    assert (both_ways - told)[..., 4 * C :, :].abs().min() > 1e-6


@pytest.mark.parametrize("name", PATTERNS)
def test_what_a_pattern_hides_weighs_nothing_and_what_it_sees_something(name: str) -> None:
    chosen, table = PATTERNS[name]
    q, k, v = torch.randn(3, N, 8, dtype=torch.float64)

    assert torch.equal(attend(q, k, v, mask=chosen).weights[...] > 0, table)
