"""How time and memory grow with the length, mechanism by mechanism: one head of width 64, forward, one thread.

python -m benchmarks.growth [--most SECONDS] [--lengths N ...]   ->   points, as JSON

Run in a process of its own, in which freed memory is given back at once. A mechanism is left at the length after which
a call would take longer than `most` seconds.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import regard
from benchmarks import mechanisms
from benchmarks.memory import AT_ONCE, high_water
from regard import feature, mask, score, weigh
from regard.mechanism.axial import axial_attention
from regard.mechanism.block_sparse import block_sparse
from regard.mechanism.clustered import clustered, grouped
from regard.mechanism.graph import gat, gatv2
from regard.mechanism.linear import linear_attention
from regard.mechanism.linformer import efficient_attention, linformer
from regard.mechanism.longformer import longformer
from regard.mechanism.longnet import longnet
from regard.mechanism.nystrom import nystrom
from regard.mechanism.recurrent import local_monotonic, local_predictive
from regard.mechanism.reformer import lsh_attention
from regard.mechanism.routing import routing
from regard.mechanism.state import delta, gated, retention

ROOT = Path(__file__).parents[1]
LENGTHS = tuple(2**power for power in range(10, 17))
WIDTH = 64
MOST = 8.0
ROUNDS = 3

Call = Callable[[Tensor, Tensor, Tensor], Any]


@dataclass(frozen=True)
class Point:
    """The best time in seconds, and bytes beyond inputs and output."""

    mechanism: str
    n: int
    seconds: float
    memory: int


def options(**given: Any) -> Call:
    return partial(regard.attention, **given)


def additive(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    w_q, w_k = torch.randn(2, WIDTH, WIDTH, generator=torch.Generator().manual_seed(1)) / 8
    return regard.attention(q, k, v, score=score.additive(w_q, w_k, torch.ones(WIDTH) / 8))


def projected(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return linformer(q, k, v, torch.full((256, k.shape[-2]), 1.0 / k.shape[-2]))


def along_rows(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    side = 2 ** (int(math.log2(q.shape[-2])) // 2)
    grid = (x.unflatten(-2, (side, -1)) for x in (q, k, v))
    return axial_attention(*grid, axis=0)


def over_edges(layer: Callable[..., Tensor], count: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Eight edges a node, to the nearest."""
    n = q.shape[-2]
    nodes = torch.arange(n).repeat_interleave(8)
    edges = torch.stack([nodes, (nodes + torch.arange(8).repeat(n)) % n])
    w = torch.eye(WIDTH)[None]
    return layer(q[0, 0], edges, *([w] if count == 2 else [w, w]), *torch.ones(count if count == 2 else 1, 1, WIDTH))


