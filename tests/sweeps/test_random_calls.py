"""Random calls on every engine that takes them, against the direct formula in float64.

Outputs, gradients, weights and measures may be off by twice as much as the direct formula in the precision of the call
(additive: four times), plus some units in the last place: of a few numbers one rounding decides.
"""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
import torch
from torch import Tensor

import regard
from regard import mask, measure

from . import random_calls
from .random_calls import Call, draw, spread_of

ENGINES = ("native", "tiled", "reference", "fused")
WHOLE, SAMPLE = 3_000, 300
PIECES = 30  # of the whole sweep, so that a failure names its part
ULPS = 24  # units in the last place, times the size of the scores: rounding s changes exp(s) by that


class Expected:
    """What a call must give, and how far the direct formula of the call's precision is from that."""

    def __init__(self, call: Call) -> None:
        self.call, self.tensors, self.kept = call, call.leaves(), random_calls.kept_pattern(call)
        exact = self._answer(self.tensors, torch.float64)
        self.sure = self._sure_rows(exact.weights)
        numbers = torch.Generator().manual_seed(call.seed)
        pull = torch.randn(exact.output.shape, generator=numbers, dtype=torch.float64)
        self.pull = (pull * self.sure.unsqueeze(-1)).to(call.dtype)
        self.exact, self.weights = self._parts(torch.float64)
        self.rough, rough_weights = self._parts(call.dtype)
        self.rough_weights = float((rough_weights - self.weights).abs().max()) if self.weights.numel() else 0.0
        finite = exact.lse[exact.lse.isfinite()]
        self.size = 1.0 + float(finite.abs().max()) if len(finite) else 1.0
        sums = torch.float64 if call.dtype == torch.float64 else torch.float32
        # in float64 the direct formula is what is compared with, so that its own error is not seen
        self.unit = torch.finfo(sums).eps * self.size * ULPS * (32 if sums == torch.float64 else 1)
        self.times = 4.0 if call.score.name == "additive" else 2.0

    def _answer(self, tensors: list[Tensor], dtype: torch.dtype) -> Any:
        return self.call.formula(tensors, dtype, self.kept)

    def _parts(self, dtype: torch.dtype) -> tuple[list[Tensor], Tensor]:
        """The output of the rows that count and the gradients of all tensors; and the weights."""
        leaves = [x.detach().to(dtype).requires_grad_() for x in self.tensors]
        answer = self._answer(leaves, dtype)
        found = torch.autograd.grad(answer.output, leaves, self.pull.to(dtype), allow_unused=True)
        grads = [torch.zeros_like(x) if g is None else g for x, g in zip(leaves, found, strict=True)]
        output = answer.output.detach() * self.sure.unsqueeze(-1)
        return [x.detach().double() for x in (output, *grads)], answer.weights.detach().double()

    def _sure_rows(self, weights: Tensor) -> Tensor:
        """Rows in which the same keys weigh something after scores change a little: others may round to either side."""
        sure = torch.ones(weights.shape[:3], dtype=torch.bool)
        if self.call.normalizer.name in ("softmax", "sink", "sigmoid", "kernel"):
            return sure
        rounded = self._answer(self.tensors, torch.float32).weights
        sure &= ((rounded > 0) == (weights > 0)).all(-1)
        for seed in range(1, 4):
            moved = self.call.formula(self.tensors, torch.float64, self.kept, noise=seed).weights
            sure &= ((moved > 0) == (weights > 0)).all(-1)
        return sure


def faults(call: Call) -> list[str]:
    """All that is wrong with a call, in sentences."""
    expected = Expected(call)
    found = []
    for engine in ENGINES:
        if engine == "fused" and call.seed % 8:
            continue  # on the CPU it takes some 100 ms
        try:
            found += [f"{call}\n    {engine}: {fault}" for fault in _faults_on(engine, call, expected)]
        except regard.errors.EngineError:
            continue
    return found


