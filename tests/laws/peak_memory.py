"""A program that measures the memory of calls beyond their inputs, in a separate process.

python peak_memory.py BACKEND CASE,CASE... LENGTH   ->   {"CASE": bytes, ...}
"""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Callable
from typing import Any

import torch

import regard
from regard import mask, measure, normalizer, score

HEAD_DIM = 32
SLOW = ("additive", "sparsemax", "entmax")  # run with a quarter of the queries


def options(name: str, n: int) -> dict[str, Any]:
    table = torch.zeros(2 * n).requires_grad_()
    generator = torch.Generator().manual_seed(0)
    weights = [
        torch.randn(*shape, generator=generator).requires_grad_() for shape in [(HEAD_DIM, 8), (HEAD_DIM, 8), (8,)]
    ]
    return {
        "plain": dict,
        "causal": lambda: dict(mask=mask.causal()),
        "window": lambda: dict(mask=mask.causal() & mask.sliding_window(256)),
        "function": lambda: dict(mask=lambda b, h, i, j: (i * 3 + j) % 5 != 0),
        "table": lambda: dict(score=lambda s, b, h, i, j: s + table[i - j + n]),
        "keys": lambda: dict(score=score.bias(table[:n]), mask=table[None, :n] == 0),
        "gaussian": lambda: dict(score=score.gaussian(3.0)),
        "additive": lambda: dict(score=score.additive(*weights)),
        "custom": lambda: dict(score=score.custom(lambda q, k: (q @ k.mT) / 8)),
        "dropout": lambda: dict(dropout=0.1, seed=1),
        "sink": lambda: dict(normalizer=normalizer.sink(torch.zeros(1, requires_grad=True))),
        "sigmoid": lambda: dict(normalizer=normalizer.sigmoid(-5.0)),
        "relu": lambda: dict(normalizer=normalizer.relu()),
        "sparsemax": lambda: dict(normalizer=normalizer.sparsemax()),
        "entmax": lambda: dict(normalizer=normalizer.entmax(torch.full((1,), 1.2, requires_grad=True))),
        "topk": lambda: dict(normalizer=normalizer.topk(8)),
        "hardmax": lambda: dict(normalizer=normalizer.hardmax()),
        "sinkhorn": lambda: dict(normalizer=normalizer.sinkhorn(2)),
    }[name]()


def make_call(name: str, n: int) -> Callable[[str], None]:
    """Return a call as a function of the backend: forward and backward, forward only, or measures of the weights."""
    inputs = [torch.randn(1, 1, n, HEAD_DIM, generator=torch.Generator().manual_seed(s)) for s in range(3)]
    if name == "measure":
        measures = (measure.entropy, measure.column_mass, measure.topk(4), measure.pooled_map(64, 64))
        return lambda backend: regard.attention_with_weights(*inputs, backend=backend).weights.measure(*measures)
    if name == "forward":
        return lambda backend: regard.attention(*inputs, backend=backend)
    q, k, v = (x.requires_grad_() for x in inputs)
    q = q[:, :, : n // 4] if name in SLOW else q

    def run(backend: str) -> None:
        regard.attention(q, k, v, backend=backend, **options(name, n)).sum().backward()

    return run


def peak_rss_bytes() -> int:
    """Return the peak resident memory in bytes, since the last `reset_peak_rss` if the system supports that."""
    try:
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))
    except OSError:
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def reset_peak_rss() -> None:
    try:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
    except OSError:
        pass  # then the peak is that of the whole process, which is larger


def main(backend: str, names: str, length: str) -> None:
    n = int(length)
    peaks = {}
    for name in names.split(","):
        try:
            make_call(name, 256)(backend)  # allocates threads, kernels and buffers of fixed size
        except regard.errors.BackendError:
            continue  # the backend does not support the call
        call = make_call(name, n)
        reset_peak_rss()
        before = peak_rss_bytes()
        call(backend)
        peaks[name] = peak_rss_bytes() - before
    print(json.dumps(peaks))


if __name__ == "__main__":
    main(*sys.argv[1:])
