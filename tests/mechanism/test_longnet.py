"""Dilated attention: rows and keys taken one by one, one dense softmax that counts keys, masks instead of gathering."""

import math
from itertools import product

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck
from torch.nn.functional import scaled_dot_product_attention

from regard import attend, attention, mask, merge
from regard.errors import SpecError
from regard.mechanism.longnet import longnet

HEADS = 4


def numbers(n: int, key_heads: int = HEADS) -> list[Tensor]:
    sizes = ((HEADS, n, 6), (key_heads, n, 6), (key_heads, n, 5))
    return [torch.randn(2, *size, dtype=torch.float64) for size in sizes]


def taken(n: int, head: int, w: int, r: int) -> list[list[int]]:
    """The rows of each segment that a head takes."""
    segments = [range(first, min(first + w, n)) for first in range(0, n, w)]
    return [[row for row in segment if (row - segment.start) % r == head % r] for segment in segments]


def written_out(
    q: Tensor, k: Tensor, v: Tensor, segments: list[int], dilations: list[int], causal: bool
) -> tuple[Tensor, Tensor]:
    """Row by row the mean of what the patterns give, weighted with their denominators; and those, all together."""
    output, total = torch.zeros(*q.shape[:-1], v.shape[-1], dtype=q.dtype), torch.zeros(q.shape[:-1], dtype=q.dtype)
    for b, h, (w, r) in product(range(len(q)), range(HEADS), zip(segments, dilations, strict=True)):
        for rows in taken(q.shape[-2], h, w, r):
            for i in rows:
                keys = [j for j in rows if not causal or j <= i]
                powers = torch.exp(k[b, h, keys] @ q[b, h, i] / math.sqrt(q.shape[-1]))
                denominator = powers.sum()
                output[b, h, i] += denominator * ((powers / denominator) @ v[b, h, keys])
                total[b, h, i] += denominator
    return output / torch.where(total == 0, 1.0, total).unsqueeze(-1), total


PATTERNS = {
    "one": ([8], [1]),
    "two": ([8, 32], [1, 2]),
    "growing together": ([4, 8, 16, 32], [1, 2, 4, 8]),
    "gaps that do not divide": ([5, 11, 100], [1, 3, 7]),
    "gaps wider than segments": ([3, 3], [1, 5]),
    "rows left out": ([16], [3]),
}
every_pattern = pytest.mark.parametrize("name", PATTERNS)


@every_pattern
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("n", [1, 32, 37])
def test_patterns_are_mixed_by_their_denominators(name: str, causal: bool, n: int) -> None:
    q, k, v = numbers(n)
    segments, dilations = PATTERNS[name]

    found = longnet(q, k, v, segments=segments, dilations=dilations, causal=causal)

    expected, _ = written_out(q, k, v, segments, dilations, causal)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-13)  # some dozen terms in float64


@every_pattern
@pytest.mark.parametrize("causal", [False, True])
def test_it_is_one_dense_softmax_in_which_a_key_counts_once_for_each_pattern(name: str, causal: bool) -> None:
    q, k, v = numbers(37)
    counts = torch.zeros(HEADS, 37, 37, dtype=torch.float64)
    for h, (w, r) in product(range(HEADS), zip(*PATTERNS[name], strict=True)):
        for rows in taken(37, h, w, r):
            counts[h, torch.tensor(rows, dtype=torch.long).view(-1, 1), rows] += 1
    if causal:
        counts = counts.tril()
    is_taken = counts.sum(-1) > 0

    found = longnet(q, k, v, segments=PATTERNS[name][0], dilations=PATTERNS[name][1], causal=causal)

    dense = scaled_dot_product_attention(q, k, v, attn_mask=counts.log())
    torch.testing.assert_close(found[:, is_taken], dense[:, is_taken], rtol=0, atol=1e-13)
    assert (found[:, ~is_taken] == 0).all()
    assert is_taken.all() == (name != "rows left out")