def _faults_on(engine: str, call: Call, expected: Expected) -> list[str]:
    leaves = [x.detach().requires_grad_() for x in expected.tensors]
    rows = [call.shaped(x) for x in leaves[:3]]
    options = call.options(leaves[3:])
    answer = regard.attend(*rows, engine=engine, **options)
    output = answer.output.reshape(expected.pull.shape)
    grads = torch.autograd.grad(output, leaves, expected.pull, allow_unused=True)
    grads = [torch.zeros_like(x) if g is None else g for x, g in zip(leaves, grads, strict=True)]
    names = ["output", "dq", "dk", "dv", *(f"d captured {n}" for n in range(len(leaves) - 3))]
    found = []
    for name, got, exact, rough in zip(
        names, [output * expected.sure.unsqueeze(-1), *grads], expected.exact, expected.rough, strict=True
    ):
        problem = _too_far(got.detach().double(), exact, rough, expected, call.dtype)
        if problem:
            found.append(f"{name} {problem}")
    return found + _faults_of_weights(call, answer, expected)


def _too_far(got: Tensor, exact: Tensor, rough: Tensor, expected: Expected, dtype: torch.dtype) -> str | None:
    if not got.numel():
        return None
    if not bool(got.isfinite().all()):
        return None if not bool(exact.isfinite().all()) else "is not finite"
    largest = float(exact.abs().max())
    error, other = spread_of(got - exact), spread_of((rough - exact).nan_to_num(math.inf))
    allowed = expected.times * other + (expected.unit + torch.finfo(dtype).eps) * largest + _tiny(expected, dtype)
    return None if error <= allowed else f"is off by {error:.2g}, the direct formula by {other:.2g}, of {largest:.2g}"


def _tiny(expected: Expected, dtype: torch.dtype) -> float:
    """The rounding of terms that cancel: products of the gradient, a value, and a key or query."""
    q, k, v, *captured = (float(x.double().abs().max()) if x.numel() else 0.0 for x in expected.tensors)
    pull = float(expected.pull.double().abs().max()) if expected.pull.numel() else 0.0
    lengths = max(1, expected.call.problem.n_q, expected.call.problem.n_k)
    terms = pull * max(v, *captured, 0.0) * max(q, k, *captured, 1.0) * lengths  # of a sum, or times a distance
    return 8 * expected.unit / (ULPS * expected.size) * terms + torch.finfo(dtype).tiny


def _faults_of_weights(call: Call, answer: Any, expected: Expected) -> list[str]:
    shape = answer.weights.shape
    if not math.prod(shape):
        return []
    sure = expected.sure.unsqueeze(-1)
    exact = (expected.weights * sure).reshape(shape)
    counts = sure.expand(expected.weights.shape).reshape(shape)
    bound = expected.times * expected.rough_weights + expected.unit * max(1.0, float(exact.max()))
    bound = min(bound, 1e-2 * max(1.0, float(exact.max()))) if call.dtype.itemsize == 2 else bound
    found = []
    r = random.Random(call.seed)
    for _ in range(4):
        index = [_index(r, size) for size in shape]
        got = answer.weights[tuple(index)].detach().double()
        right, included = _taken(exact, index), _taken(counts, index)
        if got.shape != right.shape:
            found.append(f"weights[{index}] has shape {tuple(got.shape)}, not {tuple(right.shape)}")
        elif got.numel() and not float((got * included - right).abs().max()) <= bound:
            off = float((got * included - right).abs().max())
            found.append(f"weights[{index}] is off by {off:.2g}, allowed {bound:.2g}")
    return found + ([] if not bool(expected.sure.all()) else _faults_of_measures(answer, expected, bound))


