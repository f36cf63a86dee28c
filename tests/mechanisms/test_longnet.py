"""Dilated attention against an explicit computation, a dense softmax that counts keys, and masks over all rows."""

import math
from itertools import product

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck
from torch.nn.functional import scaled_dot_product_attention

from regard import attention, attention_with_weights, mask, merge_states
from regard.errors import ArgumentError
from regard.mechanisms.longnet import longnet_attention

HEADS = 4


def random_inputs(n: int, num_kv_heads: int = HEADS) -> list[Tensor]:
    sizes = ((HEADS, n, 6), (num_kv_heads, n, 6), (num_kv_heads, n, 5))
    return [torch.randn(2, *size, dtype=torch.float64) for size in sizes]


def selected_rows(n: int, head: int, w: int, r: int) -> list[list[int]]:
    """Return the rows of each segment that a head selects."""
    segments = [range(first, min(first + w, n)) for first in range(0, n, w)]
    return [[row for row in segment if (row - segment.start) % r == head % r] for segment in segments]


def reference(
    q: Tensor, k: Tensor, v: Tensor, segment_lengths: list[int], dilations: list[int], causal: bool
) -> tuple[Tensor, Tensor]:
    """Return the mean over patterns, weighted by their softmax denominators, and the sums of the denominators."""
    output, totals = torch.zeros(*q.shape[:-1], v.shape[-1], dtype=q.dtype), torch.zeros(q.shape[:-1], dtype=q.dtype)
    for b, h, (w, r) in product(range(len(q)), range(HEADS), zip(segment_lengths, dilations, strict=True)):
        for rows in selected_rows(q.shape[-2], h, w, r):
            for i in rows:
                keys = [j for j in rows if not causal or j <= i]
                exponentials = torch.exp(k[b, h, keys] @ q[b, h, i] / math.sqrt(q.shape[-1]))
                denominator = exponentials.sum()
                output[b, h, i] += denominator * ((exponentials / denominator) @ v[b, h, keys])
                totals[b, h, i] += denominator
    return output / torch.where(totals == 0, 1.0, totals).unsqueeze(-1), totals


PATTERNS = {
    "one": ([8], [1]),
    "two": ([8, 32], [1, 2]),
    "growing together": ([4, 8, 16, 32], [1, 2, 4, 8]),
    "gaps that do not divide": ([5, 11, 100], [1, 3, 7]),
    "gaps wider than segments": ([3, 3], [1, 5]),
    "skipped rows": ([16], [3]),
}
every_pattern = pytest.mark.parametrize("name", PATTERNS)


@every_pattern
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("n", [1, 32, 37])
def test_longnet_matches_the_reference(name: str, causal: bool, n: int) -> None:
    q, k, v = random_inputs(n)
    segment_lengths, dilations = PATTERNS[name]

    output = longnet_attention(q, k, v, segment_lengths=segment_lengths, dilations=dilations, causal=causal)

    expected, _ = reference(q, k, v, segment_lengths, dilations, causal)
    torch.testing.assert_close(output, expected, rtol=0, atol=1e-13)  # a few dozen terms in float64


@every_pattern
@pytest.mark.parametrize("causal", [False, True])
def test_longnet_is_a_dense_softmax_with_keys_counted_per_pattern(name: str, causal: bool) -> None:
    q, k, v = random_inputs(37)
    counts = torch.zeros(HEADS, 37, 37, dtype=torch.float64)
    for h, (w, r) in product(range(HEADS), zip(*PATTERNS[name], strict=True)):
        for rows in selected_rows(37, h, w, r):
            counts[h, torch.tensor(rows, dtype=torch.long).view(-1, 1), rows] += 1
    if causal:
        counts = counts.tril()
    is_selected = counts.sum(-1) > 0

    output = longnet_attention(q, k, v, segment_lengths=PATTERNS[name][0], dilations=PATTERNS[name][1], causal=causal)

    dense = scaled_dot_product_attention(q, k, v, attn_mask=counts.log())
    torch.testing.assert_close(output[:, is_selected], dense[:, is_selected], rtol=0, atol=1e-13)
    assert (output[:, ~is_selected] == 0).all()
    assert is_selected.all() == (name != "skipped rows")


