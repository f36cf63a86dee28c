"""mask_mod and score_mod functions as users write them for FlexAttention, and functions that cannot be traced.

Every builder returns a `FlexMod`: a function that torch and regard run unchanged, and the floating-point tensors that
it captures, which need gradients. The functions use the usual idioms of torch: closures, factories, captured tensors,
methods and functions. Tensors are made for BATCH sequences, HEADS heads and positions up to QUERIES and KEYS.
"""

import functools
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import and_masks, create_block_mask, noop_mask, or_masks

from tests.random_tensors import normal

BATCH, HEADS, QUERIES, KEYS = 2, 4, 288, 288  # several tiles in each direction, some of them empty or full
GRID = 9, 32  # the same positions as an image, row by row


@dataclass(frozen=True)
class FlexMod:
    """A mask_mod or score_mod, and the tensors that it learns."""

    function: Callable[..., Any]
    learned: tuple[Tensor, ...] = ()


Builder = Callable[[], FlexMod]
MASKS: dict[str, Builder] = {}
SCORES: dict[str, Builder] = {}


def mask_mod(builder: Builder) -> Builder:
    MASKS[builder.__name__] = builder
    return builder


def score_mod(builder: Builder) -> Builder:
    SCORES[builder.__name__] = builder
    return builder


def _learned(*shape: int, seed: int = 0) -> Tensor:
    return normal(*shape, seed=seed).requires_grad_()


def _integers(low: int, high: int, *shape: int, seed: int = 0) -> Tensor:
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(seed))


def _documents(*lengths: int) -> Tensor:
    return torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))


# Masks: along the sequence


@mask_mod
def causal() -> FlexMod:
    def causal_mask(b, h, q_idx, kv_idx):
        return q_idx >= kv_idx

    return FlexMod(causal_mask)


@mask_mod
def causal_as_a_lambda() -> FlexMod:
    return FlexMod(lambda b, h, i, j: j <= i)


@mask_mod
def sliding_window() -> FlexMod:
    window = 40

    def sliding_window_causal(b, h, q_idx, kv_idx):
        not_ahead = q_idx >= kv_idx
        near = q_idx - kv_idx <= window
        return not_ahead & near

    return FlexMod(sliding_window_causal)


@mask_mod
def two_sided_window_by_abs() -> FlexMod:
    return FlexMod(lambda b, h, i, j: abs(i - j) < 25)


@mask_mod
def window_per_head() -> FlexMod:
    reach = torch.tensor([3, 17, 64, 200])
    return FlexMod(lambda b, h, i, j: (i - j < reach[h]) & (i >= j))


@mask_mod
def prefix() -> FlexMod:
    prefix_length = 50

    def prefix_lm(b, h, q_idx, kv_idx):
        return (kv_idx < prefix_length) | (q_idx >= kv_idx)

    return FlexMod(prefix_lm)


@mask_mod
def prefix_per_sequence() -> FlexMod:
    prefixes = torch.tensor([7, 530])

    def prefix_lm(b, h, q_idx, kv_idx):
        in_prefix = kv_idx < prefixes[b]
        return in_prefix | (q_idx >= kv_idx)

    return FlexMod(prefix_lm)


@mask_mod
def dilated() -> FlexMod:
    def dilated_window(b, h, q_idx, kv_idx):
        gap = torch.abs(q_idx - kv_idx)
        return (gap <= 60) & (gap % 4 == 0)

    return FlexMod(dilated_window)


@mask_mod
def every_third_key_back() -> FlexMod:
    # remainders of negative numbers: Python and torch agree, C differs
    return FlexMod(lambda b, h, i, j: (j - i) % 3 == 1)


@mask_mod
def strided_of_the_sparse_transformer() -> FlexMod:
    stride = 17

    def strided(b, h, q_idx, kv_idx):
        local = q_idx - kv_idx < stride
        summary = (q_idx - kv_idx) % stride == 0
        return (q_idx >= kv_idx) & (local | summary)

    return FlexMod(strided)


