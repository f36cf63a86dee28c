"""Run as a program: how much memory a call takes beyond its inputs, measured in a process of its own.

python peak.py ENGINE CASE,CASE... LENGTH   ->   {"CASE": bytes, ...}
"""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Callable
from typing import Any

import torch

import regard
from regard import mask, measure, score, weigh

WIDTH = 32
SLOW = ("additive", "sparsemax", "entmax")  # a quarter of the queries, whose floats are too many still


def options(name: str, n: int) -> dict[str, Any]:
    table = torch.zeros(2 * n).requires_grad_()
    bits = torch.Generator().manual_seed(0)
    weights = [torch.randn(*shape, generator=bits).requires_grad_() for shape in [(WIDTH, 8), (WIDTH, 8), (8,)]]
    return {
        "plain": dict,
        "causal": lambda: dict(mask=mask.causal()),
        "window": lambda: dict(mask=mask.causal() & mask.window(256)),
        "function": lambda: dict(mask=lambda b, h, i, j: (i * 3 + j) % 5 != 0),
        "table": lambda: dict(score=lambda s, b, h, i, j: s + table[i - j + n]),
        "keys": lambda: dict(score=score.bias(table[:n]), mask=table[None, :n] == 0),
        "metric": lambda: dict(score=score.metric(3.0)),
        "additive": lambda: dict(score=score.additive(*weights)),
        "custom": lambda: dict(score=score.custom(lambda q, k: (q @ k.mT) / 8)),
        "dropout": lambda: dict(dropout=0.1, seed=1),
        "sink": lambda: dict(weigh=weigh.sink(torch.zeros(1, requires_grad=True))),
        "sigmoid": lambda: dict(weigh=weigh.sigmoid(-5.0)),
        "relu": lambda: dict(weigh=weigh.relu()),
        "sparsemax": lambda: dict(weigh=weigh.sparsemax()),
        "entmax": lambda: dict(weigh=weigh.entmax(torch.full((1,), 1.2, requires_grad=True))),
        "top": lambda: dict(weigh=weigh.top(8)),
        "argmax": lambda: dict(weigh=weigh.argmax()),
        "sinkhorn": lambda: dict(weigh=weigh.sinkhorn(2)),
    }[name]()


def question(name: str, n: int) -> Callable[[str], None]:
    """Forward and backward, or a look at the weights."""
    inputs = [torch.randn(1, 1, n, WIDTH, generator=torch.Generator().manual_seed(s)) for s in range(3)]
    if name == "measure":
        measures = (measure.entropy, measure.received, measure.top(4), measure.pool(64, 64))
        return lambda engine: regard.attend(*inputs, engine=engine).weights.measure(*measures)
    if name == "forward":
        return lambda engine: regard.attention(*inputs, engine=engine)
    q, k, v = (x.requires_grad_() for x in inputs)
    q = q[:, :, : n // 4] if name in SLOW else q

    def run(engine: str) -> None:
        regard.attention(q, k, v, engine=engine, **options(name, n)).sum().backward()

    return run


def resident_peak() -> int:
    """The largest resident memory in bytes, since the last `forget_peak` where the system allows it."""
    try:
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))
    except OSError:
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def forget_peak() -> None:
    try:
        with open("/proc/self/clear_refs", "w") as switch:
            switch.write("5")
    except OSError:
        pass  # then the peak is that of the whole process: larger, never smaller


def main(engine: str, names: str, length: str) -> None:
    n = int(length)
    found = {}
    for name in names.split(","):
        try:
            question(name, 256)(engine)  # threads, kernels and buffers of fixed size come alive here
        except regard.errors.EngineError:
            continue  # this engine declines
        ask = question(name, n)
        forget_peak()
        before = resident_peak()
        ask(engine)
        found[name] = resident_peak() - before
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
