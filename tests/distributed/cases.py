"""Calls of attention over a whole sequence that the tests run over ranks, and the direct formula of some."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from regard import mask, normalizer, score
from regard.distributed.ranks.rank_cost import can_split_heads

METHODS = ("ring", "all_gather", "ulysses")
WHOLE_ROW_METHODS = ("all_gather", "ulysses")


@dataclass(frozen=True)
class AttentionCase:
    """A call with q (2, num_heads, n, 8), k (2, num_kv_heads, n_k, 8) and v (2, num_kv_heads, n_k, 6).

    `options` takes the length n and the learned tensors, whose shapes are in `learned_shapes` and which every rank has.
    """

    options: Callable[[int, Sequence[Tensor]], dict[str, Any]] = field(default=lambda n, t: {})
    learned_shapes: tuple[tuple[int, ...], ...] = ()
    n: int = 23
    n_k: int | None = None
    num_heads: int = 4
    num_kv_heads: int = 4
    methods: tuple[str, ...] = METHODS

    def tensors(self) -> list[Tensor]:
        """Return q, k, v and the learned tensors, in float64."""
        generator = torch.Generator().manual_seed(7)
        n_k = self.n if self.n_k is None else self.n_k
        shapes = (2, self.num_heads, self.n, 8), (2, self.num_kv_heads, n_k, 8), (2, self.num_kv_heads, n_k, 6)
        tensors = [
            torch.randn(shape, generator=generator, dtype=torch.float64) for shape in (*shapes, *self.learned_shapes)
        ]
        return [*tensors[:3], *(learned / 3 for learned in tensors[3:])]

    def supports(self, method: str, world_size: int) -> bool:
        """Return whether a method can run this case on `world_size` ranks."""
        has_enough_heads = method != "ulysses" or can_split_heads(self.num_heads, self.num_kv_heads, world_size)
        return method in self.methods and has_enough_heads


def _document_ids(n: int) -> Tensor:
    return torch.tensor([0] * (n // 3) + [1] * (n // 2) + [2] * (n - n // 3 - n // 2))


def _random_mask(n: int) -> Tensor:
    return torch.rand(n, n, generator=torch.Generator().manual_seed(11)) > 0.3


CASES: dict[str, AttentionCase] = {
    "full": AttentionCase(),
    "causal": AttentionCase(lambda n, t: {"mask": mask.causal()}),
    "sliding window": AttentionCase(lambda n, t: {"mask": mask.causal() & mask.sliding_window(4)}),
    "documents": AttentionCase(lambda n, t: {"mask": mask.document(_document_ids(n)) & mask.causal()}),
    "padding": AttentionCase(lambda n, t: {"mask": mask.padding(torch.tensor([n, n // 2]))}),
    "alibi": AttentionCase(lambda n, t: {"score": score.alibi(), "mask": mask.causal()}),
    "learned slopes": AttentionCase(lambda n, t: {"score": score.alibi(t[0])}, ((4,),)),
    "grouped heads": AttentionCase(lambda n, t: {"mask": mask.causal()}, num_heads=8, num_kv_heads=2),
    "one kv head": AttentionCase(lambda n, t: {"mask": mask.causal()}, num_kv_heads=1),
    "even length": AttentionCase(lambda n, t: {"mask": mask.causal()}, n=24),
    "fewer tokens than ranks": AttentionCase(lambda n, t: {"mask": mask.causal()}, n=3),
    "cross": AttentionCase(n=9, n_k=17),
    "query offset": AttentionCase(
        lambda n, t: {"mask": mask.causal(), "query_offset": torch.tensor([3, 0])}, n=13, n_k=19
    ),
    "mask function": AttentionCase(lambda n, t: {"mask": lambda b, h, i, j: (i - j) % 3 == h % 3}),
    "score modifier": AttentionCase(
        lambda n, t: {"score": lambda s, b, h, i, j: s + 0.1 * h - 0.001 * (i - j) * (i + 2 * j)}
    ),
    "dense mask": AttentionCase(lambda n, t: {"mask": _random_mask(n)}),
    "dense bias": AttentionCase(lambda n, t: {"score": score.bias(t[0])}, ((4, 23, 23),)),
    "random blocks": AttentionCase(lambda n, t: {"mask": mask.random_blocks(4, 2, seed=1)}),
    "t5": AttentionCase(lambda n, t: {"score": score.t5_bias(t[0])}, ((8, 4),)),
    "shaw keys": AttentionCase(lambda n, t: {"score": score.scaled_dot().then(score.shaw_keys(t[0]))}, ((7, 8),)),
    "shaw values": AttentionCase(lambda n, t: {"value": score.shaw_values(t[0])}, ((7, 6),), methods=WHOLE_ROW_METHODS),
    "sink": AttentionCase(lambda n, t: {"normalizer": normalizer.sink(t[0]), "mask": mask.causal()}, ((4,),)),
    "dropout": AttentionCase(lambda n, t: {"dropout": 0.3, "seed": 5, "mask": mask.causal()}),
    "cosine": AttentionCase(lambda n, t: {"score": score.cosine(4.0)}),
    "gaussian": AttentionCase(lambda n, t: {"score": score.gaussian(1.5)}),
    "bilinear": AttentionCase(lambda n, t: {"score": score.bilinear(t[0])}, ((4, 8, 8),)),
    "additive": AttentionCase(lambda n, t: {"score": score.additive(*t)}, ((8, 5), (8, 5), (4, 5))),
    "custom score": AttentionCase(lambda n, t: {"score": score.custom(lambda q, k: -torch.cdist(q, k, p=1.0))}),
    "sigmoid": AttentionCase(lambda n, t: {"normalizer": normalizer.sigmoid(t[0])}, ((4,),)),
    "relu": AttentionCase(lambda n, t: {"normalizer": normalizer.relu()}),
    "entmax": AttentionCase(
        lambda n, t: {"normalizer": normalizer.entmax(1.5), "mask": mask.causal()}, methods=WHOLE_ROW_METHODS
    ),
    "learned entmax": AttentionCase(
        lambda n, t: {"normalizer": normalizer.entmax(1.5 + t[0].tanh() / 3)}, ((4,),), methods=WHOLE_ROW_METHODS
    ),
    "topk": AttentionCase(lambda n, t: {"normalizer": normalizer.topk(3)}, methods=WHOLE_ROW_METHODS),
    "sinkhorn": AttentionCase(lambda n, t: {"normalizer": normalizer.sinkhorn(5)}, methods=("ulysses",)),
    "value function": AttentionCase(lambda n, t: {"value": lambda v: v * 2 + 1}),
    "few visible pairs": AttentionCase(lambda n, t: {"mask": lambda b, h, i, j: (i < 4) & (j < 2)}),
}
QUICK_CASES = (
    "full",
    "causal",
    "sliding window",
    "documents",
    "alibi",
    "grouped heads",
    "sink",
    "dropout",
    "shaw keys",
    "entmax",
)


def _softmax(q: Tensor, k: Tensor, v: Tensor, *, bias: Tensor | None = None, sink: Tensor | None = None) -> Tensor:
    """Return causal attention by the direct formula, in the dtype of q."""
    group_size = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group_size, dim=1) for x in (k, v))
    n = q.shape[-2]
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    scores = scores if bias is None else scores + bias.to(scores.dtype)
    scores = scores.masked_fill(~torch.ones(n, n, dtype=torch.bool).tril(), -torch.inf)
    if sink is not None:
        sink_scores = sink.view(1, -1, 1, 1).expand(*scores.shape[:-1], 1).to(scores.dtype)
        scores = torch.cat([scores, sink_scores], dim=-1)
    return scores.softmax(-1)[..., :n] @ v


def _alibi_bias(num_heads: int, n: int) -> Tensor:
    positions = torch.arange(n)
    slopes = torch.tensor([2.0 ** (-8 * (h + 1) / num_heads) for h in range(num_heads)], dtype=torch.float64)
    return -slopes.view(-1, 1, 1) * (positions.view(-1, 1) - positions).abs()


# computed in the dtype of the inputs; errors in low precision are compared with the errors of these
DIRECT_FORMULAS: dict[str, Callable[..., Tensor]] = {
    "causal": _softmax,
    "grouped heads": _softmax,
    "alibi": lambda q, k, v: _softmax(q, k, v, bias=_alibi_bias(4, q.shape[-2])),
    "sink": lambda q, k, v, t: _softmax(q, k, v, sink=t),
}
