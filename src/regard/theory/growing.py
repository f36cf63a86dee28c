"""Work by length: every mechanism with the formula it grows by, and how its work is counted without a clock.

Where a mechanism is one call, `explain` says its products, and its mask the share of pairs that is seen, exactly. Where
it is more, it runs, and torch's counter counts the products.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from regard.attention import explain
from regard.mechanism.axial import axial_attention
from regard.mechanism.clustered import clustered, grouped
from regard.mechanism.linear import linear_attention
from regard.mechanism.linformer import efficient_attention, linformer
from regard.mechanism.longnet import longnet
from regard.mechanism.nystrom import nystrom
from regard.mechanism.reformer import lsh_attention
from regard.mechanism.routing import routing
from regard.mechanism.state import delta, gated, retention
from regard.spec import feature, mask, score, weigh

WIDTH = 16
PLANNED = (2**12, 2**14)  # lengths between which work is compared
RUN = (2**10, 2**12)
Formula = Callable[[int], float]


@dataclass(frozen=True)
class Grown:
    """A mechanism's `formula` as the catalogue writes it, the power of n it has between two lengths, and the power that
    counted work has there."""

    name: str
    formula: str
    said: float
    found: float


@dataclass(frozen=True, eq=False)
class _Planned:
    formula: str
    work: Formula
    options: Callable[[int], dict[str, Any]]


@dataclass(frozen=True, eq=False)
class _Run:
    formula: str
    work: Formula
    call: Callable[[Tensor, Tensor, Tensor], Any]


def _quadratic(**options: Any) -> _Planned:
    return _Planned("n^2 d", lambda n: n**2, lambda n: options)


def _linear(formula: str, **options: Any) -> _Planned:
    return _Planned(formula, lambda n: n, lambda n: options)


def _additive() -> Any:
    w = torch.zeros(WIDTH, WIDTH)
    return score.additive(w, w, w[0])


def planned() -> dict[str, _Planned]:
    """Mechanisms that are one call."""
    root = math.isqrt
    return {
        "softmax": _quadratic(),
        "additive": _Planned("n^2 d_a", lambda n: n**2, lambda n: {"score": _additive()}),
        "dot product": _quadratic(score=score.dot()),
        "multiplicative": _quadratic(score=score.multiplicative(torch.eye(WIDTH))),
        "Mahalanobis": _quadratic(score=score.mahalanobis(torch.eye(WIDTH))),
        "metric": _quadratic(score=score.metric(3.0)),
        "cosine": _quadratic(score=score.cosine()),
        "ALiBi": _quadratic(score=score.alibi(torch.ones(1)), mask=mask.causal()),
        "T5 relative bias": _quadratic(score=score.relative(torch.zeros(32, 1)), mask=mask.causal()),
        "Shaw's relative positions": _quadratic(score=score.shaw_keys(torch.zeros(33, WIDTH))),
        "softcap": _quadratic(score=score.softcap(50.0)),
        "sink (softmax1)": _quadratic(weigh=weigh.sink()),
        "sigmoid": _quadratic(weigh=weigh.sigmoid(-8.0)),
        "ReLU": _quadratic(weigh=weigh.relu()),
        "sparsemax": _quadratic(weigh=weigh.sparsemax()),
        "entmax": _quadratic(weigh=weigh.entmax(1.5)),
        "top k": _quadratic(weigh=weigh.top(32)),
        "argmax": _quadratic(weigh=weigh.argmax()),
        "Gumbel": _quadratic(weigh=weigh.gumbel()),
        "Sinkhorn": _quadratic(weigh=weigh.sinkhorn(5)),
        "causal": _Planned("n^2 d / 2", lambda n: n**2 / 2, lambda n: {"mask": mask.causal()}),
        "prefix language model": _quadratic(mask=mask.causal() | mask.prefix(128)),
        "window": _linear("n w d", mask=mask.causal() & mask.window(256)),
        "dilated window": _linear("n w d", mask=mask.dilated(64, 4)),
        "chunked local": _linear("n c (l + 1) d", mask=mask.blocks(256, 1)),
        "global tokens": _linear("n g d", mask=mask.tokens([0, 1])),
        "Longformer": _linear("n (w + g) d", mask=mask.longformer(512, [0, 1])),
        "BigBird": _linear("n b (5 + r) d", mask=mask.bigbird()),
        "random blocks": _linear("n b r d", mask=mask.random_blocks(64, 3)),
        "documents": _Planned(
            "sum of l^2 d", lambda n: n * 512, lambda n: {"mask": mask.documents(torch.arange(n) // 512)}
        ),
        "strided (Sparse Transformer)": _Planned(
            "n^1.5 d", lambda n: n**1.5, lambda n: {"mask": mask.strided(root(n)) & mask.causal()}
        ),
        "fixed (Sparse Transformer)": _Planned("n^1.5 d", lambda n: n**1.5, lambda n: {"mask": mask.fixed(root(n), 8)}),
    }


def run() -> dict[str, _Run]:
    """Mechanisms that are more than one call.

    Nyström's formula has its factors here, since m³ counts at these lengths: four products of n m d, and for the
    inverse six rounds of four products of m³, and one more. Block-sparse attention by scores is missing: its blocks
    are smaller than the tiles its work is done in, so that at these lengths nearly all tiles are visited.
    """

    def linear(formula: str, call: Callable[[Tensor, Tensor, Tensor], Any]) -> _Run:
        return _Run(formula, lambda n: n, call)

    return {
        "linear attention": linear("n d^2", lambda q, k, v: linear_attention(q, k, v, causal=True)),
        "FAVOR+ (Performer)": linear(
            "n m d", lambda q, k, v: linear_attention(q, k, v, features=feature.favor(WIDTH), causal=True)
        ),
        "cosFormer": linear(
            "n d^2", lambda q, k, v: linear_attention(q, k, v, features=feature.cosformer(2**17), causal=True)
        ),
        "retention (RetNet)": linear("n d^2", lambda q, k, v: retention(q, k, v, 0.99)),
        "gated linear attention": linear("n d^2", lambda q, k, v: gated(q, k, v, torch.sigmoid(k + 4.0))),
        "delta rule (DeltaNet)": linear(
            "n d^2", lambda q, k, v: delta(q, k / k.norm(dim=-1, keepdim=True), v, torch.full_like(k[..., 0], 0.5))
        ),
        "efficient attention": linear("n d^2", efficient_attention),
        "Linformer": linear("n m d", _projected),
        "Nyström attention": _Run(
            "n m d + m^3", lambda n: 8 * n * 32 * WIDTH + 50 * 32**3, lambda q, k, v: nystrom(q, k, v, landmarks=32)
        ),
        "Reformer (LSH attention)": _Run(
            "r n (c + sqrt(n/c)) d",
            lambda n: n * (32 + math.sqrt(n / 32)),
            lambda q, k, v: lsh_attention(q, v, rounds=2, chunk=32),
        ),
        "Routing Transformer": _Run("n^1.5 d", lambda n: n**1.5, _routed),
        "clustered attention": linear("n C d", lambda q, k, v: clustered(q, k, v, grouped(q, clusters=32))),
        "improved clustered attention": linear(
            "n (C + top) d", lambda q, k, v: clustered(q, k, v, grouped(q, clusters=32), top=16)
        ),
        "axial": _Run("n^(1 + 1/D) d", lambda n: n**1.5, _along_rows),
        "LongNet": linear("n d sum of w/r^2", lambda q, k, v: longnet(q, k, v, segments=[128, 512], dilations=[1, 4])),
    }


def grown(every: int, told: Callable[[float], None]) -> list[Grown]:
    """Every so manyth of them; counts are exact, and the same each time."""
    found: list[Grown] = []
    everything: list[tuple[str, _Planned | _Run]] = [*planned().items(), *run().items()]
    chosen = everything[::every]
    for name, one in chosen:
        if isinstance(one, _Planned):
            lengths, works = PLANNED, [planned_work(n, one.options(n)) for n in PLANNED]
        else:
            lengths, works = RUN, [float(run_work(n, one.call)) for n in RUN]
        said = _power([one.work(n) for n in lengths], lengths)
        found.append(Grown(name, one.formula, said, _power(works, lengths)))
        told(len(found) / len(chosen))
    return found


def planned_work(n: int, options: dict[str, Any]) -> float:
    """FLOPs of the pairs that are seen. An engine that works in tiles computes some more, and skips what is empty."""
    shape = (1, 1, n, WIDTH)
    seen = options["mask"].density(n) if "mask" in options else 1.0
    others = {name: option for name, option in options.items() if name != "mask"}
    return float(seen * explain(shape, shape, shape, **others).cost.flops)


@torch.no_grad()
def run_work(n: int, call: Callable[[Tensor, Tensor, Tensor], Any]) -> int:
    """In float64, where every product is one of torch's."""
    draw = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 1, n, WIDTH, generator=draw, dtype=torch.float64) for _ in range(3))
    return counted(lambda: call(q, k, v))


def counted(work: Callable[[], Any]) -> int:
    """The FLOPs of the products that torch runs meanwhile."""
    with FlopCounterMode(display=False) as counter:
        work()
    return int(counter.get_total_flops())


def _power(works: list[Any], lengths: tuple[int, int]) -> float:
    return math.log(works[1] / works[0]) / math.log(lengths[1] / lengths[0])


def _projected(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return linformer(q, k, v, torch.full((64, k.shape[-2]), 1.0 / k.shape[-2], dtype=k.dtype))


def _routed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    count = math.isqrt(q.shape[-2])
    centres = torch.randn(1, count, WIDTH, generator=torch.Generator().manual_seed(0), dtype=q.dtype)
    return routing(q, k, v, centres, window=count)


def _along_rows(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (x.unflatten(-2, (math.isqrt(x.shape[-2]), -1)) for x in (q, k, v))
    return axial_attention(q, k, v, axis=0)
