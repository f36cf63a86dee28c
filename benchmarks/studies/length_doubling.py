"""The time at twice the length for masks with few keys per query: a sliding window and BigBird."""

import time
from dataclasses import dataclass

import torch
from rich.table import Table

import regard
from benchmarks.cases import BIGBIRD, WINDOW_256
from benchmarks.harness.timing import as_timed_call
from regard.mask import Mask

MAX_SEQ_LEN = 262_144
HEAD_DIM = 64
NUM_ROUNDS = 5
MAX_TIME_RATIO = 2.3  # for twice the length
MAX_PLANNING_S = 1.0
SPARSE_MASKS = {"causal window 256": WINDOW_256, "BigBird": BIGBIRD}


@dataclass(frozen=True)
class LengthDoubling:
    """Times in seconds, the best of interleaved rounds; `planning_s` is the first planning of the mask."""

    mask: str
    n: int
    planning_s: float
    half_length_s: float
    full_length_s: float

    @property
    def ratio(self) -> float:
        return self.full_length_s / self.half_length_s


def measure_doubling(name: str, mask: Mask, n: int = MAX_SEQ_LEN) -> LengthDoubling:
    """Measure the forward pass of one head on one thread."""
    torch.set_num_threads(1)
    start = time.perf_counter()
    regard.explain((n, HEAD_DIM), (n, HEAD_DIM), (n, HEAD_DIM), mask=mask)
    planning = time.perf_counter() - start
    timed_calls = []
    for length in (n // 2, n):
        q, k, v = torch.randn(3, 1, 1, length, HEAD_DIM, generator=torch.Generator().manual_seed(0))
        timed_calls.append(as_timed_call(lambda q=q, k=k, v=v: regard.attention(q, k, v, mask=mask)))  # type: ignore[misc]
    rounds = [[timed() for timed in timed_calls] for _ in range(NUM_ROUNDS)]
    half_length, full_length = (min(times) for times in zip(*rounds, strict=True))
    return LengthDoubling(name, n, planning, half_length, full_length)


def measure_doublings(n: int = MAX_SEQ_LEN) -> list[LengthDoubling]:
    return [measure_doubling(name, mask, n) for name, mask in SPARSE_MASKS.items()]


def doubling_table(doublings: list[LengthDoubling]) -> Table:
    result = Table(
        title="twice the length: best time of one head in seconds, forward, one thread", title_justify="left"
    )
    for column in ("mask", "n", "planned", "half of n", "n", "ratio"):
        result.add_column(column, justify="left" if column == "mask" else "right")
    for doubling in doublings:
        result.add_row(
            doubling.mask,
            str(doubling.n),
            *(f"{s:.3f}" for s in (doubling.planning_s, doubling.half_length_s, doubling.full_length_s)),
            f"{doubling.ratio:.2f}",
        )
    return result


def doubling_failures(doublings: list[LengthDoubling]) -> list[str]:
    slow = [
        f"{doubling.mask}: planning must take less than {MAX_PLANNING_S} s; got {doubling.planning_s:.1f} s"
        for doubling in doublings
        if doubling.planning_s >= MAX_PLANNING_S
    ]
    steep = [
        f"{doubling.mask}: twice the length must take less than {MAX_TIME_RATIO} times as long; "
        f"got {doubling.ratio:.2f} times"
        for doubling in doublings
        if doubling.ratio >= MAX_TIME_RATIO
    ]
    return slow + steep