@pytest.mark.parametrize("causal", [False, True])
def test_merged_masked_attention_is_the_same_in_float32(causal: bool) -> None:
    q, k, v = torch.randn(3, 1, HEADS, 300, 16, requires_grad=True)
    patterns = ((32, 1), (128, 4), (300, 8))
    parts = []
    for w, r in patterns:

        def visible(b, h, i, j, w=w, r=r):
            return (i // w == j // w) & (i % w % r == h % r) & (j % w % r == h % r)

        output = attention_with_weights(
            q, k, v, mask=mask.from_function(visible) & mask.causal() if causal else visible
        )
        parts.append((output.output, output.lse))
    expected, _ = merge_states(*parts)

    output = longnet_attention(q, k, v, segment_lengths=[32, 128, 300], dilations=[1, 4, 8], causal=causal)

    close = dict(rtol=0, atol=5e-5)  # sums of a few hundred terms of size about 1 in float32
    torch.testing.assert_close(output, expected, **close)
    gradients = (torch.autograd.grad(x.square().sum(), (q, k, v)) for x in (output, expected))
    for actual, desired in zip(*gradients, strict=True):
        torch.testing.assert_close(actual, desired, **close)


@pytest.mark.parametrize("n", [1, 20])
@pytest.mark.parametrize("causal", [False, True])
def test_one_segment_with_dilation_one_is_full_attention(n: int, causal: bool) -> None:
    q, k, v = random_inputs(n)
    expected = attention(q, k, v, mask=mask.causal() if causal else None)

    for segment in (n, n + 7):
        output = longnet_attention(q, k, v, segment_lengths=[segment], dilations=[1], causal=causal)
        torch.testing.assert_close(output, expected)


def test_repeating_a_pattern_changes_nothing() -> None:
    q, k, v = random_inputs(30)

    once = longnet_attention(q, k, v, segment_lengths=[8], dilations=[2])
    twice = longnet_attention(q, k, v, segment_lengths=[8, 8], dilations=[2, 2])

    torch.testing.assert_close(twice, once)


def test_heads_together_select_every_row() -> None:
    q, k, v = random_inputs(32)

    output = longnet_attention(q, k, v, segment_lengths=[16], dilations=[4])

    is_selected = (output != 0).all(-1)
    assert is_selected.long().sum(1).eq(1).all()
    assert is_selected[0].long().argmax(0).tolist() == [0, 1, 2, 3] * 8


def test_grouped_heads_and_inputs_without_heads() -> None:
    options = dict(segment_lengths=[4, 16], dilations=[1, 2])
    q, k, v = random_inputs(21, num_kv_heads=2)
    expected = longnet_attention(q, *(x.repeat_interleave(2, dim=1) for x in (k, v)), **options)
    torch.testing.assert_close(longnet_attention(q, k, v, **options), expected)

    single = [x[:, :1] for x in (q, k, v)]
    expected_single = longnet_attention(*single, **options)
    torch.testing.assert_close(longnet_attention(*(x[:, 0] for x in single), **options), expected_single[:, 0])
    torch.testing.assert_close(longnet_attention(*(x[1, 0] for x in single), **options), expected_single[1, 0])


def test_gradients_include_the_mixture_weights() -> None:
    q, k, v = (torch.randn(1, 2, 5, 2, dtype=torch.float64, requires_grad=True) for _ in range(3))

    assert gradcheck(
        lambda q, k, v: longnet_attention(q, k, v, segment_lengths=[2, 4], dilations=[1, 2], causal=True), (q, k, v)
    )


def test_empty_inputs_return_empty_outputs() -> None:
    q, k, v = random_inputs(0)
    assert longnet_attention(q, k, v, segment_lengths=[4], dilations=[1]).shape == (2, HEADS, 0, 5)


def test_invalid_arguments_raise() -> None:
    q, k, v = random_inputs(6)
    with pytest.raises(ArgumentError, match="the same length of at least 1; got 2 and 1"):
        longnet_attention(q, k, v, segment_lengths=[2, 4], dilations=[1])
    with pytest.raises(ArgumentError, match="the same length of at least 1; got 0 and 0"):
        longnet_attention(q, k, v, segment_lengths=[], dilations=[])
    with pytest.raises(ArgumentError, match="must be at least 1; got the minima 4 and 0"):
        longnet_attention(q, k, v, segment_lengths=[4, 8], dilations=[1, 0])
    with pytest.raises(
        ArgumentError, match=r"the same batch and the same length; got q=\(2, 4, 6, 6\), k=\(2, 4, 5, 6\)"
    ):
        longnet_attention(q, k[..., :5, :], v, segment_lengths=[4], dilations=[1])
    with pytest.raises(ArgumentError, match="it must divide the number of heads of q; got 3, 3 and 4"):
        longnet_attention(q, k[:, :3], v[:, :3], segment_lengths=[4], dilations=[1])
    with pytest.raises(ArgumentError, match="it must divide the number of heads of q; got 4, 2 and 4"):
        longnet_attention(q, k, v[:, :2], segment_lengths=[4], dilations=[1])
