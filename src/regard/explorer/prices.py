"""Mechanisms with a price: FLOPs and memory of one layer's heads in closed form, and a call that can be timed.

d is the width of a head, H the number of heads; FLOPs count a product and a sum as two. Memory is what is held beyond
inputs and output, in numbers of 4 bytes. The formulas are those of `regard.cost`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from regard import cost
from regard.attention import attention
from regard.errors import SpecError
from regard.mechanism.linear import linear_attention
from regard.mechanism.linformer import linformer
from regard.mechanism.nystrom import nystrom
from regard.spec import feature, mask, score, weigh

WINDOW, LANDMARKS, PROJECTED, HIDDEN = 256, 64, 256, 64  # sizes of those that have one


@dataclass(frozen=True, eq=False)
class Priced:
    """A mechanism: `flops` and `numbers` are functions of (n, d, H)."""

    name: str
    what: str
    formula: str  # of the FLOPs
    flops: Callable[[int, int, int], int]
    numbers: Callable[[int, int, int], int]
    call: Callable[[Tensor, Tensor, Tensor], Any]
    longest: int = 131_072  # that is timed


def _pairs(n: int, d: int, heads: int, pairs: int | None = None) -> int:
    return cost.attention(n, n, d, heads=heads, pairs=pairs).total


def _near(n: int) -> int:
    """Pairs of a causal window: each query sees itself and up to WINDOW - 1 before it."""
    return cost.causal_pairs(min(n, WINDOW), min(n, WINDOW)) + max(n - WINDOW, 0) * WINDOW


def _rows(n: int, d: int, heads: int) -> int:
    return heads * n


def _plainly(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """As it is written in books, every weight in memory."""
    found: Tensor = torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, dim=-1) @ v
    return found


def _additive(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    w = torch.eye(q.shape[-1], HIDDEN)
    return attention(q, k, v, score=score.additive(w, w, torch.ones(HIDDEN) / HIDDEN))  # type: ignore[no-any-return]


def _linformer(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return linformer(q, k, v, torch.full((PROJECTED, k.shape[-2]), 1.0 / k.shape[-2]))


def _performer(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return linear_attention(q, k, v, features=feature.favor(q.shape[-1], q.shape[-1]))


EVERY = (
    Priced("all weights kept", "softmax over all pairs, the matrix in memory", "4 n² d H", _pairs,
           lambda n, d, heads: 2 * heads * n * n, _plainly, 16_384),
    Priced("softmax", "softmax over all pairs, streamed: no matrix", "4 n² d H", _pairs, _rows, attention),
    Priced("causal", "softmax over all that came before, streamed", "2 n (n + 1) d H",
           lambda n, d, heads: _pairs(n, d, heads, cost.causal_pairs(n, n)), _rows,
           partial(attention, mask=mask.causal())),
    Priced(f"window of {WINDOW}", f"softmax over the last {WINDOW} tokens", f"4 n {WINDOW} d H",
           lambda n, d, heads: _pairs(n, d, heads, _near(n)), _rows,
           partial(attention, mask=mask.causal() & mask.window(WINDOW))),
    Priced("additive",
           f"u·tanh(W q + W k) with {HIDDEN} hidden numbers", f"(3 · {HIDDEN} + 2 d) n² H + 4 n d {HIDDEN} H",
           lambda n, d, heads: cost.additive_scores(n, n, HIDDEN, heads=heads) + 2 * heads * n * d * (n + 2 * HIDDEN),
           _rows, _additive, 16_384),
    Priced("sparsemax", "few weights are not 0; the rows' levels are found first", "6 n² d H",
           lambda n, d, heads: _pairs(n, d, heads) * 3 // 2, _rows,
           partial(attention, weigh=weigh.sparsemax()), 32_768),
    Priced("linear", "features of queries and keys, a state of d x d", "4 n d² H",
           lambda n, d, heads: 4 * n * d * d * heads, lambda n, d, heads: heads * d * (d + 1), linear_attention),
    Priced("Performer", "d random features, a state of d x d", "8 n d² H",
           lambda n, d, heads: 8 * n * d * d * heads, lambda n, d, heads: heads * (2 * n * d + d * d), _performer),
    Priced("Linformer", f"keys and values projected to {PROJECTED}", f"8 n {PROJECTED} d H",
           lambda n, d, heads: 8 * n * PROJECTED * d * heads,
           lambda n, d, heads: heads * (2 * PROJECTED * d + n) + PROJECTED * n, _linformer),
    Priced("Nyström", f"through {LANDMARKS} landmarks", f"8 n {LANDMARKS} d H + 48 · {LANDMARKS}³ H",
           lambda n, d, heads: heads * (8 * n * LANDMARKS * d + 48 * LANDMARKS**3),
           lambda n, d, heads: heads * (n * d + LANDMARKS**2), partial(nystrom, landmarks=LANDMARKS)),
)  # fmt: skip


def named(name: str) -> Priced:
    for each in EVERY:
        if each.name == name:
            return each
    raise SpecError(f"a mechanism must be one of {', '.join(each.name for each in EVERY)}; got {name[:40]!r}.")
