"""Run as a program: long problems in a process of their own, with memory and time told as JSON.

python -m tests.long.program CASE   ->   {"bytes": ..., "seconds": ..., ...}
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor

import regard
from regard import mask, measure, weigh
from tests.laws.peak import forget_peak, resident_peak

WIDTH = 64


def inputs(n: int) -> list[Tensor]:
    return [torch.randn(1, 1, n, WIDTH, generator=torch.Generator().manual_seed(s)) for s in range(3)]


def measured(warm_up: Callable[[], object], work: Callable[[], object]) -> dict[str, float]:
    """What the work takes beyond what is there already, once threads and buffers of fixed size are alive."""
    warm_up()
    forget_peak()
    before, began = resident_peak(), time.monotonic()
    work()
    return {"bytes": resident_peak() - before, "seconds": time.monotonic() - began}


def forward_and_backward(n: int) -> dict[str, float]:
    """All pairs, in both directions; some rows of the answer are worked out again in float64."""

    def run(leaves: list[Tensor]) -> Tensor:
        output = regard.attention(*leaves)
        output.backward(torch.ones_like(output))
        return output

    leaves = [x.requires_grad_() for x in inputs(n)]
    kept: list[Tensor] = []
    found = measured(lambda: run([x.requires_grad_() for x in inputs(1024)]), lambda: kept.append(run(leaves).detach()))
    q, k, v = (x.detach()[0, 0].double() for x in leaves)
    errors_forward, errors_backward = [], []
    for i in (0, n // 3, n - 1):
        scores = k @ q[i] / math.sqrt(WIDTH)
        weights = torch.softmax(scores, 0)
        of_weights = v.sum(1)  # the gradient that arrives is 1 everywhere
        of_scores = weights * (of_weights - weights @ of_weights)
        errors_forward.append(float((kept[0][0, 0, i] - weights @ v).abs().max()))
        errors_backward.append(float((leaves[0].grad[0, 0, i] - of_scores @ k / math.sqrt(WIDTH)).abs().max()))
    return found | {"error": max(errors_forward), "gradient_error": max(errors_backward)}


def windowed(n: int) -> dict[str, float]:
    """The plan's work at half the length and at the whole length, and some rows of the answer worked out again."""
    planned(64)  # what is done once
    half, whole = planned(n // 2), planned(n)
    x = inputs(n)
    output = regard.attention(*x, mask=mask.causal() & mask.window(256))
    q, k, v = (t[0, 0].double() for t in x)
    errors = []
    for i in (0, 300, n // 3, n - 1):
        near = slice(max(0, i - 255), i + 1)
        weights = torch.softmax(k[near] @ q[i] / math.sqrt(WIDTH), 0)
        errors.append(float((output[0, 0, i] - weights @ v[near]).abs().max()))
    return {
        "visited": whole["visited"],
        "visited_of_half": half["visited"],
        "calls": whole["calls"],
        "calls_of_half": half["calls"],
        "error": max(errors),
    }


def planned(n: int) -> dict[str, int]:
    """A plan whose mask nobody has asked about yet: the pairs it visits, and the calls of functions it took."""
    calls = 0

    def count(*event: object) -> None:
        nonlocal calls
        calls += 1

    sys.setprofile(count)
    plan = regard.explain((n, WIDTH), (n, WIDTH), (n, WIDTH), mask=mask.causal() & mask.window(256))
    sys.setprofile(None)
    return {"visited": plan.cost.visited, "calls": calls}


def measures(n: int) -> dict[str, float]:
    def run(x: list[Tensor]) -> measure.Measured:
        wanted = (measure.entropy, measure.received, measure.top(8), measure.pool(512, 512))
        return regard.attend(*x).weights.measure(*wanted)

    x = inputs(n)
    kept: list[measure.Measured] = []
    found = measured(lambda: run(inputs(1024)), lambda: kept.append(run(x)))
    (entropy, received, top, pool) = kept[0]
    q, k, _ = (t[0, 0].double() for t in x)
    i = n // 3
    weights = torch.softmax(k @ q[i] / math.sqrt(WIDTH), 0)
    return found | {
        "error": max(
            abs(float(entropy[0, 0, i] - torch.special.entr(weights).sum())),
            abs(float(received.sum()) / n - 1.0),
            abs(float(top.values[0, 0, i].sum() - weights.topk(8).values.sum())),
            abs(float(pool.mean.double().mean()) * n - 1.0),
        )
    }


def second_order(n: int) -> dict[str, float]:
    """The gradient of a gradient's square, causal."""

    def run(leaves: list[Tensor]) -> None:
        output = regard.attention(*leaves, mask=mask.causal())
        first = torch.autograd.grad(output.square().sum(), leaves, create_graph=True)
        torch.autograd.grad(sum(g.square().sum() for g in first), leaves)

    leaves = [x.requires_grad_() for x in inputs(n)]
    return measured(lambda: run([x.requires_grad_() for x in inputs(1024)]), lambda: run(leaves))


def entmax(n: int, alpha: float, equal: bool) -> dict[str, float]:
    """Forward and backward with a level to be found for each row; some rows are worked out again by bisection."""
    weighing = weigh.entmax(alpha)

    def run(leaves: list[Tensor]) -> Tensor:
        output = regard.attention(*leaves, weigh=weighing)
        output.backward(torch.ones_like(output))
        return output

    leaves = [(x * 0.0 if equal and place == 0 else x).requires_grad_() for place, x in enumerate(inputs(n))]
    kept: list[Tensor] = []
    found = measured(lambda: run([x.requires_grad_() for x in inputs(1024)]), lambda: kept.append(run(leaves).detach()))
    q, k, v = (x.detach()[0, 0].double() for x in leaves)
    errors_forward, errors_backward = [], []
    for i in (0, n // 3, n - 1):
        z = (alpha - 1) * (k @ q[i]) / math.sqrt(WIDTH)
        low, high = float(z.max()) - 1, float(z.max())
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if (z - middle).clamp(min=0).pow(1 / (alpha - 1)).sum() > 1 else (low, middle)
        weights = (z - low).clamp(min=0).pow(1 / (alpha - 1))
        slopes = weights.pow(2 - alpha)
        of_weights = v.sum(1)  # the gradient that arrives is 1 everywhere
        of_scores = slopes * (of_weights - slopes @ of_weights / slopes.sum())
        errors_forward.append(float((kept[0][0, 0, i] - weights @ v).abs().max()))
        expected = of_scores @ k / math.sqrt(WIDTH)
        errors_backward.append(float((leaves[0].grad[0, 0, i] - expected).abs().max() / expected.abs().max()))
    return found | {"error": max(errors_forward), "relative_gradient_error": max(errors_backward)}


def sinkhorn(n: int) -> dict[str, float]:
    """Forward, three passes over the rows and two over the columns; what keys receive is told by a row of ones."""
    weighing = weigh.sinkhorn(3)
    q, k, v = inputs(n)
    kept: list[Tensor] = []
    found = measured(
        lambda: regard.attention(*inputs(1024), weigh=weighing),
        lambda: kept.append(regard.attention(q, k, v, weigh=weighing)),
    )
    softmax = regard.attention(q, k, v)
    # every key receives nearly 1, so the mean of the answers is nearly that of the values
    strays = [float((x.double().mean(2) - v.double().mean(2)).abs().max()) for x in (kept[0], softmax)]
    return found | {"stray": strays[0], "stray_of_softmax": strays[1]}


CASES: dict[str, Callable[[], dict[str, float]]] = {
    "forward and backward": lambda: forward_and_backward(65_536),
    "entmax near softmax": lambda: entmax(65_536, 1.05, equal=False),
    "entmax of equal scores": lambda: entmax(65_536, 1.5, equal=True),
    "sinkhorn": lambda: sinkhorn(65_536),
    "windowed": lambda: windowed(262_144),
    "measures": lambda: measures(32_768),
    "second order": lambda: second_order(8_192),
}

if __name__ == "__main__":
    print(json.dumps(CASES[sys.argv[1]]()))