CALLS: dict[str, Call] = {
    "softmax": options(),
    "causal": options(mask=mask.causal()),
    "additive": additive,
    "sink (softmax1)": options(weigh=weigh.sink()),
    "sigmoid": options(weigh=weigh.sigmoid(-8.0)),
    "ReLU": options(weigh=weigh.relu()),
    "sparsemax": options(weigh=weigh.sparsemax()),
    "entmax": options(weigh=weigh.entmax(1.5)),
    "top k": options(weigh=weigh.top(32)),
    "argmax": options(weigh=weigh.argmax()),
    "Gumbel": options(weigh=weigh.gumbel()),
    "Sinkhorn": options(weigh=weigh.sinkhorn(5)),
    "metric": options(score=score.metric(3.0)),
    "ALiBi": options(score=score.alibi(torch.ones(1)), mask=mask.causal()),
    "T5 relative bias": options(score=score.relative(torch.zeros(32, 1)), mask=mask.causal()),
    "Shaw's relative positions": options(score=score.shaw_keys(torch.zeros(33, WIDTH))),
    "softcap": options(score=score.softcap(50.0)),
    "documents": lambda q, k, v: regard.attention(q, k, v, mask=mask.documents(torch.arange(q.shape[-2]) // 512)),
    "global tokens": options(mask=mask.tokens([0, 1])),
    "prefix language model": options(mask=mask.causal() | mask.prefix(128)),
    "random blocks": options(mask=mask.random_blocks(64, 3)),
    "window": options(mask=mask.causal() & mask.window(256)),
    "dilated window": options(mask=mask.dilated(256, 4)),
    "chunked local": options(mask=mask.blocks(256, 1)),
    "strided (Sparse Transformer)": options(mask=mask.strided(128) & mask.causal()),
    "fixed (Sparse Transformer)": options(mask=mask.fixed(128, 8)),
    "BigBird": options(mask=mask.bigbird()),
    "Longformer": lambda q, k, v: longformer(q, k, v, q, k, v, window=512, tokens=[0, 1]),
    "block-sparse by scores": partial(block_sparse, block=64, keep=8),
    "LongNet": partial(longnet, segments=[1024, 4096], dilations=[1, 4]),
    "axial": along_rows,
    "linear attention": partial(linear_attention, causal=True),
    "FAVOR+ (Performer)": partial(linear_attention, features=feature.favor(WIDTH), causal=True),
    "cosFormer": partial(linear_attention, features=feature.cosformer(2**17), causal=True),
    "retention (RetNet)": lambda q, k, v: retention(q, k, v, 0.99)[0],
    "gated linear attention": lambda q, k, v: gated(q, k, v, torch.sigmoid(k + 4.0))[0],
    "delta rule (DeltaNet)": lambda q, k, v: delta(
        q, torch.nn.functional.normalize(k, dim=-1), v, torch.full(k.shape[:-1], 0.5)
    )[0],
    "efficient attention": efficient_attention,
    "Linformer": projected,
    "Nyström attention": nystrom,
    "Reformer (LSH attention)": lambda q, k, v: lsh_attention(q, v, rounds=2, chunk=64),
    "Routing Transformer": lambda q, k, v: routing(
        q, k, v, torch.randn(1, max(1, math.isqrt(q.shape[-2])), WIDTH), window=math.isqrt(q.shape[-2])
    ),
    "clustered attention": lambda q, k, v: clustered(q, k, v, grouped(q, clusters=100)),
    "improved clustered attention": lambda q, k, v: clustered(q, k, v, grouped(q, clusters=100), top=32),
    "Luong, local-m": lambda q, k, v: local_monotonic(q[0, 0, -1:], k[0, 0], reach=64, at=k.shape[-2] - 1).output,
    "Luong, local-p": lambda q, k, v: (
        local_predictive(q[0, 0, -1:], k[0, 0], torch.eye(WIDTH), torch.ones(WIDTH), reach=64).output
    ),
    "graph attention (GAT)": partial(over_edges, gat, 2),
    "GATv2": partial(over_edges, gatv2, 1),
}
SAME_AS = {  # they prepare q and k, and run as another one does
    **dict.fromkeys(("scaled dot product", "dot product", "multiplicative", "cosine", "rotary positions"), "softmax"),
    **dict.fromkeys(("Mahalanobis", "metric attention", "Mahalanobis metric attention"), "metric"),
    "Bahdanau": "additive",
    "Luong, global": "softmax",
}
OTHERS: dict[str, tuple[str, Call]] = {  # not of the catalogue, but of one of its families: what is overtaken
    "linear attention with every weight": ("linear", mechanisms.quadratic),
    "performer-pytorch": ("linear", mechanisms.performer),
}


def measure(most: float, lengths: tuple[int, ...], tell: Callable[[str], None]) -> list[Point]:
    torch.set_num_threads(1)
    points: list[Point] = []
    for name, call in (CALLS | {name: call for name, (_, call) in OTHERS.items()}).items():
        tell(name)
        last: list[float] = []
        for n in lengths:
            growing = last[-1] / last[-2] if len(last) > 1 else 4.0
            if last and last[-1] * min(growing, 4.5) > most:
                break
            point = _point(name, call, n)
            points.append(point)
            last.append(point.seconds)
    return points


@torch.no_grad()
def _point(name: str, call: Call, n: int) -> Point:
    q, k, v = torch.randn(3, 1, 1, n, WIDTH, generator=torch.Generator().manual_seed(0)).unbind()
    call(q[..., :256, :], k[..., :256, :], v[..., :256, :])  # what is loaded and made at a first call
    high_water()
    before = high_water()
    begin = time.perf_counter()
    output = call(q, k, v)
    best = time.perf_counter() - begin
    memory = max(0, high_water() - before - output.nbytes)
    for _ in range(ROUNDS - 1 if best < 1.0 else 0):
        begin = time.perf_counter()
        call(q, k, v)
        best = min(best, time.perf_counter() - begin)
    return Point(name, n, best, memory)


def points(most: float = MOST, lengths: tuple[int, ...] = LENGTHS) -> list[Point]:
    """All of them, measured in another process."""
    command = [sys.executable, "-m", "benchmarks.growth", "--most", str(most), "--lengths", *map(str, lengths)]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | AT_ONCE, stdout=subprocess.PIPE, text=True, check=True)
    return [Point(**point) for point in json.loads(done.stdout)]


def crossing(found: list[Point], slow: str, fast: str) -> int | None:
    """The length from which `fast` takes less time than `slow`; between measured ones the logarithms go straight."""
    times = [{p.n: p.seconds for p in found if p.mechanism == name} for name in (slow, fast)]
    both = sorted(times[0].keys() & times[1].keys())
    ahead = [math.log(times[1][n] / times[0][n]) for n in both]  # below 0 where `fast` is faster
    for place in range(1, len(both)):
        one, other = ahead[place - 1 : place + 1]
        if one > 0 >= other:
            share = one / (one - other)
            return round(both[place - 1] * (both[place] / both[place - 1]) ** share)
    return both[0] if ahead and ahead[0] <= 0 else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--most", type=float, default=MOST)
    parser.add_argument("--lengths", type=int, nargs="*", default=LENGTHS)
    given = parser.parse_args()
    found = measure(given.most, tuple(given.lengths), lambda name: print(f"growth: {name}", file=sys.stderr))
    print(json.dumps([asdict(point) for point in found]))


if __name__ == "__main__":
    main()
