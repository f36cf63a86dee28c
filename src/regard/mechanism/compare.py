"""Two attentions side by side: how far apart their answers and their weights lie, and what each of them takes."""

import ctypes
import gc
import inspect
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from regard.argument_types import check_signature, check_types
from regard.attention import attend, attention
from regard.errors import SpecError
from regard.measure import pool
from regard.plan.report import in_bytes, in_seconds
from regard.result import Attended

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROWS = 2**22  # weights at a time
OPTIONS = tuple(inspect.signature(attention).parameters)[3:]
MAX_ROUNDS = 1000
CELLS = 96  # a side, of the maps that are kept for a picture


@dataclass(frozen=True, eq=False)
class Side:
    """One of the two: its best time, its extra memory (None where the system does not tell), a map of its weights."""

    name: str
    seconds: float
    memory: int | None
    map: Tensor | None


@dataclass(frozen=True, eq=False)
class Comparison:
    """What `compare` found. Errors are those of b, measured by a.

    output_error: root mean square of b - a over that of a; largest_error: the largest |b - a| over the same;
    by_query: the first of these for each query (n_q,). weight_error: how much weight of a row lies on other keys, on
    average (half the sum of |a_ij - b_ij|, 0 to 1 where rows sum to 1); largest_weight_error: of the worst row. The
    last two are None unless both have weights to show.
    """

    a: Side
    b: Side
    output_error: float
    largest_error: float
    by_query: Tensor
    weight_error: float | None
    largest_weight_error: float | None

    def __str__(self) -> str:
        sides = (self.a, self.b)
        rows = [
            ("", *(side.name for side in sides)),
            ("time", *(in_seconds(side.seconds) for side in sides)),
            ("extra memory", *("not known" if side.memory is None else in_bytes(side.memory) for side in sides)),
        ]
        width = max(len(row[1]) for row in rows)
        lines = [f"{title:<13} {one:<{width}}   {other}".rstrip() for title, one, other in rows]
        lines.append(f"output        off by {self.output_error:.2g} of its size, at most {self.largest_error:.2g}")
        if self.weight_error is None:
            lines.append("weights       not both have them")
        else:
            most = self.largest_weight_error
            lines.append(f"weights       {self.weight_error:.2g} of a row lies elsewhere, at most {most:.2g}")
        return "\n".join(lines)

    def draw(self) -> "Figure":
        """A picture: both maps of weights if there are, the error of each query, time and memory."""
        from regard.draw.comparison import comparison  # only who draws needs it

        named = [(side.name, side.map, side.seconds, side.memory) for side in (self.a, self.b)]
        return comparison(named[0], named[1], self.by_query)


@check_types
def compare(q: Tensor, k: Tensor, v: Tensor, a: Any, b: Any, *, rounds: int = 5) -> Comparison:
    """How b differs from a, on these q, k, v, without gradients.

    Each of a and b is a mapping of options for `attention`; or a function of q, k, v that gives a tensor, or what
    `attend` gives; or a pair of a name and one of these. They take turns, and the best of `rounds` counts.

    >>> from regard import mask
    >>> q, k, v = torch.randn(3, 1, 2, 64, 16)
    >>> found = compare(q, k, v, ("all", {}), ("near", dict(mask=mask.window(8))))
    >>> found.a.name, found.weight_error > 0.1
    ('all', True)
    """
    if not 1 <= rounds <= MAX_ROUNDS:
        raise SpecError(f"compare must take from 1 to {MAX_ROUNDS:,} rounds; got {rounds}.")
    with torch.no_grad():
        (name_a, run_a, open_a), (name_b, run_b, open_b) = (_side(x, letter) for x, letter in ((a, "a"), (b, "b")))
        output_a, output_b = (_output(run(q, k, v)) for run in (run_a, run_b))
        if output_a.numel() == 0:
            raise SpecError(f"both must give an output that is not empty; got shape {tuple(output_a.shape)}.")
        if output_a.shape != output_b.shape:
            raise SpecError(
                f"both must answer in the same shape; got {tuple(output_a.shape)} of {name_a} and "
                f"{tuple(output_b.shape)} of {name_b}."
            )
        memory = [_memory(run, q, k, v) for run in (run_a, run_b)]
        seconds = _turns([run_a, run_b], q, k, v, rounds)
        opened = [open_(q, k, v) for open_ in (open_a, open_b)]
        weights = [found.weights if isinstance(found, Attended) else None for found in opened]
        sides = [
            Side(name, spent, taken, None if w is None else w.measure(pool(CELLS, CELLS)).pool.mean)
            for name, spent, taken, w in zip((name_a, name_b), seconds, memory, weights, strict=True)
        ]
        output_error, largest, by_query = _apart(output_a, output_b)
        mean, most = _weights_apart(*weights)
    return Comparison(sides[0], sides[1], output_error, largest, by_query, mean, most)


