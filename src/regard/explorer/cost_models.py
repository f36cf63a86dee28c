"""Cost models of mechanisms: FLOPs and memory of one layer's heads in closed form, and a call that can be timed.

n is the sequence length, d the head dimension and H the number of heads. A multiplication and an addition count as two
FLOPs. Memory excludes inputs and output and is counted in floats of 4 bytes. The formulas are those of `regard.cost`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from regard import cost, feature_map, mask, normalizer, score
from regard.attention import attention
from regard.errors import ArgumentError
from regard.mechanisms.linear import linear_attention
from regard.mechanisms.linformer import linformer_attention
from regard.mechanisms.nystrom import nystrom_attention

WINDOW_SIZE, NUM_LANDMARKS, LINFORMER_RANK, ADDITIVE_HIDDEN_DIM = 256, 64, 256, 64


@dataclass(frozen=True, eq=False)
class CostModel:
    """The cost of a mechanism: `flops` and `num_floats` are functions of (n, d, H), and `formula` prints the FLOPs."""

    name: str
    description: str
    formula: str
    flops: Callable[[int, int, int], int]
    num_floats: Callable[[int, int, int], int]
    call: Callable[[Tensor, Tensor, Tensor], Any]
    max_timed_length: int = 131_072


def _attention_flops(n: int, d: int, num_heads: int, num_pairs: int | None = None) -> int:
    return cost.attention(n, n, d, num_heads=num_heads, pairs=num_pairs).total


def _additive_flops(n: int, d: int, num_heads: int) -> int:
    scores = cost.additive_scores(n, n, ADDITIVE_HIDDEN_DIM, num_heads=num_heads)
    return scores + 2 * num_heads * n * d * (n + 2 * ADDITIVE_HIDDEN_DIM)


def _window_pairs(n: int) -> int:
    """Return the number of pairs of a causal sliding window: each query attends to its last WINDOW_SIZE keys."""
    return cost.causal_pairs(min(n, WINDOW_SIZE), min(n, WINDOW_SIZE)) + max(n - WINDOW_SIZE, 0) * WINDOW_SIZE


def _row_statistic_floats(n: int, d: int, num_heads: int) -> int:
    return num_heads * n


def _dense_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Compute softmax attention with all weights in memory."""
    output: Tensor = torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, dim=-1) @ v
    return output


def _additive(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    w = torch.eye(q.shape[-1], ADDITIVE_HIDDEN_DIM)
    return attention(q, k, v, score=score.additive(w, w, torch.ones(ADDITIVE_HIDDEN_DIM) / ADDITIVE_HIDDEN_DIM))


def _linformer(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return linformer_attention(q, k, v, torch.full((LINFORMER_RANK, k.shape[-2]), 1.0 / k.shape[-2]))


def _performer(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return linear_attention(q, k, v, feature_map=feature_map.favor(q.shape[-1], q.shape[-1]))


COST_MODELS = (
    CostModel("dense softmax", "softmax over all pairs, with all weights in memory", "4 n² d H", _attention_flops,
           lambda n, d, heads: 2 * heads * n * n, _dense_attention, 16_384),
    CostModel("softmax", "softmax over all pairs, in tiles and linear memory", "4 n² d H", _attention_flops,
           _row_statistic_floats, attention),
    CostModel("causal", "softmax over all earlier tokens, in tiles", "2 n (n + 1) d H",
           lambda n, d, heads: _attention_flops(n, d, heads, cost.causal_pairs(n, n)), _row_statistic_floats,
           partial(attention, mask=mask.causal())),
    CostModel(f"sliding window of {WINDOW_SIZE}", f"softmax over the last {WINDOW_SIZE} tokens",
           f"4 n {WINDOW_SIZE} d H",
           lambda n, d, heads: _attention_flops(n, d, heads, _window_pairs(n)), _row_statistic_floats,
           partial(attention, mask=mask.causal() & mask.sliding_window(WINDOW_SIZE))),
    CostModel("additive",
           f"u·tanh(W q + W k) with {ADDITIVE_HIDDEN_DIM} hidden units",
           f"(3 · {ADDITIVE_HIDDEN_DIM} + 2 d) n² H + 4 n d {ADDITIVE_HIDDEN_DIM} H",
           _additive_flops, _row_statistic_floats, _additive, 16_384),
    CostModel("sparsemax", "sparse weights; the threshold of each row is computed first", "6 n² d H",
           lambda n, d, heads: _attention_flops(n, d, heads) * 3 // 2, _row_statistic_floats,
           partial(attention, normalizer=normalizer.sparsemax()), 32_768),
    CostModel("linear", "a feature map of queries and keys, and a d x d state", "4 n d² H",
           lambda n, d, heads: 4 * n * d * d * heads, lambda n, d, heads: heads * d * (d + 1), linear_attention),
    CostModel("Performer", "d random features, and a d x d state", "8 n d² H",
           lambda n, d, heads: 8 * n * d * d * heads, lambda n, d, heads: heads * (2 * n * d + d * d), _performer),
    CostModel("Linformer", f"keys and values projected to length {LINFORMER_RANK}", f"8 n {LINFORMER_RANK} d H",
           lambda n, d, heads: 8 * n * LINFORMER_RANK * d * heads,
           lambda n, d, heads: heads * (2 * LINFORMER_RANK * d + n) + LINFORMER_RANK * n, _linformer),
    CostModel("Nyström", f"softmax through {NUM_LANDMARKS} landmarks",
           f"8 n {NUM_LANDMARKS} d H + 48 · {NUM_LANDMARKS}³ H",
           lambda n, d, heads: heads * (8 * n * NUM_LANDMARKS * d + 48 * NUM_LANDMARKS**3),
           lambda n, d, heads: heads * (n * d + NUM_LANDMARKS**2),
           partial(nystrom_attention, num_landmarks=NUM_LANDMARKS)),
)  # fmt: skip


def get_cost_model(name: str) -> CostModel:
    for cost_model in COST_MODELS:
        if cost_model.name == name:
            return cost_model
    names = ", ".join(cost_model.name for cost_model in COST_MODELS)
    raise ArgumentError(f"a mechanism must be one of {names}; got {name[:40]!r}.")
