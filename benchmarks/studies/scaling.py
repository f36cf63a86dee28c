"""Time and memory of every mechanism by sequence length: one head of dimension 64, forward, one thread.

    python -m benchmarks.studies.scaling [--max-call-s SECONDS] [--lengths N ...] [--mechanisms NAME ...]

Prints the points as JSON. It runs in a separate process, whose malloc returns freed memory at once. A mechanism is not
measured at lengths where a call would take longer than the limit.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import regard
from benchmarks.baselines import mechanisms
from benchmarks.harness.memory import MALLOC_SETTINGS, reset_peak_rss
from regard import feature_map, mask, normalizer, score
from regard.mechanisms.axial import axial_attention
from regard.mechanisms.block_sparse import block_sparse_attention
from regard.mechanisms.clustered import cluster_queries, clustered_attention
from regard.mechanisms.graph import gat, gatv2
from regard.mechanisms.linear import linear_attention
from regard.mechanisms.linear_recurrence import delta_rule, gla, retention
from regard.mechanisms.linformer import efficient_attention, linformer_attention
from regard.mechanisms.longformer import longformer_attention
from regard.mechanisms.longnet import longnet_attention
from regard.mechanisms.nystrom import nystrom_attention
from regard.mechanisms.reformer import lsh_attention
from regard.mechanisms.routing import routing_attention
from regard.mechanisms.seq2seq import luong_local_monotonic, luong_local_predictive

ROOT = Path(__file__).parents[2]
LENGTHS = tuple(2**power for power in range(10, 17))
HEAD_DIM = 64
MAX_CALL_S = 8.0
NUM_ROUNDS = 3

Call = Callable[[Tensor, Tensor, Tensor], Any]


@dataclass(frozen=True)
class Point:
    """The best time in seconds and the peak memory in bytes beyond inputs and output, for one length."""

    mechanism: str
    n: int
    seconds: float
    memory: int


def attention_with(**options: Any) -> Call:
    return partial(regard.attention, **options)


def additive_call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    w_q, w_k = torch.randn(2, HEAD_DIM, HEAD_DIM, generator=torch.Generator().manual_seed(1)) / 8
    return regard.attention(q, k, v, score=score.additive(w_q, w_k, torch.ones(HEAD_DIM) / 8))


def linformer_call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return linformer_attention(q, k, v, torch.full((256, k.shape[-2]), 1.0 / k.shape[-2]))


def axial_call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    side = 2 ** (int(math.log2(q.shape[-2])) // 2)
    grid = (x.unflatten(-2, (side, -1)) for x in (q, k, v))
    return axial_attention(*grid, axis=0)


def graph_call(layer: Callable[..., Tensor], num_vectors: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Run a graph layer with edges from each node to 8 neighbors."""
    n = q.shape[-2]
    nodes = torch.arange(n).repeat_interleave(8)
    edges = torch.stack([nodes, (nodes + torch.arange(8).repeat(n)) % n])
    w = torch.eye(HEAD_DIM)[None]
    return layer(
        q[0, 0],
        edges,
        *([w] if num_vectors == 2 else [w, w]),
        *torch.ones(num_vectors if num_vectors == 2 else 1, 1, HEAD_DIM),
    )


