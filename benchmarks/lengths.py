"""How time grows with the length where each query sees a few keys: a window, and BigBird's blocks."""

import time
from dataclasses import dataclass

import torch
from rich.table import Table

import regard
from benchmarks.questions import BIGBIRD, WINDOW
from benchmarks.rounds import timed
from regard.spec.mask import Mask

LONGEST = 262_144
WIDTH = 64
ROUNDS = 5
MOST_GROWTH = 2.3  # for twice the length
MOST_PLANNING = 1.0  # seconds
SPARSE = {"causal window 256": WINDOW, "BigBird": BIGBIRD}


@dataclass(frozen=True)
class Growth:
    """Seconds, the best of interleaved rounds; `plan` is that of a mask nobody has asked about yet."""

    mask: str
    n: int
    plan: float
    half: float
    whole: float

    @property
    def ratio(self) -> float:
        return self.whole / self.half


def growth(name: str, seen: Mask, n: int = LONGEST) -> Growth:
    """Forward, one head, one thread."""
    torch.set_num_threads(1)
    begin = time.perf_counter()
    regard.explain((n, WIDTH), (n, WIDTH), (n, WIDTH), mask=seen)
    plan = time.perf_counter() - begin
    turns = []
    for length in (n // 2, n):
        q, k, v = torch.randn(3, 1, 1, length, WIDTH, generator=torch.Generator().manual_seed(0))
        turns.append(timed(lambda q=q, k=k, v=v: regard.attention(q, k, v, mask=seen)))  # type: ignore[misc]
    rounds = [[turn() for turn in turns] for _ in range(ROUNDS)]
    half, whole = (min(times) for times in zip(*rounds, strict=True))
    return Growth(name, n, plan, half, whole)


def growths(n: int = LONGEST) -> list[Growth]:
    return [growth(name, seen, n) for name, seen in SPARSE.items()]


def growth_table(found: list[Growth]) -> Table:
    result = Table(title="twice the length: seconds of one head, forward, one thread, best", title_justify="left")
    for column in ("mask", "n", "planned", "half of n", "n", "ratio"):
        result.add_column(column, justify="left" if column == "mask" else "right")
    for one in found:
        result.add_row(one.mask, str(one.n), *(f"{s:.3f}" for s in (one.plan, one.half, one.whole)), f"{one.ratio:.2f}")
    return result


def growth_complaints(found: list[Growth]) -> list[str]:
    slow = [
        f"{one.mask}: planned in {one.plan:.1f} s, must be less than {MOST_PLANNING} s"
        for one in found
        if one.plan >= MOST_PLANNING
    ]
    steep = [
        f"{one.mask}: twice the length takes {one.ratio:.2f} times as long, must be less than {MOST_GROWTH}"
        for one in found
        if one.ratio >= MOST_GROWTH
    ]
    return slow + steep
