"""Long sequences, one case per process; prints memory, time and errors as JSON.

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
from regard import mask, measure, normalizer
from tests.laws.peak_memory import peak_rss_bytes, reset_peak_rss

HEAD_DIM = 64


def inputs(n: int) -> list[Tensor]:
    return [torch.randn(1, 1, n, HEAD_DIM, generator=torch.Generator().manual_seed(s)) for s in range(3)]


def measure_run(warm_up: Callable[[], object], work: Callable[[], object]) -> dict[str, float]:
    """Return the memory and time of `work`, after `warm_up` has created threads and buffers of fixed size."""
    warm_up()
    reset_peak_rss()
    before, start = peak_rss_bytes(), time.monotonic()
    work()
    return {"bytes": peak_rss_bytes() - before, "seconds": time.monotonic() - start}


def forward_and_backward(n: int) -> dict[str, float]:
    """Run both passes over all pairs; compare some rows with float64."""

    def run(leaves: list[Tensor]) -> Tensor:
        output = regard.attention(*leaves)
        output.backward(torch.ones_like(output))
        return output

    leaves = [x.requires_grad_() for x in inputs(n)]
    outputs: list[Tensor] = []
    result = measure_run(
        lambda: run([x.requires_grad_() for x in inputs(1024)]), lambda: outputs.append(run(leaves).detach())
    )
    q, k, v = (x.detach()[0, 0].double() for x in leaves)
    errors_forward, errors_backward = [], []
    for i in (0, n // 3, n - 1):
        scores = k @ q[i] / math.sqrt(HEAD_DIM)
        weights = torch.softmax(scores, 0)
        d_weights = v.sum(1)  # the gradient of the output is 1 everywhere
        d_scores = weights * (d_weights - weights @ d_weights)
        errors_forward.append(float((outputs[0][0, 0, i] - weights @ v).abs().max()))
        errors_backward.append(float((leaves[0].grad[0, 0, i] - d_scores @ k / math.sqrt(HEAD_DIM)).abs().max()))
    return result | {"error": max(errors_forward), "gradient_error": max(errors_backward)}


def windowed(n: int) -> dict[str, float]:
    """Compare the work of the plan at half and full length, and some rows of the output with float64."""
    plan_work(64)  # fills caches
    half, full = plan_work(n // 2), plan_work(n)
    x = inputs(n)
    output = regard.attention(*x, mask=mask.causal() & mask.sliding_window(256))
    q, k, v = (t[0, 0].double() for t in x)
    errors = []
    for i in (0, 300, n // 3, n - 1):
        visible = slice(max(0, i - 255), i + 1)
        weights = torch.softmax(k[visible] @ q[i] / math.sqrt(HEAD_DIM), 0)
        errors.append(float((output[0, 0, i] - weights @ v[visible]).abs().max()))
    return {
        "visited": full["visited"],
        "visited_at_half_length": half["visited"],
        "calls": full["calls"],
        "calls_at_half_length": half["calls"],
        "error": max(errors),
    }


def plan_work(n: int) -> dict[str, int]:
    """Return the pairs that a new plan visits and the number of function calls of planning."""
    calls = 0

    def count(*event: object) -> None:
        nonlocal calls
        calls += 1

    sys.setprofile(count)
    plan = regard.explain((n, HEAD_DIM), (n, HEAD_DIM), (n, HEAD_DIM), mask=mask.causal() & mask.sliding_window(256))
    sys.setprofile(None)
    return {"visited": plan.cost.visited_pairs, "calls": calls}


def measures(n: int) -> dict[str, float]:
    def run(x: list[Tensor]) -> measure.Measurements:
        measures = (measure.entropy, measure.column_mass, measure.topk(8), measure.pooled_map(512, 512))
        return regard.attention_with_weights(*x).weights.measure(*measures)

    x = inputs(n)
    outputs: list[measure.Measurements] = []
    result = measure_run(lambda: run(inputs(1024)), lambda: outputs.append(run(x)))
    (entropy, column_mass, topk, pooled_map) = outputs[0]
    q, k, _ = (t[0, 0].double() for t in x)
    i = n // 3
    weights = torch.softmax(k @ q[i] / math.sqrt(HEAD_DIM), 0)
    return result | {
        "error": max(
            abs(float(entropy[0, 0, i] - torch.special.entr(weights).sum())),
            abs(float(column_mass.sum()) / n - 1.0),
            abs(float(topk.values[0, 0, i].sum() - weights.topk(8).values.sum())),
            abs(float(pooled_map.mean.double().mean()) * n - 1.0),
        )
    }


def second_order(n: int) -> dict[str, float]:
    """Compute the gradient of the squared gradient of causal attention."""

    def run(leaves: list[Tensor]) -> None:
        output = regard.attention(*leaves, mask=mask.causal())
        first = torch.autograd.grad(output.square().sum(), leaves, create_graph=True)
        torch.autograd.grad(sum(g.square().sum() for g in first), leaves)

    leaves = [x.requires_grad_() for x in inputs(n)]
    return measure_run(lambda: run([x.requires_grad_() for x in inputs(1024)]), lambda: run(leaves))


def entmax(n: int, alpha: float, equal: bool) -> dict[str, float]:
    """Run both passes of entmax, which has a threshold per row; compare some rows with bisection in float64."""
    entmax_normalizer = normalizer.entmax(alpha)

    def run(leaves: list[Tensor]) -> Tensor:
        output = regard.attention(*leaves, normalizer=entmax_normalizer)
        output.backward(torch.ones_like(output))
        return output

    leaves = [(x * 0.0 if equal and index == 0 else x).requires_grad_() for index, x in enumerate(inputs(n))]
    outputs: list[Tensor] = []
    result = measure_run(
        lambda: run([x.requires_grad_() for x in inputs(1024)]), lambda: outputs.append(run(leaves).detach())
    )
    q, k, v = (x.detach()[0, 0].double() for x in leaves)
    errors_forward, errors_backward = [], []
    for i in (0, n // 3, n - 1):
        z = (alpha - 1) * (k @ q[i]) / math.sqrt(HEAD_DIM)
        low, high = float(z.max()) - 1, float(z.max())
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if (z - middle).clamp(min=0).pow(1 / (alpha - 1)).sum() > 1 else (low, middle)
        weights = (z - low).clamp(min=0).pow(1 / (alpha - 1))
        slopes = weights.pow(2 - alpha)
        d_weights = v.sum(1)  # the gradient of the output is 1 everywhere
        d_scores = slopes * (d_weights - slopes @ d_weights / slopes.sum())
        errors_forward.append(float((outputs[0][0, 0, i] - weights @ v).abs().max()))
        expected = d_scores @ k / math.sqrt(HEAD_DIM)
        errors_backward.append(float((leaves[0].grad[0, 0, i] - expected).abs().max() / expected.abs().max()))
    return result | {"error": max(errors_forward), "relative_gradient_error": max(errors_backward)}


def sinkhorn(n: int) -> dict[str, float]:
    """Run Sinkhorn with three iterations; column sums near 1 keep the mean of the outputs at the mean of the values."""
    sinkhorn_normalizer = normalizer.sinkhorn(3)
    q, k, v = inputs(n)
    outputs: list[Tensor] = []
    result = measure_run(
        lambda: regard.attention(*inputs(1024), normalizer=sinkhorn_normalizer),
        lambda: outputs.append(regard.attention(q, k, v, normalizer=sinkhorn_normalizer)),
    )
    softmax = regard.attention(q, k, v)
    differences = [float((x.double().mean(2) - v.double().mean(2)).abs().max()) for x in (outputs[0], softmax)]
    return result | {"mean_difference": differences[0], "mean_difference_of_softmax": differences[1]}


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
