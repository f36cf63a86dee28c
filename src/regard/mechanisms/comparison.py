"""Compare two kinds of attention on the same inputs: differences of outputs and weights, time and memory."""

import ctypes
import gc
import inspect
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import torch
from torch import Tensor

from regard.argument_types import UNCHECKED, check_signature, check_types
from regard.attention import AttentionOptions, attention, attention_with_weights
from regard.errors import ArgumentError
from regard.measure import pooled_map
from regard.plan.report import format_bytes, format_seconds
from regard.result import AttentionResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_CHUNK_WEIGHTS = 2**22  # bounds the memory of the comparison of weights
ATTENTION_OPTIONS = tuple(inspect.signature(attention).parameters)[3:]
MAX_ROUNDS = 1000
MAP_SIZE = 96  # rows and columns of the pooled maps for the picture


@dataclass(frozen=True, eq=False)
class RunStats:
    """Measurements of one side: best time, extra memory (None if unknown), a pooled map of its weights."""

    name: str
    seconds: float
    memory_bytes: int | None
    weight_map: Tensor | None


@dataclass(frozen=True, eq=False)
class AttentionComparison:
    """The result of `compare`. Errors are those of b relative to a.

    output_error: root mean square of b - a, divided by that of a. max_output_error: the largest |b - a|, divided by the
    same number. output_error_by_query: the output error of each query, (n_q,). weight_error: half the sum of
    |a_ij - b_ij| over a row, as a mean over rows; from 0 to 1 if rows sum to 1. max_weight_error: that of the worst
    row. Both are None unless a and b return weights.
    """

    a: RunStats
    b: RunStats
    output_error: float
    max_output_error: float
    output_error_by_query: Tensor
    weight_error: float | None
    max_weight_error: float | None

    def __str__(self) -> str:
        sides = (self.a, self.b)
        rows = [
            ("", *(side.name for side in sides)),
            ("time", *(format_seconds(side.seconds) for side in sides)),
            (
                "extra memory",
                *("unknown" if side.memory_bytes is None else format_bytes(side.memory_bytes) for side in sides),
            ),
        ]
        width = max(len(row[1]) for row in rows)
        lines = [f"{title:<13} {text_a:<{width}}   {text_b}".rstrip() for title, text_a, text_b in rows]
        lines.append(f"output        relative error {self.output_error:.2g}, at most {self.max_output_error:.2g}")
        if self.weight_error is None:
            lines.append("weights       not returned by both")
        else:
            worst = self.max_weight_error
            lines.append(f"weights       differ by {self.weight_error:.2g} of a row, at most {worst:.2g}")
        return "\n".join(lines)

    def plot(self) -> "Figure":
        """Return a figure with both weight maps (if there are any), the error of each query, time and memory.

        Needs matplotlib: `pip install '.[plot]'` in the repository.
        """
        from regard.plot.comparison_figure import comparison  # imports matplotlib, an optional dependency

        sides = [(side.name, side.weight_map, side.seconds, side.memory_bytes) for side in (self.a, self.b)]
        return comparison(sides[0], sides[1], self.output_error_by_query)


AttentionFunction = Callable[[Tensor, Tensor, Tensor], Any]
AttentionOrOptions = AttentionFunction | Mapping[str, object] | AttentionOptions
ComparedCall: TypeAlias = Annotated[AttentionOrOptions | tuple[str, AttentionOrOptions], UNCHECKED]


@check_types
def compare(
    q: Tensor, k: Tensor, v: Tensor, a: ComparedCall, b: ComparedCall, *, rounds: int = 5
) -> AttentionComparison:
    """Run a and b on the same q, k, v, without gradients, and return the errors of b relative to a.

    a and b are each a mapping of options of `attention`, a function of q, k, v that returns a tensor or an
    `AttentionResult`, or a pair (name, mapping or function). They run alternately `rounds` times (default 5), and the
    best time of each is reported.

    >>> from regard import mask
    >>> q, k, v = torch.randn(3, 1, 2, 64, 16)
    >>> comparison = compare(q, k, v, ("all", {}), ("near", dict(mask=mask.sliding_window(8))))
    >>> comparison.a.name, comparison.weight_error > 0.1
    ('all', True)
    """
    if not 1 <= rounds <= MAX_ROUNDS:
        raise ArgumentError(f"rounds must be from 1 to {MAX_ROUNDS:,}; got {rounds}.")
    with torch.no_grad():
        (name_a, run_a, run_a_with_weights), (name_b, run_b, run_b_with_weights) = (
            _parse_side(side, label) for side, label in ((a, "a"), (b, "b"))
        )
        output_a, output_b = (_output_tensor(run(q, k, v)) for run in (run_a, run_b))
        if output_a.numel() == 0:
            raise ArgumentError(f"the output of a must not be empty; got shape {tuple(output_a.shape)}.")
        if output_a.shape != output_b.shape:
            raise ArgumentError(
                f"a and b must return outputs of the same shape; got {tuple(output_a.shape)} of {name_a} and "
                f"{tuple(output_b.shape)} of {name_b}."
            )
        memory = [_extra_memory_bytes(run, q, k, v) for run in (run_a, run_b)]
        seconds = _best_seconds([run_a, run_b], q, k, v, rounds)
        results = [run(q, k, v) for run in (run_a_with_weights, run_b_with_weights)]
        weights = [result.weights if isinstance(result, AttentionResult) else None for result in results]
        maps = [None if w is None else w.measure(pooled_map(MAP_SIZE, MAP_SIZE)).pooled_map.mean for w in weights]
        stats_a, stats_b = map(RunStats, (name_a, name_b), seconds, memory, maps)
        output_error, max_output_error, error_by_query = _output_errors(output_a, output_b)
        weight_error, max_weight_error = _weight_errors(*weights)
    return AttentionComparison(
        stats_a, stats_b, output_error, max_output_error, error_by_query, weight_error, max_weight_error
    )