Run = Callable[[Tensor, Tensor, Tensor], Any]


def _side(given: Any, letter: str) -> tuple[str, Run, Run]:
    """A name, what answers, and what answers in a way that shows weights if there are any."""
    name: str = letter
    if isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], str):
        name, given = given
    elif callable(given):
        name = getattr(given, "__name__", letter)
    if isinstance(given, Mapping):
        options = dict(given)
        if unknown := [name for name in options if name not in OPTIONS]:
            raise SpecError(f"options of {letter} must be among {', '.join(OPTIONS)}; got {unknown[0]!r}.")
        return name, lambda q, k, v: attention(q, k, v, **options), lambda q, k, v: attend(q, k, v, **options)
    if callable(given):
        check_signature(given, letter, "q", "k", "v")
        return name, given, given
    raise SpecError(
        f"{letter} must be a mapping of options, such as dict(mask=mask.causal()), or a function of q, k, v; got "
        f"{type(given).__name__}."
    )


def _output(answer: Any) -> Tensor:
    found = answer.output if isinstance(answer, Attended) else answer
    if not isinstance(found, Tensor):
        raise SpecError(f"a function must give a tensor, or what attend gives; got {type(answer).__name__}.")
    return found


def _apart(a: Tensor, b: Tensor) -> tuple[float, float, Tensor]:
    a, b = a.double(), b.double()
    size = a.square().mean().sqrt().clamp(min=torch.finfo(torch.float64).tiny)
    off = b - a
    rows = off.square().mean(-1).reshape(-1, a.shape[-2]).mean(0).sqrt() / size
    return float(off.square().mean().sqrt() / size), float(off.abs().max() / size), rows


def _weights_apart(a: Any, b: Any) -> tuple[float | None, float | None]:
    """Some rows at a time: the mean and the largest over rows of half the sum of |a_ij - b_ij|."""
    if a is None or b is None or a.shape != b.shape:
        return None, None
    *leading, n_q, n_k = a.shape
    step = max(1, ROWS // max(1, n_k * torch.Size(leading).numel()))
    rows = [
        (a[..., first : first + step, :] - b[..., first : first + step, :]).abs().sum(-1).flatten() / 2.0
        for first in range(0, n_q, step)
    ]
    whole = torch.cat(rows) if rows else torch.zeros(1)
    return float(whole.mean()), float(whole.max())


def _turns(runs: list[Run], q: Tensor, k: Tensor, v: Tensor, rounds: int) -> list[float]:
    """The best time of each, in seconds; a busy machine slows both."""
    best = [float("inf")] * len(runs)
    for number in range(rounds):
        for place in range(len(runs)) if number % 2 else reversed(range(len(runs))):
            begin = time.perf_counter()
            runs[place](q, k, v)
            best[place] = min(best[place], time.perf_counter() - begin)
    return best


STATUS, SWITCH = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def _memory(run: Run, q: Tensor, k: Tensor, v: Tensor) -> int | None:
    """Bytes by which one call raises the process's resident memory, beyond its output; only Linux tells."""
    if q.device.type != "cpu" or not SWITCH.exists():
        return None
    gc.collect()
    try:
        ctypes.CDLL(None).malloc_trim(0)  # what was freed before would hide what is taken now
    except AttributeError:
        return None
    SWITCH.write_text("5")
    before = _resident("VmRSS")
    output = _output(run(q, k, v))
    return max(0, _resident("VmHWM") - before - output.nbytes)


def _resident(line: str) -> int:
    return next(int(row.split()[1]) * 1024 for row in STATUS.read_text().splitlines() if row.startswith(line))
