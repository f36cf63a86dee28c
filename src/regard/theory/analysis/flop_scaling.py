"""The growth of FLOPs with the length, for every mechanism: by its formula, and counted.

For a mechanism of one call of `attention`, `explain` has the FLOPs, and the mask has the exact fraction of visible
pairs. Other mechanisms run under torch's FLOP counter.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from regard import feature_map, mask, normalizer, score
from regard.attention import explain
from regard.mechanisms.axial import axial_attention
from regard.mechanisms.clustered import cluster_queries, clustered_attention
from regard.mechanisms.linear import linear_attention
from regard.mechanisms.linear_recurrence import delta_rule, gla, retention
from regard.mechanisms.linformer import efficient_attention, linformer_attention
from regard.mechanisms.longnet import longnet_attention
from regard.mechanisms.nystrom import nystrom_attention
from regard.mechanisms.reformer import lsh_attention
from regard.mechanisms.routing import routing_attention

BENCH_HEAD_DIM = 16
PLANNED_LENGTHS = (2**12, 2**14)
RUN_LENGTHS = (2**10, 2**12)
WorkFormula = Callable[[int], float]


@dataclass(frozen=True)
class FlopExponent:
    """The complexity `formula` of a mechanism, its exponent of n, and the exponent of the counted FLOPs."""

    name: str
    formula: str
    formula_exponent: float
    counted_exponent: float


@dataclass(frozen=True, eq=False)
class _SingleCall:
    formula: str
    work_formula: WorkFormula
    options: Callable[[int], dict[str, Any]]


@dataclass(frozen=True, eq=False)
class _MultiCall:
    formula: str
    work_formula: WorkFormula
    call: Callable[[Tensor, Tensor, Tensor], Any]


def _quadratic(**options: Any) -> _SingleCall:
    return _SingleCall("n^2 d", lambda n: n**2, lambda n: options)


def _linear(formula: str, **options: Any) -> _SingleCall:
    return _SingleCall(formula, lambda n: n, lambda n: options)


def _additive_score() -> Any:
    w = torch.zeros(BENCH_HEAD_DIM, BENCH_HEAD_DIM)
    return score.additive(w, w, w[0])


def single_call_mechanisms() -> dict[str, _SingleCall]:
    """Return the mechanisms that are one call of `attention`."""
    root = math.isqrt
    return {
        "softmax": _quadratic(),
        "additive": _SingleCall("n^2 d_a", lambda n: n**2, lambda n: {"score": _additive_score()}),
        "dot product": _quadratic(score=score.dot()),
        "bilinear": _quadratic(score=score.bilinear(torch.eye(BENCH_HEAD_DIM))),
        "Mahalanobis": _quadratic(score=score.mahalanobis(torch.eye(BENCH_HEAD_DIM))),
        "Gaussian": _quadratic(score=score.gaussian(3.0)),
        "cosine": _quadratic(score=score.cosine()),
        "ALiBi": _quadratic(score=score.alibi(torch.ones(1)), mask=mask.causal()),
        "T5 relative bias": _quadratic(score=score.t5_bias(torch.zeros(32, 1)), mask=mask.causal()),
        "Shaw's relative positions": _quadratic(score=score.shaw_keys(torch.zeros(33, BENCH_HEAD_DIM))),
        "softcap": _quadratic(score=score.softcap(50.0)),
        "sink (softmax1)": _quadratic(normalizer=normalizer.sink()),
        "sigmoid": _quadratic(normalizer=normalizer.sigmoid(-8.0)),
        "ReLU": _quadratic(normalizer=normalizer.relu()),
        "sparsemax": _quadratic(normalizer=normalizer.sparsemax()),
        "entmax": _quadratic(normalizer=normalizer.entmax(1.5)),
        "top k": _quadratic(normalizer=normalizer.topk(32)),
        "hardmax": _quadratic(normalizer=normalizer.hardmax()),
        "Gumbel": _quadratic(normalizer=normalizer.gumbel()),
        "Sinkhorn": _quadratic(normalizer=normalizer.sinkhorn(5)),
        "causal": _SingleCall("n^2 d / 2", lambda n: n**2 / 2, lambda n: {"mask": mask.causal()}),
        "prefix language model": _quadratic(mask=mask.causal() | mask.prefix(128)),
        "sliding window": _linear("n w d", mask=mask.causal() & mask.sliding_window(256)),
        "dilated window": _linear("n w d", mask=mask.dilated(64, 4)),
        "chunked local": _linear("n c (l + 1) d", mask=mask.chunked(256, 1)),
        "global tokens": _linear("n g d", mask=mask.global_tokens([0, 1])),
        "Longformer": _linear("n (w + g) d", mask=mask.longformer(512, [0, 1])),
        "BigBird": _linear("n b (5 + r) d", mask=mask.bigbird()),
        "random blocks": _linear("n b r d", mask=mask.random_blocks(64, 3)),
        "document": _SingleCall(
            "sum of l^2 d", lambda n: n * 512, lambda n: {"mask": mask.document(torch.arange(n) // 512)}
        ),
        "strided (Sparse Transformer)": _SingleCall(
            "n^1.5 d", lambda n: n**1.5, lambda n: {"mask": mask.strided(root(n)) & mask.causal()}
        ),
        "fixed (Sparse Transformer)": _SingleCall(
            "n^1.5 d", lambda n: n**1.5, lambda n: {"mask": mask.fixed(root(n), 8)}
        ),
    }


def multi_call_mechanisms() -> dict[str, _MultiCall]:
    """Return the mechanisms that are more than one call.

    Nyström's formula includes its factors, since m³ matters at these lengths: four products of n m d, and for the
    inverse six iterations of four products of m³, and one more. Block-sparse attention by scores is not included: its
    blocks are smaller than the tiles, so nearly all tiles are visited at these lengths.
    """

    def linear(formula: str, call: Callable[[Tensor, Tensor, Tensor], Any]) -> _MultiCall:
        return _MultiCall(formula, lambda n: n, call)

    return {
        "linear attention": linear("n d^2", lambda q, k, v: linear_attention(q, k, v, causal=True)),
        "FAVOR+ (Performer)": linear(
            "n m d",
            lambda q, k, v: linear_attention(q, k, v, feature_map=feature_map.favor(BENCH_HEAD_DIM), causal=True),
        ),
        "cosFormer": linear(
            "n d^2", lambda q, k, v: linear_attention(q, k, v, feature_map=feature_map.cosformer(2**17), causal=True)
        ),
        "retention (RetNet)": linear("n d^2", lambda q, k, v: retention(q, k, v, 0.99)),
        "gated linear attention": linear("n d^2", lambda q, k, v: gla(q, k, v, torch.sigmoid(k + 4.0))),
        "delta rule (DeltaNet)": linear(
            "n d^2", lambda q, k, v: delta_rule(q, k / k.norm(dim=-1, keepdim=True), v, torch.full_like(k[..., 0], 0.5))
        ),
        "efficient attention": linear("n d^2", efficient_attention),
        "Linformer": linear("n m d", _linformer_call),
        "Nyström attention": _MultiCall(
            "n m d + m^3",
            lambda n: 8 * n * 32 * BENCH_HEAD_DIM + 50 * 32**3,
            lambda q, k, v: nystrom_attention(q, k, v, num_landmarks=32),
        ),
        "Reformer (LSH attention)": _MultiCall(
            "r n (c + sqrt(n/c)) d",
            lambda n: n * (32 + math.sqrt(n / 32)),
            lambda q, k, v: lsh_attention(q, v, num_hashes=2, chunk_size=32),
        ),
        "Routing Transformer": _MultiCall("n^1.5 d", lambda n: n**1.5, _routing_call),
        "clustered attention": linear(
            "n C d", lambda q, k, v: clustered_attention(q, k, v, cluster_queries(q, num_clusters=32))
        ),
        "improved clustered attention": linear(
            "n (C + k) d", lambda q, k, v: clustered_attention(q, k, v, cluster_queries(q, num_clusters=32), topk=16)
        ),
        "axial": _MultiCall("n^(1 + 1/D) d", lambda n: n**1.5, _axial_call),
        "LongNet": linear(
            "n d sum of w/r^2", lambda q, k, v: longnet_attention(q, k, v, segment_lengths=[128, 512], dilations=[1, 4])
        ),
    }


def flop_exponents(stride: int, progress: Callable[[float], None]) -> list[FlopExponent]:
    """Return the exponents of every `stride`-th mechanism; counts are exact and deterministic."""
    exponents: list[FlopExponent] = []
    mechanisms: list[tuple[str, _SingleCall | _MultiCall]] = [
        *single_call_mechanisms().items(),
        *multi_call_mechanisms().items(),
    ]
    selected = mechanisms[::stride]
    for name, mechanism in selected:
        if isinstance(mechanism, _SingleCall):
            lengths, flops = PLANNED_LENGTHS, [planned_flops(n, mechanism.options(n)) for n in PLANNED_LENGTHS]
        else:
            lengths, flops = RUN_LENGTHS, [float(run_flops(n, mechanism.call)) for n in RUN_LENGTHS]
        expected = _exponent([mechanism.work_formula(n) for n in lengths], lengths)
        exponents.append(FlopExponent(name, mechanism.formula, expected, _exponent(flops, lengths)))
        progress(len(exponents) / len(selected))
    return exponents


def planned_flops(n: int, options: dict[str, Any]) -> float:
    """Return the FLOPs of the visible pairs; a tiled backend also computes hidden pairs of partly visible tiles."""
    shape = (1, 1, n, BENCH_HEAD_DIM)
    density = options["mask"].density(n) if "mask" in options else 1.0
    others = {name: option for name, option in options.items() if name != "mask"}
    return float(density * explain(shape, shape, shape, **others).cost.flops)


@torch.no_grad()
def run_flops(n: int, call: Callable[[Tensor, Tensor, Tensor], Any]) -> int:
    """Return the FLOPs of a call in float64, in which torch computes every product."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 1, n, BENCH_HEAD_DIM, generator=generator, dtype=torch.float64) for _ in range(3))
    return count_flops(lambda: call(q, k, v))


def count_flops(fn: Callable[[], Any]) -> int:
    """Return the FLOPs of the matrix products of a function call."""
    with FlopCounterMode(display=False) as counter:
        fn()
    return int(counter.get_total_flops())


def _exponent(flops: list[Any], lengths: tuple[int, int]) -> float:
    return math.log(flops[1] / flops[0]) / math.log(lengths[1] / lengths[0])


def _linformer_call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return linformer_attention(q, k, v, torch.full((64, k.shape[-2]), 1.0 / k.shape[-2], dtype=k.dtype))


def _routing_call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    count = math.isqrt(q.shape[-2])
    centroids = torch.randn(1, count, BENCH_HEAD_DIM, generator=torch.Generator().manual_seed(0), dtype=q.dtype)
    return routing_attention(q, k, v, centroids, cluster_size=count)


def _axial_call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (x.unflatten(-2, (math.isqrt(x.shape[-2]), -1)) for x in (q, k, v))
    return axial_attention(q, k, v, axis=0)