@pytest.mark.parametrize("causal", [False, True])
def test_masks_over_all_rows_say_the_same_in_float32(causal: bool) -> None:
    q, k, v = torch.randn(3, 1, HEADS, 300, 16, requires_grad=True)
    patterns = ((32, 1), (128, 4), (300, 8))
    parts = []
    for w, r in patterns:

        def seen(b, h, i, j, w=w, r=r):
            return (i // w == j // w) & (i % w % r == h % r) & (j % w % r == h % r)

        found = attend(q, k, v, mask=mask.where(seen) & mask.causal() if causal else seen)
        parts.append((found.output, found.lse))
    expected, _ = merge(*parts)

    found = longnet(q, k, v, segments=[32, 128, 300], dilations=[1, 4, 8], causal=causal)

    close = dict(rtol=0, atol=5e-5)  # sums of some hundred terms of size about 1 in float32
    torch.testing.assert_close(found, expected, **close)
    both = (torch.autograd.grad(x.square().sum(), (q, k, v)) for x in (found, expected))
    for one, other in zip(*both, strict=True):
        torch.testing.assert_close(one, other, **close)


@pytest.mark.parametrize("n", [1, 20])
@pytest.mark.parametrize("causal", [False, True])
def test_one_segment_without_gaps_is_full_attention(n: int, causal: bool) -> None:
    q, k, v = numbers(n)
    expected = attention(q, k, v, mask=mask.causal() if causal else None)

    for segment in (n, n + 7):
        found = longnet(q, k, v, segments=[segment], dilations=[1], causal=causal)
        torch.testing.assert_close(found, expected)


def test_the_same_pattern_twice_changes_nothing() -> None:
    q, k, v = numbers(30)

    once = longnet(q, k, v, segments=[8], dilations=[2])
    twice = longnet(q, k, v, segments=[8, 8], dilations=[2, 2])

    torch.testing.assert_close(twice, once)


def test_heads_take_turns_so_that_together_they_take_every_row() -> None:
    q, k, v = numbers(32)

    found = longnet(q, k, v, segments=[16], dilations=[4])

    is_taken = (found != 0).all(-1)
    assert is_taken.long().sum(1).eq(1).all()
    assert is_taken[0].long().argmax(0).tolist() == [0, 1, 2, 3] * 8


def test_heads_share_keys_and_need_not_be_given() -> None:
    options = dict(segments=[4, 16], dilations=[1, 2])
    q, k, v = numbers(21, key_heads=2)
    apart = longnet(q, *(x.repeat_interleave(2, dim=1) for x in (k, v)), **options)
    torch.testing.assert_close(longnet(q, k, v, **options), apart)

    single = [x[:, :1] for x in (q, k, v)]
    expected = longnet(*single, **options)
    torch.testing.assert_close(longnet(*(x[:, 0] for x in single), **options), expected[:, 0])
    torch.testing.assert_close(longnet(*(x[1, 0] for x in single), **options), expected[1, 0])


def test_gradients_flow_through_the_mixture_too() -> None:
    q, k, v = (torch.randn(1, 2, 5, 2, dtype=torch.float64, requires_grad=True) for _ in range(3))

    assert gradcheck(lambda q, k, v: longnet(q, k, v, segments=[2, 4], dilations=[1, 2], causal=True), (q, k, v))


def test_nothing_gives_nothing() -> None:
    q, k, v = numbers(0)
    assert longnet(q, k, v, segments=[4], dilations=[1]).shape == (2, HEADS, 0, 5)


def test_what_is_wrong_is_said() -> None:
    q, k, v = numbers(6)
    with pytest.raises(SpecError, match="as many, and at least 1; got 2 and 1"):
        longnet(q, k, v, segments=[2, 4], dilations=[1])
    with pytest.raises(SpecError, match="as many, and at least 1; got 0 and 0"):
        longnet(q, k, v, segments=[], dilations=[])
    with pytest.raises(SpecError, match="must be at least 1; got 4 and 0 as the smallest"):
        longnet(q, k, v, segments=[4, 8], dilations=[1, 0])
    with pytest.raises(SpecError, match=r"one batch and one length; got q=\(2, 4, 6, 6\), k=\(2, 4, 5, 6\)"):
        longnet(q, k[..., :5, :], v, segments=[4], dilations=[1])
    with pytest.raises(SpecError, match="it must divide that of q; got 3, 3 and 4"):
        longnet(q, k[:, :3], v[:, :3], segments=[4], dilations=[1])
    with pytest.raises(SpecError, match="it must divide that of q; got 4, 2 and 4"):
        longnet(q, k, v[:, :2], segments=[4], dilations=[1])