@mask_mod
def chunks() -> FlexMod:
    return FlexMod(lambda b, h, i, j: (i // 48 == j // 48) & (i >= j))


@mask_mod
def chunks_by_torch_div() -> FlexMod:
    def same_chunk(b, h, q_idx, kv_idx):
        query_chunk = torch.div(q_idx, 48, rounding_mode="floor")
        key_chunk = torch.div(kv_idx, 48, rounding_mode="floor")
        return torch.eq(query_chunk, key_chunk)

    return FlexMod(same_chunk)


@mask_mod
def global_plus_local() -> FlexMod:
    is_global = torch.zeros(KEYS, dtype=torch.bool)
    is_global[[0, 100, 287]] = True

    def longformer(b, h, q_idx, kv_idx):
        near = torch.abs(q_idx - kv_idx) <= 12
        return near | is_global[kv_idx] | is_global[q_idx]

    return FlexMod(longformer)


@mask_mod
def decoding_at_an_offset_in_a_tensor() -> FlexMod:
    position = torch.tensor(31)

    def shift(inner, offset):
        def shifted(b, h, q_idx, kv_idx):
            return inner(b, h, q_idx + offset, kv_idx)

        return shifted

    return FlexMod(shift(lambda b, h, i, j: i >= j, position))


@mask_mod
def attention_sink_and_recent_keys() -> FlexMod:
    return FlexMod(lambda b, h, i, j: ((j < 4) | (i - j < 32)) & (j <= i))


@mask_mod
def some_heads_are_causal() -> FlexMod:
    return FlexMod(lambda b, h, i, j: (h >= 2) | (i >= j))


@mask_mod
def fully_masked_first_queries() -> FlexMod:
    # rows without a visible key: torch and regard return 0
    return FlexMod(lambda b, h, i, j: (i >= 10) & (i - 10 >= j))


# Masks: with captured tensors


@mask_mod
def documents() -> FlexMod:
    doc = _documents(31, 1, 190, 34, 32)
    return FlexMod(lambda b, h, i, j: doc[i] == doc[j])


@mask_mod
def documents_per_sequence() -> FlexMod:
    doc = torch.stack([_documents(160, 128), _documents(5, 150, 40, 93)])

    def document_causal(b, h, q_idx, kv_idx):
        return (doc[b, q_idx] == doc[b, kv_idx]) & (q_idx >= kv_idx)

    return FlexMod(document_causal)


@mask_mod
def documents_with_chained_indexing() -> FlexMod:
    doc = torch.stack([_documents(160, 128), _documents(5, 150, 40, 93)]).int()
    return FlexMod(lambda b, h, i, j: doc[b][i] == doc[b][j])


@mask_mod
def any_mask_inside_each_document() -> FlexMod:
    lengths = [40, 3, 185, 60]
    doc = _documents(*lengths)
    first = torch.tensor([0, *np.cumsum(lengths)[:-1].tolist()])

    def inside(inner):
        def wrapped(b, h, q_idx, kv_idx):
            same = doc[q_idx] == doc[kv_idx]
            q_local = q_idx - first[doc[q_idx]]
            kv_local = kv_idx - first[doc[kv_idx]]
            return torch.where(same, inner(b, h, q_local, kv_local), False)

        return wrapped

    return FlexMod(inside(lambda b, h, i, j: (i >= j) & ((i - j < 20) | (j < 2))))


@mask_mod
def lengths_by_batch() -> FlexMod:
    seq_len = torch.tensor([288, 97])

    def padding(b, h, q_idx, kv_idx):
        return kv_idx < seq_len[b]

    return FlexMod(padding)


@mask_mod
def a_batch_element_of_length_zero() -> FlexMod:
    seq_len = torch.tensor([0, 250])
    return FlexMod(lambda b, h, i, j: (j < seq_len[b]) & (i < seq_len[b]))


@mask_mod
def valid_keys_as_a_boolean_table() -> FlexMod:
    valid = _integers(0, 3, BATCH, KEYS) > 0
    return FlexMod(lambda b, h, i, j: valid[b, j] & (i >= j))


@mask_mod
def boolean_matrix() -> FlexMod:
    table = normal(QUERIES, KEYS) > 0.3
    return FlexMod(lambda b, h, i, j: table[i, j])


@mask_mod
def boolean_matrix_per_head() -> FlexMod:
    table = (normal(HEADS, QUERIES, KEYS) > 0.3).tril()

    def lookup(b, h, q_idx, kv_idx):
        return table[h][q_idx][kv_idx]

    return FlexMod(lookup)


@mask_mod
def tree_of_draft_tokens() -> FlexMod:
    # speculative decoding: a token attends to its ancestors, which are in a tensor, and to the prefix
    nodes, trunk = 32, 256
    ancestor = torch.eye(nodes, dtype=torch.bool)
    for node in range(1, nodes):
        ancestor[node] |= ancestor[(node - 1) // 2]

    def tree(b, h, q_idx, kv_idx):
        drafting = (q_idx >= trunk) & (kv_idx >= trunk)
        query_chunk = torch.clamp(q_idx - trunk, min=0)
        key_chunk = (kv_idx - trunk).clamp(min=0)
        return torch.where(drafting, ancestor[query_chunk, key_chunk], q_idx >= kv_idx)

    return FlexMod(tree)


@mask_mod
def blocks_selected_by_a_table() -> FlexMod:
    chosen = _integers(0, 4, HEADS, KEYS // 32, KEYS // 32) == 0
    return FlexMod(lambda b, h, i, j: chosen[h, i // 32, j // 32])


# Masks: in two dimensions


@mask_mod
def neighborhood_in_an_image() -> FlexMod:
    width, radius = GRID[1], 3

    def neighbors(b, h, q_idx, kv_idx):
        q_row, q_col = q_idx // width, q_idx % width
        kv_row, kv_col = kv_idx // width, kv_idx % width
        return ((q_row - kv_row).abs() <= radius) & ((q_col - kv_col).abs() <= radius)

    return FlexMod(neighbors)


@mask_mod
def neighborhood_inside_the_image() -> FlexMod:
    (height, width), kernel = GRID, 5

    def row_and_column(index):
        return index // width, index % width

    def natten(b, h, q_idx, kv_idx):
        q_y, q_x = row_and_column(q_idx)
        kv_y, kv_x = row_and_column(kv_idx)
        center_y = q_y.clamp(kernel // 2, height - 1 - kernel // 2)
        center_x = q_x.clamp(kernel // 2, width - 1 - kernel // 2)
        return ((center_y - kv_y).abs() <= kernel // 2) & ((center_x - kv_x).abs() <= kernel // 2)

    return FlexMod(natten)


@mask_mod
def same_row_or_same_column() -> FlexMod:
    width = GRID[1]
    return FlexMod(lambda b, h, i, j: (i // width == j // width) | (i % width == j % width))


# Masks: composed by torch


@mask_mod
def torch_and_masks() -> FlexMod:
    doc = _documents(272, 272)
    return FlexMod(
        and_masks(
            lambda b, h, i, j: i >= j,
            lambda b, h, i, j: doc[i] == doc[j],
            lambda b, h, i, j: i - j < 90,
        )
    )


@mask_mod
def torch_or_masks() -> FlexMod:
    return FlexMod(or_masks(lambda b, h, i, j: j < 10, lambda b, h, i, j: i == j))


@mask_mod
def torch_and_of_or_masks() -> FlexMod:
    near = or_masks(lambda b, h, i, j: (i - j).abs() < 5, lambda b, h, i, j: j % 50 == 0)
    return FlexMod(and_masks(near, lambda b, h, i, j: i >= j))


@mask_mod
def torch_noop_mask() -> FlexMod:
    return FlexMod(noop_mask)


@mask_mod
def torch_and_masks_with_noop() -> FlexMod:
    return FlexMod(and_masks(noop_mask, lambda b, h, i, j: i >= j))


@mask_mod
def mask_mod_of_a_block_mask() -> FlexMod:
    block_mask = create_block_mask(lambda b, h, i, j: (i >= j) & (i - j < 70), None, None, QUERIES, KEYS, device="cpu")
    return FlexMod(block_mask.mask_mod)


@mask_mod
def where() -> FlexMod:
    def bidirectional_in_even_heads(b, h, q_idx, kv_idx):
        return torch.where(h % 2 == 0, (q_idx - kv_idx).abs() < 30, q_idx >= kv_idx)

    return FlexMod(bidirectional_in_even_heads)


@mask_mod
def clamp() -> FlexMod:
    return FlexMod(lambda b, h, i, j: torch.clamp(i - 20, min=0, max=500) <= j)


@mask_mod
def constants_in_tensors() -> FlexMod:
    def recent(b, h, q_idx, kv_idx):
        window = torch.tensor(33)
        return (q_idx - kv_idx <= window) & (torch.tensor(0) <= q_idx - kv_idx)

    return FlexMod(recent)


@mask_mod
def logical_functions() -> FlexMod:
    def combined(b, h, q_idx, kv_idx):
        future = torch.lt(q_idx, kv_idx)
        own = torch.logical_or(torch.eq(q_idx % 7, kv_idx % 7), kv_idx.eq(0))
        return torch.logical_and(torch.logical_not(future), own)

    return FlexMod(combined)


@mask_mod
def not_and_exclusive_or() -> FlexMod:
    return FlexMod(lambda b, h, i, j: ~(j > i) & ((i % 2 == 0) ^ (j % 2 == 0)))


@mask_mod
def minimum_and_maximum() -> FlexMod:
    def near_the_front_one(b, h, q_idx, kv_idx):
        return torch.maximum(q_idx, kv_idx) - torch.minimum(q_idx, kv_idx) < 9

    return FlexMod(near_the_front_one)


@mask_mod
def mask_mod_of_a_module_with_buffers() -> FlexMod:
    class Windows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("reach", torch.tensor([10, 20, 30, 40]))

        def mask_mod(self):
            return lambda b, h, q_idx, kv_idx: (q_idx - kv_idx).abs() <= self.reach[h]

    return FlexMod(Windows().mask_mod())


@mask_mod
def a_partial_function() -> FlexMod:
    def window(size, b, h, q_idx, kv_idx):
        return (q_idx - kv_idx <= size) & (q_idx >= kv_idx)

    return FlexMod(functools.partial(window, 21))


@mask_mod
def bits_shifted() -> FlexMod:
    # powers of two apart, as in butterfly patterns
    return FlexMod(lambda b, h, i, j: ((i >> 4) == (j >> 4)) | ((i & 15) == (j & 15)))


@mask_mod
def one_shifted_by_a_position() -> FlexMod:
    return FlexMod(lambda b, h, i, j: (1 << (i % 5)) > j % 7)


@mask_mod
def closure_with_an_empty_cell() -> FlexMod:
    causal = True
    if not causal:
        table = normal(KEYS) > 0
    return FlexMod(lambda b, h, i, j: i >= j if causal else table[j])


# Scores: arithmetic on the score and the positions


@score_mod
def unchanged() -> FlexMod:
    return FlexMod(lambda score, b, h, q_idx, kv_idx: score)


@score_mod
def relative_distance() -> FlexMod:
    return FlexMod(lambda score, b, h, q_idx, kv_idx: score + (q_idx - kv_idx) / 100)


@score_mod
def alibi_with_slopes_in_a_table() -> FlexMod:
    slopes = torch.tensor([2.0 ** (-2 * (head + 1)) for head in range(HEADS)], dtype=torch.float64)
    slopes.requires_grad_()

    def alibi(score, b, h, q_idx, kv_idx):
        return score + slopes[h] * (kv_idx - q_idx)

    return FlexMod(alibi, (slopes,))


@score_mod
def alibi_with_slopes_computed_from_the_head() -> FlexMod:
    def alibi(score, b, h, q_idx, kv_idx):
        slope = torch.exp2(-((h + 1) * 8.0 / HEADS))
        return score - slope * torch.abs(q_idx - kv_idx)

    return FlexMod(alibi)


@score_mod
def softcap() -> FlexMod:
    cap = 1.5

    def soft_cap(score, b, h, q_idx, kv_idx):
        score = score / cap
        score = torch.tanh(score)
        return score * cap

    return FlexMod(soft_cap)


@score_mod
def softcap_in_place_then_causal() -> FlexMod:
    def soft_cap(score, b, h, q_idx, kv_idx):
        score /= 2.0
        score = score.tanh()
        score *= 2.0
        return torch.where(q_idx >= kv_idx, score, -float("inf"))

    return FlexMod(soft_cap)


@score_mod
def minus_infinity_for_later_keys() -> FlexMod:
    return FlexMod(lambda score, b, h, q_idx, kv_idx: torch.where(q_idx >= kv_idx, score, float("-inf")))


@score_mod
def minus_infinity_by_full_like() -> FlexMod:
    def windowed(score, b, h, q_idx, kv_idx):
        hidden = torch.full_like(score, -math.inf)
        return torch.where((q_idx - kv_idx).abs() < 30, score, hidden)

    return FlexMod(windowed)


@score_mod
def minus_infinity_from_a_table_of_valid_keys() -> FlexMod:
    valid = _integers(0, 3, BATCH, KEYS, seed=4) > 0
    return FlexMod(lambda score, b, h, q_idx, kv_idx: torch.where(valid[b, kv_idx], score, -torch.inf))


@score_mod
def checkerboard() -> FlexMod:
    def checkerboard(score, b, h, q_idx, kv_idx):
        score = torch.where((kv_idx - q_idx).abs() % 2 == 1, score * 0.5, score)
        return torch.where(torch.eq(q_idx % 3, 0), score * 2.0, score)

    return FlexMod(checkerboard)


@score_mod
def clipped_score() -> FlexMod:
    return FlexMod(lambda score, b, h, q_idx, kv_idx: 1.1 * torch.clamp(score, -0.5, 0.75))


@score_mod
def score_times_distance() -> FlexMod:
    return FlexMod(lambda score, b, h, q_idx, kv_idx: score * (q_idx - kv_idx) * 0.01)


@score_mod
def softplus_of_a_large_score() -> FlexMod:
    # beyond 88 the exponential overflows in float32, and softplus is linear
    return FlexMod(lambda score, b, h, q_idx, kv_idx: nn.functional.softplus(score * 50) / 50)


@score_mod
def zeros_like_outside_a_window() -> FlexMod:
    def flat_far_away(score, b, h, q_idx, kv_idx):
        return torch.where(q_idx - kv_idx < 40, score, torch.zeros_like(score))

    return FlexMod(flat_far_away)


# Scores: with learned tensors


@score_mod
def relative_bias_table() -> FlexMod:
    bias = _learned(HEADS, 2 * KEYS - 1)

    def relative_bias(score, b, h, q_idx, kv_idx):
        return score + bias[h, q_idx - kv_idx + KEYS - 1]

    return FlexMod(relative_bias, (bias,))


@score_mod
def relative_bias_clipped_to_a_short_table() -> FlexMod:
    reach = 16
    bias = _learned(2 * reach + 1, HEADS)

    def relative_bias(score, b, h, q_idx, kv_idx):
        distance = torch.clamp(q_idx - kv_idx, -reach, reach) + reach
        return score + bias[distance, h]

    return FlexMod(relative_bias, (bias,))


@score_mod
def table_with_negative_indices() -> FlexMod:
    # the index is negative for later keys, and torch counts negative indices from the end
    bias = _learned(HEADS, 2 * KEYS)
    return FlexMod(lambda score, b, h, i, j: score + bias[h, i - j], (bias,))


@score_mod
def t5_buckets() -> FlexMod:
    buckets, exact, reach = 32, 8, 128
    table = _learned(buckets, HEADS)

    def bucket(relative):
        side = torch.where(relative > 0, buckets // 2, 0)
        distance = torch.abs(relative)
        grown = torch.log(distance.float() / exact) / math.log(reach / exact) * (buckets // 2 - exact)
        far = torch.clamp(exact + grown.to(torch.long), max=buckets // 2 - 1)
        return side + torch.where(distance < exact, distance, far)

    def t5(score, b, h, q_idx, kv_idx):
        return score + table[bucket(kv_idx - q_idx), h]

    return FlexMod(t5, (table,))


@score_mod
def t5_buckets_of_a_decoder_with_minimum() -> FlexMod:
    buckets, reach = 16, 64
    table = _learned(HEADS, buckets)

    def t5(score, b, h, q_idx, kv_idx):
        distance = torch.maximum(q_idx - kv_idx, torch.zeros_like(q_idx))
        exact = buckets // 2
        grown = (
            exact + (torch.log(distance.to(torch.float32) / exact) / math.log(reach / exact) * (buckets - exact)).long()
        )
        grown = torch.minimum(grown, torch.full_like(grown, buckets - 1))
        return score + table[h, torch.where(distance < exact, distance, grown)]

    return FlexMod(t5, (table,))


@score_mod
def full_bias() -> FlexMod:
    bias = _learned(BATCH, HEADS, QUERIES, KEYS)
    return FlexMod(lambda score, b, h, i, j: score + bias[b, h, i, j], (bias,))


@score_mod
def bias_per_key_and_sequence() -> FlexMod:
    bias = _learned(BATCH, KEYS)
    return FlexMod(lambda score, b, h, i, j: score + bias[b][j], (bias,))


@score_mod
def temperature_and_shift_per_head() -> FlexMod:
    temperature, shift = _learned(HEADS, seed=1), _learned(HEADS, seed=2)

    def affine(score, b, h, q_idx, kv_idx):
        return score * temperature[h] + shift[h] * (q_idx == kv_idx)

    return FlexMod(affine, (temperature, shift))


@score_mod
def a_learned_scalar() -> FlexMod:
    strength = nn.Parameter(torch.tensor(0.7, dtype=torch.float64))
    return FlexMod(lambda score, b, h, i, j: score - strength * (i - j).abs() / 64, (strength,))


@score_mod
def kerple_logarithm() -> FlexMod:
    size = normal(HEADS, seed=1).abs().requires_grad_()
    rate = normal(HEADS, seed=2).abs().requires_grad_()

    def kerple(score, b, h, q_idx, kv_idx):
        return score - size[h] * torch.log(1 + rate[h] * torch.abs(q_idx - kv_idx))

    return FlexMod(kerple, (size, rate))


@score_mod
def decay_by_cumulative_gates() -> FlexMod:
    # cumulative gates along the sequence, as in the forgetting transformer
    gates = normal(BATCH, HEADS, KEYS).abs().mul(-0.1).cumsum(-1).requires_grad_()

    def forget(score, b, h, q_idx, kv_idx):
        return torch.where(q_idx >= kv_idx, score + gates[b, h, q_idx] - gates[b, h, kv_idx], -float("inf"))

    return FlexMod(forget, (gates,))


@score_mod
def image_windows_with_a_bias_per_offset() -> FlexMod:
    (height, width) = GRID
    table = _learned(HEADS, (2 * height - 1) * (2 * width - 1))

    def swin(score, b, h, q_idx, kv_idx):
        down = q_idx // width - kv_idx // width + height - 1
        across = q_idx % width - kv_idx % width + width - 1
        return score + table[h, down * (2 * width - 1) + across]

    return FlexMod(swin, (table,))


@score_mod
def graph_with_a_bias_per_distance() -> FlexMod:
    distance = _integers(0, 6, BATCH, QUERIES, KEYS)
    embedding = _learned(6, HEADS)

    def graphormer(score, b, h, q_idx, kv_idx):
        return score + embedding[distance[b, q_idx, kv_idx], h]

    return FlexMod(graphormer, (embedding,))


@score_mod
def table_used_twice() -> FlexMod:
    weight = _learned(KEYS)
    return FlexMod(lambda score, b, h, i, j: score + weight[i] * weight[j] + weight[0], (weight,))


@score_mod
def a_table_that_scales_the_score() -> FlexMod:
    gain = _learned(HEADS, KEYS)

    def gated(score, b, h, q_idx, kv_idx):
        return score * torch.exp(gain[h, kv_idx] / 4) + torch.tanh(gain[h, q_idx])

    return FlexMod(gated, (gain,))


# Functions that cannot be traced. The faulty line ends in "# here"; without such a line, the whole function is faulty.

UNTRACEABLE_MASKS: dict[str, Callable[..., Any]] = {}
UNTRACEABLE_SCORES: dict[str, Callable[..., Any]] = {}


def _untraceable_mask(function: Callable[..., Any]) -> Callable[..., Any]:
    UNTRACEABLE_MASKS[function.__name__] = function
    return function


def _untraceable_score(function: Callable[..., Any]) -> Callable[..., Any]:
    UNTRACEABLE_SCORES[function.__name__] = function
    return function


@_untraceable_mask
def an_if_on_positions(b, h, i, j):
    if i >= j:  # here
        return i - j < 8
    return False


@_untraceable_mask
def a_conditional_expression(b, h, i, j):
    return i >= j if h == 0 else i <= j  # here


@_untraceable_mask
def a_chained_comparison(b, h, i, j):
    return 0 <= i - j < 8  # here


@_untraceable_mask
def the_word_and(b, h, i, j):
    near = i - j < 8
    return i >= j and near  # here


@_untraceable_mask
def the_word_or(b, h, i, j):
    return j < 4 or i == j  # here


@_untraceable_mask
def the_word_not(b, h, i, j):
    return not i < j  # here


@_untraceable_mask
def the_word_in(b, h, i, j):
    return j in (0, 1, 2)  # here


@_untraceable_mask
def builtin_min(b, h, i, j):
    first = min(i, j)  # here
    return first < 8


@_untraceable_mask
def builtin_max(b, h, i, j):
    return max(i - j, 0) < 8  # here


_ARRAY = np.arange(KEYS)


@_untraceable_mask
def a_numpy_array_indexed_by_a_position(b, h, i, j):
    return _ARRAY[i] >= j  # here


_LIST = list(range(KEYS))


@_untraceable_mask
def a_list_indexed_by_a_position(b, h, i, j):
    return _LIST[i] >= j  # here


_NAMES = {0: 1, 1: 2}


@_untraceable_mask
def a_dictionary_indexed_by_a_position(b, h, i, j):
    reach = _NAMES[b]  # here
    return i - j < reach


@_untraceable_mask
def math_of_a_position(b, h, i, j):
    return math.log(i + 1) > j  # here


@_untraceable_mask
def int_of_a_position(b, h, i, j):
    return int(i) >= j  # here


@_untraceable_mask
def float_of_a_position(b, h, i, j):
    return float(i) >= j  # here


@_untraceable_mask
def item_of_a_position(b, h, i, j):
    return i.item() >= j  # here


_TABLE = torch.arange(KEYS)
_ROWS = torch.arange(100.0).reshape(100, 1).expand(100, KEYS)


@_untraceable_mask
def item_of_a_lookup(b, h, i, j):
    start = _TABLE[i]
    return start.item() >= j  # here


@_untraceable_mask
def a_loop_up_to_a_position(b, h, i, j):
    total = 0
    for step in range(i):  # here
        total = total + step
    return total >= j


@_untraceable_mask
def a_new_tensor_made_of_a_position(b, h, i, j):
    return torch.tensor(i) >= j  # here


@_untraceable_mask
def a_new_tensor_made_of_two_positions(b, h, i, j):
    pair = torch.tensor([i, j])  # here
    return pair[0] >= pair[1]


@_untraceable_mask
def a_table_sliced_at_a_position(b, h, i, j):
    return _TABLE[:i].sum() > j  # here


@_untraceable_mask
def a_float_index(b, h, i, j):
    return _TABLE[i / 2] > j  # here


@_untraceable_mask
def too_many_indices(b, h, i, j):
    return _TABLE[i, j] > 0  # here


@_untraceable_mask
def a_comparison_with_a_full_table(b, h, i, j):
    return j < _TABLE  # here


@_untraceable_mask
def a_position_stored_in_a_table(b, h, i, j):
    table = torch.zeros(KEYS)
    table[i] = 1.0  # here
    return table[j] > 0


@_untraceable_mask
def an_unknown_attribute(b, h, i, j):
    return i.is_causal_with(j)  # here


@_untraceable_mask
def a_fault_in_an_inner_function(b, h, i, j):
    def inner(q_idx, kv_idx):
        if q_idx > kv_idx:  # here
            return kv_idx > 3
        return False

    return inner(i, j)


@_untraceable_mask
def random_numbers(b, h, i, j):
    return torch.rand(()) * 10 > i - j


@_untraceable_mask
def random_numbers_already_compared(b, h, i, j):
    # two traces agree half of the time, so comparing two traces is not enough
    return (torch.rand(()) < 0.5) | (i >= j)


@_untraceable_mask
def random_numbers_of_python_and_numpy(b, h, i, j):
    return np.random.rand() * 10 > i - j


@_untraceable_mask
def nothing_returned(b, h, i, j):
    i >= j  # noqa: B015


@_untraceable_mask
def a_string_returned(b, h, i, j):
    return "causal"


@_untraceable_score
def an_if_on_the_score(score, b, h, i, j):
    if score > 0:  # here
        return score
    return score * 0.5


@_untraceable_score
def math_of_the_score(score, b, h, i, j):
    return math.tanh(score)  # here


@_untraceable_score
def noise_like_the_score(score, b, h, i, j):
    return score + torch.randn_like(score)


@_untraceable_score
def dropout_in_the_score(score, b, h, i, j):
    return nn.functional.dropout(score, 0.5)


@_untraceable_score
def a_random_row_of_a_table(score, b, h, i, j):
    row = _ROWS[random.randrange(100)]
    return score + row[j]


@_untraceable_score
def a_sum_over_the_row(score, b, h, i, j):
    return score - score.sum(dim=-1)  # here


@_untraceable_score
def softmax_of_the_score(score, b, h, i, j):
    return torch.softmax(score, dim=-1)  # here


@_untraceable_score
def the_score_as_an_index(score, b, h, i, j):
    return score + _TABLE[score]  # here


@_untraceable_score
def a_numpy_function_of_the_score(score, b, h, i, j):
    return np.tanh(score)  # here