def _parse_side(side: Any, label: str) -> tuple[str, AttentionFunction, AttentionFunction]:
    """Return a name, a function for the output, and a function whose result has weights if the side has any."""
    name: str = label
    if isinstance(side, tuple) and len(side) == 2 and isinstance(side[0], str):
        name, side = side
    elif callable(side):
        name = getattr(side, "__name__", label)
    if isinstance(side, Mapping):
        options = dict(side)
        if unknown := [name for name in options if name not in ATTENTION_OPTIONS]:
            raise ArgumentError(f"options of {label} must be among {', '.join(ATTENTION_OPTIONS)}; got {unknown[0]!r}.")
        return (
            name,
            lambda q, k, v: attention(q, k, v, **options),
            lambda q, k, v: attention_with_weights(q, k, v, **options),
        )
    if callable(side):
        check_signature(side, label, "q", "k", "v")
        return name, side, side
    raise ArgumentError(
        f"{label} must be a mapping of options, such as dict(mask=mask.causal()), or a function of q, k, v; got "
        f"{type(side).__name__}."
    )


def _output_tensor(result: Any) -> Tensor:
    output = result.output if isinstance(result, AttentionResult) else result
    if not isinstance(output, Tensor):
        raise ArgumentError(f"a function must return a tensor or an AttentionResult; got {type(result).__name__}.")
    return output


def _output_errors(a: Tensor, b: Tensor) -> tuple[float, float, Tensor]:
    a, b = a.double(), b.double()
    rms = a.square().mean().sqrt().clamp(min=torch.finfo(torch.float64).tiny)
    difference = b - a
    by_query = difference.square().mean(-1).reshape(-1, a.shape[-2]).mean(0).sqrt() / rms
    return float(difference.square().mean().sqrt() / rms), float(difference.abs().max() / rms), by_query


def _weight_errors(a: Any, b: Any) -> tuple[float | None, float | None]:
    """Return the mean and the maximum over rows of half the sum of |a_ij - b_ij|, computed in chunks of rows."""
    if a is None or b is None or a.shape != b.shape:
        return None, None
    *leading, n_q, n_k = a.shape
    step = max(1, MAX_CHUNK_WEIGHTS // max(1, n_k * torch.Size(leading).numel()))
    rows = [
        (a[..., first : first + step, :] - b[..., first : first + step, :]).abs().sum(-1).flatten() / 2.0
        for first in range(0, n_q, step)
    ]
    errors = torch.cat(rows) if rows else torch.zeros(1)
    return float(errors.mean()), float(errors.max())


def _best_seconds(runs: list[AttentionFunction], q: Tensor, k: Tensor, v: Tensor, rounds: int) -> list[float]:
    """Return the best time of each function; they alternate, so that other load slows all of them alike."""
    best = [float("inf")] * len(runs)
    for round_index in range(rounds):
        for i in range(len(runs)) if round_index % 2 else reversed(range(len(runs))):
            begin = time.perf_counter()
            runs[i](q, k, v)
            best[i] = min(best[i], time.perf_counter() - begin)
    return best


PROC_STATUS, PROC_CLEAR_REFS = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def _extra_memory_bytes(run: AttentionFunction, q: Tensor, k: Tensor, v: Tensor) -> int | None:
    """Return the bytes by which one call raises the resident memory, beyond its output; None except on Linux."""
    if q.device.type != "cpu" or not PROC_CLEAR_REFS.exists():
        return None
    gc.collect()
    try:
        ctypes.CDLL(None).malloc_trim(0)  # memory freed earlier would be reused without raising the peak
    except AttributeError:
        return None
    PROC_CLEAR_REFS.write_text("5")
    before = _resident_bytes("VmRSS")
    output = _output_tensor(run(q, k, v))
    return max(0, _resident_bytes("VmHWM") - before - output.nbytes)


def _resident_bytes(field_name: str) -> int:
    return next(
        int(row.split()[1]) * 1024 for row in PROC_STATUS.read_text().splitlines() if row.startswith(field_name)
    )