MECHANISM_CALLS: dict[str, Call] = {
    "softmax": attention_with(),
    "causal": attention_with(mask=mask.causal()),
    "additive": additive_call,
    "sink (softmax1)": attention_with(normalizer=normalizer.sink()),
    "sigmoid": attention_with(normalizer=normalizer.sigmoid(-8.0)),
    "ReLU": attention_with(normalizer=normalizer.relu()),
    "sparsemax": attention_with(normalizer=normalizer.sparsemax()),
    "entmax": attention_with(normalizer=normalizer.entmax(1.5)),
    "top k": attention_with(normalizer=normalizer.topk(32)),
    "hardmax": attention_with(normalizer=normalizer.hardmax()),
    "Gumbel": attention_with(normalizer=normalizer.gumbel()),
    "Sinkhorn": attention_with(normalizer=normalizer.sinkhorn(5)),
    "Gaussian": attention_with(score=score.gaussian(3.0)),
    "ALiBi": attention_with(score=score.alibi(torch.ones(1)), mask=mask.causal()),
    "T5 relative bias": attention_with(score=score.t5_bias(torch.zeros(32, 1)), mask=mask.causal()),
    "Shaw's relative positions": attention_with(score=score.shaw_keys(torch.zeros(33, HEAD_DIM))),
    "softcap": attention_with(score=score.softcap(50.0)),
    "document": lambda q, k, v: regard.attention(q, k, v, mask=mask.document(torch.arange(q.shape[-2]) // 512)),
    "global tokens": attention_with(mask=mask.global_tokens([0, 1])),
    "prefix language model": attention_with(mask=mask.causal() | mask.prefix(128)),
    "random blocks": attention_with(mask=mask.random_blocks(64, 3)),
    "sliding window": attention_with(mask=mask.causal() & mask.sliding_window(256)),
    "dilated window": attention_with(mask=mask.dilated(256, 4)),
    "chunked local": attention_with(mask=mask.chunked(256, 1)),
    "strided (Sparse Transformer)": attention_with(mask=mask.strided(128) & mask.causal()),
    "fixed (Sparse Transformer)": attention_with(mask=mask.fixed(128, 8)),
    "BigBird": attention_with(mask=mask.bigbird()),
    "Longformer": lambda q, k, v: longformer_attention(q, k, v, q, k, v, attention_window=512, global_tokens=[0, 1]),
    "block-sparse by scores": partial(block_sparse_attention, block_size=64, topk=8),
    "LongNet": partial(longnet_attention, segment_lengths=[1024, 4096], dilations=[1, 4]),
    "axial": axial_call,
    "linear attention": partial(linear_attention, causal=True),
    "FAVOR+ (Performer)": partial(linear_attention, feature_map=feature_map.favor(HEAD_DIM), causal=True),
    "cosFormer": partial(linear_attention, feature_map=feature_map.cosformer(2**17), causal=True),
    "retention (RetNet)": lambda q, k, v: retention(q, k, v, 0.99)[0],
    "gated linear attention": lambda q, k, v: gla(q, k, v, torch.sigmoid(k + 4.0))[0],
    "delta rule (DeltaNet)": lambda q, k, v: delta_rule(
        q, torch.nn.functional.normalize(k, dim=-1), v, torch.full(k.shape[:-1], 0.5)
    )[0],
    "efficient attention": efficient_attention,
    "Linformer": linformer_call,
    "Nyström attention": nystrom_attention,
    "Reformer (LSH attention)": lambda q, k, v: lsh_attention(q, v, num_hashes=2, chunk_size=64),
    "Routing Transformer": lambda q, k, v: routing_attention(
        q, k, v, torch.randn(1, max(1, math.isqrt(q.shape[-2])), HEAD_DIM), cluster_size=math.isqrt(q.shape[-2])
    ),
    "clustered attention": lambda q, k, v: clustered_attention(q, k, v, cluster_queries(q, num_clusters=100)),
    "improved clustered attention": lambda q, k, v: clustered_attention(
        q, k, v, cluster_queries(q, num_clusters=100), topk=32
    ),
    "Luong, local-m": lambda q, k, v: (
        luong_local_monotonic(q[0, 0, -1:], k[0, 0], radius=64, query_offset=k.shape[-2] - 1).output
    ),
    "Luong, local-p": lambda q, k, v: (
        luong_local_predictive(q[0, 0, -1:], k[0, 0], torch.eye(HEAD_DIM), torch.ones(HEAD_DIM), radius=64).output
    ),
    "graph attention (GAT)": partial(graph_call, gat, 2),
    "GATv2": partial(graph_call, gatv2, 1),
}
EQUIVALENT_CALLS = {  # mechanisms that transform q and k and then run like another one
    **dict.fromkeys(("scaled dot product", "dot product", "bilinear", "cosine", "rotary embedding (RoPE)"), "softmax"),
    **dict.fromkeys(("Mahalanobis", "metric attention", "Mahalanobis metric attention"), "Gaussian"),
    "Bahdanau": "additive",
    "Luong, global": "softmax",
}
EXTERNAL_CALLS: dict[
    str, tuple[str, Call]
] = {  # a family of the catalog, and an implementation that is not in the catalog
    "linear attention with every weight": ("linear", mechanisms.quadratic_linear),
    "performer-pytorch": ("linear", mechanisms.performer_attention),
}


def measure_points(
    max_call_s: float, lengths: tuple[int, ...], report: Callable[[str], None], names: Sequence[str] = ()
) -> list[Point]:
    """Measure the mechanisms with these names, by default all."""
    torch.set_num_threads(1)
    points: list[Point] = []
    calls = MECHANISM_CALLS | {name: call for name, (_, call) in EXTERNAL_CALLS.items()}
    for name in names or calls:
        call = calls[name]
        report(name)
        times: list[float] = []
        for n in lengths:
            growth = times[-1] / times[-2] if len(times) > 1 else 4.0
            if times and times[-1] * min(growth, 4.5) > max_call_s:
                break
            point = _measure_point(name, call, n)
            points.append(point)
            times.append(point.seconds)
    return points


@torch.no_grad()
def _measure_point(name: str, call: Call, n: int) -> Point:
    q, k, v = torch.randn(3, 1, 1, n, HEAD_DIM, generator=torch.Generator().manual_seed(0)).unbind()
    call(q[..., :256, :], k[..., :256, :], v[..., :256, :])  # the first call loads modules and fills caches
    reset_peak_rss()
    before = reset_peak_rss()
    start = time.perf_counter()
    output = call(q, k, v)
    best = time.perf_counter() - start
    memory = max(0, reset_peak_rss() - before - output.nbytes)
    for _ in range(NUM_ROUNDS - 1 if best < 1.0 else 0):
        start = time.perf_counter()
        call(q, k, v)
        best = min(best, time.perf_counter() - start)
    return Point(name, n, best, memory)


def measure_in_subprocess(max_call_s: float = MAX_CALL_S, lengths: tuple[int, ...] = LENGTHS) -> list[Point]:
    """Measure all mechanisms in a separate process."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.studies.scaling",
        "--max-call-s",
        str(max_call_s),
        "--lengths",
        *map(str, lengths),
    ]
    process = subprocess.run(
        command, cwd=ROOT, env=os.environ | MALLOC_SETTINGS, stdout=subprocess.PIPE, text=True, check=True
    )
    return [Point(**point) for point in json.loads(process.stdout)]


def crossover(points: list[Point], slow: str, fast: str) -> int | None:
    """Return the length from which `fast` takes less time than `slow`, by interpolation of logarithms, or None."""
    times = [{p.n: p.seconds for p in points if p.mechanism == name} for name in (slow, fast)]
    lengths = sorted(times[0].keys() & times[1].keys())
    log_ratios = [math.log(times[1][n] / times[0][n]) for n in lengths]  # below 0 where `fast` is faster
    for index in range(1, len(lengths)):
        left, right = log_ratios[index - 1 : index + 1]
        if left > 0 >= right:
            fraction = left / (left - right)
            return round(lengths[index - 1] * (lengths[index] / lengths[index - 1]) ** fraction)
    return lengths[0] if log_ratios and log_ratios[0] <= 0 else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--max-call-s", type=float, default=MAX_CALL_S)
    parser.add_argument("--lengths", type=int, nargs="*", default=LENGTHS)
    parser.add_argument("--mechanisms", nargs="*", default=())
    options = parser.parse_args()
    lengths = tuple(options.lengths)
    points = measure_points(
        options.max_call_s, lengths, lambda name: print(f"scaling: {name}", file=sys.stderr), options.mechanisms
    )
    print(json.dumps([asdict(point) for point in points]))


if __name__ == "__main__":
    main()