def _faults_of_measures(answer: Any, expected: Expected, bound: float) -> list[str]:
    weights = expected.weights
    n_q, n_k = weights.shape[2:]
    start = expected.call.start
    begin = torch.as_tensor(n_k - n_q if start is None else start).reshape(-1, 1, 1, 1)
    p, j = begin + torch.arange(n_q).view(-1, 1), torch.arange(n_k)
    mass = weights.sum(-1)
    near = (torch.arange(n_q).view(-1, 1) - j) % 2 == 0
    even = measure.mass(mask.where(lambda b, h, i, j: (i - j) % 2 == 0))
    by_row = (measure.entropy, measure.top(2), even, measure.distance)
    got = answer.weights.measure(*by_row, measure.received, measure.diagonals)
    distance = (weights * (p - j).abs()).sum(-1)
    right = {
        "entropy": torch.special.entr(weights).sum(-1),
        "received": weights.sum(-2),
        "top": weights.topk(min(2, n_k), -1).values,
        "mass": (weights * near).sum(-1),
        "distance": torch.where(mass > 0, distance / torch.where(mass > 0, mass, 1.0), 0.0),
        "diagonals": torch.stack([weights.diagonal(o, -2, -1).sum(-1) for o in range(-n_q + 1, n_k)], -1),
    }
    found = []
    for name, values in right.items():
        shown = getattr(got, name)
        shown = shown.values[..., : values.shape[-1]] if name == "top" else shown
        off = (shown.double().reshape(values.shape) - values).abs()
        # a sum over n numbers of which each is off; x log x and x |p - j| / sum x are steeper
        steep = {"entropy": 1 + abs(math.log(max(bound, 1e-300))), "distance": float(n_q + n_k + begin.abs().max())}
        allowed = bound * max(n_q, n_k) * steep.get(name, 1.0)
        if name == "distance":  # a quotient: the smaller the row's sum, the more a rounding counts
            off = off * mass.clamp(max=1.0)
        if not float(off.max()) <= allowed:
            found.append(f"measure {name} is off by {float(off.max()):.2g}, allowed {allowed:.2g}")
    return found


def _index(r: random.Random, size: int) -> Any:
    """A whole number, a slice with any step, a list in any order, or truth values."""
    how = r.choice(["int", "all", "slice", "back", "list", "bool"])
    if how == "int":
        return r.randrange(-size, size)
    if how == "slice":
        return slice(r.randrange(size), None, r.choice([1, 2]))
    if how == "back":
        return slice(None, None, -1)
    if how == "list":
        return [r.randrange(-size, size) for _ in range(r.choice([1, 2, size]))]
    if how == "bool":
        return [r.random() < 0.6 for _ in range(size)]
    return slice(None)


def _taken(x: Tensor, index: list[Any]) -> Tensor:
    """Each index acts on its own dimension."""
    dim = 0
    for entry in index:
        size = x.shape[dim]
        if isinstance(entry, int):
            x = x.select(dim, entry % size)
            continue
        if isinstance(entry, slice):
            places = list(range(*entry.indices(size)))
        elif entry and isinstance(entry[0], bool):
            places = [n for n, one in enumerate(entry) if one]
        else:
            places = [n % size for n in entry]
        x = x.index_select(dim, torch.tensor(places, dtype=torch.int64))
        dim += 1
    return x


def all_faults(seeds: range) -> list[str]:
    return [fault for seed in seeds for fault in faults(draw(seed))]


@pytest.mark.long
@pytest.mark.parametrize("part", range(3))
def test_a_sample_of_random_calls_is_as_exact_as_the_direct_formula(part: int) -> None:
    found = all_faults(range(part * SAMPLE // 3, (part + 1) * SAMPLE // 3))

    assert not found, "\n".join(found)


@pytest.mark.exhaustive
@pytest.mark.parametrize("part", range(PIECES))
def test_every_random_call_is_as_exact_as_the_direct_formula(part: int) -> None:
    found = all_faults(range(part * WHOLE // PIECES, (part + 1) * WHOLE // PIECES))

    assert not found, "\n".join(found)
