"""What ranks are asked in the tests: questions about a whole sequence, by name, and the direct formula of some."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from regard import mask, score, weigh
from regard.distributed.cost import whole_heads

ALL, ROWS = ("ring", "gather", "ulysses"), ("gather", "ulysses")


@dataclass(frozen=True)
class Asked:
    """A call on q (2, heads, n, 8), k (2, key_heads, n_k, 8) and v (.., 6).

    `options` are made of the length n and of tensors of the shapes in `learned`, which every rank has.
    """

    options: Callable[[int, Sequence[Tensor]], dict[str, Any]] = field(default=lambda n, t: {})
    learned: tuple[tuple[int, ...], ...] = ()
    n: int = 23
    n_k: int | None = None
    heads: int = 4
    key_heads: int = 4
    methods: tuple[str, ...] = ALL

    def tensors(self) -> list[Tensor]:
        """q, k, v and what is learned, in float64."""
        draw = torch.Generator().manual_seed(7)
        n_k = self.n if self.n_k is None else self.n_k
        shapes = (2, self.heads, self.n, 8), (2, self.key_heads, n_k, 8), (2, self.key_heads, n_k, 6)
        every = [torch.randn(shape, generator=draw, dtype=torch.float64) for shape in (*shapes, *self.learned)]
        return [*every[:3], *(t / 3 for t in every[3:])]

    def fits(self, method: str, ranks: int) -> bool:
        """Whether a method can answer it on so many ranks."""
        return method in self.methods and (method != "ulysses" or whole_heads(self.heads, self.key_heads, ranks))


def _documents(n: int) -> Tensor:
    return torch.tensor([0] * (n // 3) + [1] * (n // 2) + [2] * (n - n // 3 - n // 2))


def _flags(n: int) -> Tensor:
    return torch.rand(n, n, generator=torch.Generator().manual_seed(11)) > 0.3


ASKED: dict[str, Asked] = {
    "full": Asked(),
    "causal": Asked(lambda n, t: {"mask": mask.causal()}),
    "window": Asked(lambda n, t: {"mask": mask.causal() & mask.window(4)}),
    "documents": Asked(lambda n, t: {"mask": mask.documents(_documents(n)) & mask.causal()}),
    "padding": Asked(lambda n, t: {"mask": mask.padding(torch.tensor([n, n // 2]))}),
    "alibi": Asked(lambda n, t: {"score": score.alibi(), "mask": mask.causal()}),
    "learned slopes": Asked(lambda n, t: {"score": score.alibi(t[0])}, ((4,),)),
    "grouped heads": Asked(lambda n, t: {"mask": mask.causal()}, heads=8, key_heads=2),
    "one key head": Asked(lambda n, t: {"mask": mask.causal()}, key_heads=1),
    "even length": Asked(lambda n, t: {"mask": mask.causal()}, n=24),
    "fewer tokens than ranks": Asked(lambda n, t: {"mask": mask.causal()}, n=3),
    "cross": Asked(n=9, n_k=17),
    "start": Asked(lambda n, t: {"mask": mask.causal(), "start": torch.tensor([3, 0])}, n=13, n_k=19),
    "a function": Asked(lambda n, t: {"mask": lambda b, h, i, j: (i - j) % 3 == h % 3}),
    "a rule": Asked(lambda n, t: {"score": lambda s, b, h, i, j: s + 0.1 * h - 0.001 * (i - j) * (i + 2 * j)}),
    "a mask of numbers": Asked(lambda n, t: {"mask": _flags(n)}),
    "a bias of numbers": Asked(lambda n, t: {"score": score.bias(t[0])}, ((4, 23, 23),)),
    "random blocks": Asked(lambda n, t: {"mask": mask.random_blocks(4, 2, seed=1)}),
    "t5": Asked(lambda n, t: {"score": score.relative(t[0])}, ((8, 4),)),
    "shaw keys": Asked(lambda n, t: {"score": score.scaled_dot().then(score.shaw_keys(t[0]))}, ((7, 8),)),
    "shaw values": Asked(lambda n, t: {"value": score.shaw_values(t[0])}, ((7, 6),), methods=ROWS),
    "sink": Asked(lambda n, t: {"weigh": weigh.sink(t[0]), "mask": mask.causal()}, ((4,),)),
    "dropout": Asked(lambda n, t: {"dropout": 0.3, "seed": 5, "mask": mask.causal()}),
    "cosine": Asked(lambda n, t: {"score": score.cosine(4.0)}),
    "metric": Asked(lambda n, t: {"score": score.metric(1.5)}),
    "multiplicative": Asked(lambda n, t: {"score": score.multiplicative(t[0])}, ((4, 8, 8),)),
    "additive": Asked(lambda n, t: {"score": score.additive(*t)}, ((8, 5), (8, 5), (4, 5))),
    "custom": Asked(lambda n, t: {"score": score.custom(lambda q, k: -torch.cdist(q, k, p=1.0))}),
    "sigmoid": Asked(lambda n, t: {"weigh": weigh.sigmoid(t[0])}, ((4,),)),
    "relu": Asked(lambda n, t: {"weigh": weigh.relu()}),
    "entmax": Asked(lambda n, t: {"weigh": weigh.entmax(1.5), "mask": mask.causal()}, methods=ROWS),
    "learned entmax": Asked(lambda n, t: {"weigh": weigh.entmax(1.5 + t[0].tanh() / 3)}, ((4,),), methods=ROWS),
    "top": Asked(lambda n, t: {"weigh": weigh.top(3)}, methods=ROWS),
    "sinkhorn": Asked(lambda n, t: {"weigh": weigh.sinkhorn(5)}, methods=("ulysses",)),
    "a value": Asked(lambda n, t: {"value": lambda v: v * 2 + 1}),
    "few see anything": Asked(lambda n, t: {"mask": lambda b, h, i, j: (i < 4) & (j < 2)}),
}
SHORT = ("full", "causal", "window", "documents", "alibi", "grouped heads", "sink", "dropout", "shaw keys", "entmax")


def _softmax(q: Tensor, k: Tensor, v: Tensor, *, bias: Tensor | None = None, sink: Tensor | None = None) -> Tensor:
    """Causal attention, every pair in memory, all in the precision of q."""
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, dim=1) for x in (k, v))
    n = q.shape[-2]
    s = q @ k.mT / math.sqrt(q.shape[-1])
    s = s if bias is None else s + bias.to(s.dtype)
    s = s.masked_fill(~torch.ones(n, n, dtype=torch.bool).tril(), -torch.inf)
    if sink is not None:
        s = torch.cat([s, sink.view(1, -1, 1, 1).expand(*s.shape[:-1], 1).to(s.dtype)], dim=-1)
    return s.softmax(-1)[..., :n] @ v


def _far(heads: int, n: int) -> Tensor:
    at = torch.arange(n)
    slopes = torch.tensor([2.0 ** (-8 * (h + 1) / heads) for h in range(heads)], dtype=torch.float64)
    return -slopes.view(-1, 1, 1) * (at.view(-1, 1) - at).abs()


# The direct formula in the precision of its inputs: what the contract's error rule compares with.
DIRECT: dict[str, Callable[..., Tensor]] = {
    "causal": _softmax,
    "grouped heads": _softmax,
    "alibi": lambda q, k, v: _softmax(q, k, v, bias=_far(4, q.shape[-2])),
    "sink": lambda q, k, v, t: _softmax(q, k, v, sink=t),
}
