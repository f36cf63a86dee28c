"""Random calls on every backend that supports them, against the direct formula in float64.

Outputs, gradients, weights and measures may be off by twice as much as the direct formula in the precision of the call
(additive: four times), plus some units in the last place, because one rounding decides a result of few numbers.
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
from .random_calls import Call, random_call, rms

BACKENDS = ("native", "tiled", "reference", "flex")
EXHAUSTIVE, SAMPLE = 3_000, 300  # numbers of calls
NUM_PARTS = 30  # a failure of the exhaustive sweep names its part
ULPS = 24  # units in the last place, times the size of the scores: rounding s changes exp(s) by that


class Expected:
    """The exact results of a call, and the error of the direct formula in the precision of the call."""

    def __init__(self, call: Call) -> None:
        self.call, self.tensors, self.dropout_mask = call, call.leaves(), random_calls.dropout_factors(call)
        exact = self._result(self.tensors, torch.float64)
        self.stable = self._stable_rows(exact.weights)
        generator = torch.Generator().manual_seed(call.seed)
        output_grad = torch.randn(exact.output.shape, generator=generator, dtype=torch.float64)
        self.output_grad = (output_grad * self.stable.unsqueeze(-1)).to(call.dtype)
        self.exact, self.weights = self._parts(torch.float64)
        self.rough, rough_weights = self._parts(call.dtype)
        self.rough_weights = float((rough_weights - self.weights).abs().max()) if self.weights.numel() else 0.0
        finite = exact.lse[exact.lse.isfinite()]
        self.size = 1.0 + float(finite.abs().max()) if len(finite) else 1.0
        sums = torch.float64 if call.dtype == torch.float64 else torch.float32
        # a call in float64 is compared with the same formula, so its error is not measured
        self.unit = torch.finfo(sums).eps * self.size * ULPS * (32 if sums == torch.float64 else 1)
        self.times = 4.0 if call.score.name == "additive" else 2.0

    def _result(self, tensors: list[Tensor], dtype: torch.dtype) -> Any:
        return self.call.formula(tensors, dtype, self.dropout_mask)

    def _parts(self, dtype: torch.dtype) -> tuple[list[Tensor], Tensor]:
        """Return the output of the stable rows with the gradients of all tensors, and the weights."""
        leaves = [x.detach().to(dtype).requires_grad_() for x in self.tensors]
        result = self._result(leaves, dtype)
        grads = torch.autograd.grad(result.output, leaves, self.output_grad.to(dtype), allow_unused=True)
        grads = [torch.zeros_like(x) if g is None else g for x, g in zip(leaves, grads, strict=True)]
        output = result.output.detach() * self.stable.unsqueeze(-1)
        return [x.detach().double() for x in (output, *grads)], result.weights.detach().double()

    def _stable_rows(self, weights: Tensor) -> Tensor:
        """Return the rows whose set of keys with nonzero weight does not depend on the rounding of scores."""
        stable = torch.ones(weights.shape[:3], dtype=torch.bool)
        if self.call.normalizer.name in ("softmax", "sink", "sigmoid", "kernel"):
            return stable
        rounded = self._result(self.tensors, torch.float32).weights
        stable &= ((rounded > 0) == (weights > 0)).all(-1)
        for seed in range(1, 4):
            moved = self.call.formula(self.tensors, torch.float64, self.dropout_mask, noise=seed).weights
            stable &= ((moved > 0) == (weights > 0)).all(-1)
        return stable


def faults(call: Call) -> list[str]:
    """Return a message for each result of a call that is not exact enough."""
    expected = Expected(call)
    messages = []
    for backend in BACKENDS:
        if backend == "flex" and call.seed % 8:
            continue  # it takes about 100 ms on the CPU
        try:
            messages += [f"{call}\n    {backend}: {fault}" for fault in _faults_on(backend, call, expected)]
        except regard.errors.BackendError:
            continue
    return messages


def _faults_on(backend: str, call: Call, expected: Expected) -> list[str]:
    leaves = [x.detach().requires_grad_() for x in expected.tensors]
    rows = [call.to_layout(x) for x in leaves[:3]]
    options = call.options(leaves[3:])
    result = regard.attention_with_weights(*rows, backend=backend, **options)
    output = result.output.reshape(expected.output_grad.shape)
    grads = torch.autograd.grad(output, leaves, expected.output_grad, allow_unused=True)
    grads = [torch.zeros_like(x) if g is None else g for x, g in zip(leaves, grads, strict=True)]
    names = ["output", "dq", "dk", "dv", *(f"d captured {n}" for n in range(len(leaves) - 3))]
    messages = []
    for name, got, exact, rough in zip(
        names, [output * expected.stable.unsqueeze(-1), *grads], expected.exact, expected.rough, strict=True
    ):
        problem = _difference_message(got.detach().double(), exact, rough, expected, call.dtype)
        if problem:
            messages.append(f"{name} {problem}")
    return messages + _faults_of_weights(call, result, expected)


def _difference_message(
    output: Tensor, exact: Tensor, rough: Tensor, expected: Expected, dtype: torch.dtype
) -> str | None:
    if not output.numel():
        return None
    if not bool(output.isfinite().all()):
        return None if not bool(exact.isfinite().all()) else "is not finite"
    largest = float(exact.abs().max())
    error, formula_error = rms(output - exact), rms((rough - exact).nan_to_num(math.inf))
    allowed = (
        expected.times * formula_error + (expected.unit + torch.finfo(dtype).eps) * largest + _tiny(expected, dtype)
    )
    return (
        None
        if error <= allowed
        else f"is off by {error:.2g}, the direct formula by {formula_error:.2g}, of {largest:.2g}"
    )


def _tiny(expected: Expected, dtype: torch.dtype) -> float:
    """Return a bound of the rounding of terms that cancel: the gradient times a value times a key or query."""
    q, k, v, *captured = (float(x.double().abs().max()) if x.numel() else 0.0 for x in expected.tensors)
    output_grad = float(expected.output_grad.double().abs().max()) if expected.output_grad.numel() else 0.0
    lengths = max(1, expected.call.problem.n_q, expected.call.problem.n_k)
    terms = output_grad * max(v, *captured, 0.0) * max(q, k, *captured, 1.0) * lengths  # of a sum, or times a distance
    return 8 * expected.unit / (ULPS * expected.size) * terms + torch.finfo(dtype).tiny


def _faults_of_weights(call: Call, result: Any, expected: Expected) -> list[str]:
    shape = result.weights.shape
    if not math.prod(shape):
        return []
    stable = expected.stable.unsqueeze(-1)
    exact = (expected.weights * stable).reshape(shape)
    counts = stable.expand(expected.weights.shape).reshape(shape)
    bound = expected.times * expected.rough_weights + expected.unit * max(1.0, float(exact.max()))
    bound = min(bound, 1e-2 * max(1.0, float(exact.max()))) if call.dtype.itemsize == 2 else bound
    messages = []
    r = random.Random(call.seed)
    for _ in range(4):
        index = [_index(r, size) for size in shape]
        got = result.weights[tuple(index)].detach().double()
        reference, included = _select(exact, index), _select(counts, index)
        if got.shape != reference.shape:
            messages.append(f"weights[{index}] has shape {tuple(got.shape)}, not {tuple(reference.shape)}")
        elif got.numel() and not float((got * included - reference).abs().max()) <= bound:
            off = float((got * included - reference).abs().max())
            messages.append(f"weights[{index}] is off by {off:.2g}, allowed {bound:.2g}")
    return messages + ([] if not bool(expected.stable.all()) else _faults_of_measures(result, expected, bound))


def _faults_of_measures(result: Any, expected: Expected, bound: float) -> list[str]:
    weights = expected.weights
    n_q, n_k = weights.shape[2:]
    query_offset = expected.call.query_offset
    offset = torch.as_tensor(n_k - n_q if query_offset is None else query_offset).reshape(-1, 1, 1, 1)
    p, j = offset + torch.arange(n_q).view(-1, 1), torch.arange(n_k)
    mass = weights.sum(-1)
    near = (torch.arange(n_q).view(-1, 1) - j) % 2 == 0
    even = measure.mass(mask.from_function(lambda b, h, i, j: (i - j) % 2 == 0))
    by_row = (measure.entropy, measure.topk(2), even, measure.distance)
    got = result.weights.measure(*by_row, measure.column_mass, measure.diagonals)
    distance = (weights * (p - j).abs()).sum(-1)
    reference = {
        "entropy": torch.special.entr(weights).sum(-1),
        "column_mass": weights.sum(-2),
        "topk": weights.topk(min(2, n_k), -1).values,
        "mass": (weights * near).sum(-1),
        "distance": torch.where(mass > 0, distance / torch.where(mass > 0, mass, 1.0), 0.0),
        "diagonals": torch.stack([weights.diagonal(o, -2, -1).sum(-1) for o in range(-n_q + 1, n_k)], -1),
    }
    messages = []
    for name, values in reference.items():
        output = getattr(got, name)
        output = output.values[..., : values.shape[-1]] if name == "topk" else output
        off = (output.double().reshape(values.shape) - values).abs()
        # a sum of n numbers adds their errors; x log x and x |p - j| / sum x amplify them
        factor = {"entropy": 1 + abs(math.log(max(bound, 1e-300))), "distance": float(n_q + n_k + offset.abs().max())}
        allowed = bound * max(n_q, n_k) * factor.get(name, 1.0)
        if name == "distance":  # a quotient: rounding matters more for rows with a small sum
            off = off * mass.clamp(max=1.0)
        if not float(off.max()) <= allowed:
            messages.append(f"measure {name} is off by {float(off.max()):.2g}, allowed {allowed:.2g}")
    return messages


def _index(r: random.Random, size: int) -> Any:
    """Return an integer, a slice with any step, a list in any order, or a list of booleans."""
    kind = r.choice(["int", "all", "slice", "back", "list", "bool"])
    if kind == "int":
        return r.randrange(-size, size)
    if kind == "slice":
        return slice(r.randrange(size), None, r.choice([1, 2]))
    if kind == "back":
        return slice(None, None, -1)
    if kind == "list":
        return [r.randrange(-size, size) for _ in range(r.choice([1, 2, size]))]
    if kind == "bool":
        return [r.random() < 0.6 for _ in range(size)]
    return slice(None)


def _select(x: Tensor, index: list[Any]) -> Tensor:
    """Apply each index to its own dimension."""
    dim = 0
    for entry in index:
        size = x.shape[dim]
        if isinstance(entry, int):
            x = x.select(dim, entry % size)
            continue
        if isinstance(entry, slice):
            indices = list(range(*entry.indices(size)))
        elif entry and isinstance(entry[0], bool):
            indices = [n for n, selected in enumerate(entry) if selected]
        else:
            indices = [n % size for n in entry]
        x = x.index_select(dim, torch.tensor(indices, dtype=torch.int64))
        dim += 1
    return x


def all_faults(seeds: range) -> list[str]:
    return [fault for seed in seeds for fault in faults(random_call(seed))]


@pytest.mark.long
@pytest.mark.parametrize("part", range(3))
def test_a_sample_of_random_calls_is_as_exact_as_the_direct_formula(part: int) -> None:
    messages = all_faults(range(part * SAMPLE // 3, (part + 1) * SAMPLE // 3))

    assert not messages, "\n".join(messages)


@pytest.mark.exhaustive
@pytest.mark.parametrize("part", range(NUM_PARTS))
def test_every_random_call_is_as_exact_as_the_direct_formula(part: int) -> None:
    messages = all_faults(range(part * EXHAUSTIVE // NUM_PARTS, (part + 1) * EXHAUSTIVE // NUM_PARTS))

    assert not messages, "\n".join(messages)
