"""Interleaved timing: every implementation runs once per round, so that other load slows all of them.

Rates of the machine, measured in each round, show how large that load was.
"""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

TimedCall = Callable[[], float]  # runs once and returns the time in seconds

PAUSE_S = 0.01  # idle threads of one library spin for a while and would slow the next one


@dataclass(frozen=True)
class RoundLimits:
    """The number of rounds: at least `min_rounds`, then more until `time_limit_s` or `max_rounds`.

    If one round takes longer than `slow_call_s`, `min_slow_rounds` replaces `min_rounds`.
    """

    time_limit_s: float = 3.0
    min_rounds: int = 5
    max_rounds: int = 25
    min_library_rounds: int = 3
    library_time_limit_s: float = 1.0
    slow_call_s: float = 4.0
    min_slow_rounds: int = 3


@dataclass(frozen=True)
class Timing:
    """The best and the median time of baseline and regard, in seconds, over common rounds."""

    baseline: float
    regard: float
    baseline_median: float
    regard_median: float
    rounds: int

    @property
    def ratio(self) -> float:
        return self.baseline / self.regard

    @property
    def ratio_median(self) -> float:
        return self.baseline_median / self.regard_median

    def plus(self, other: "Timing") -> "Timing":
        """Return the sum of both timings."""
        return Timing(
            self.baseline + other.baseline,
            self.regard + other.regard,
            self.baseline_median + other.baseline_median,
            self.regard_median + other.regard_median,
            min(self.rounds, other.rounds),
        )


@dataclass
class RoundTimes:
    """The times of each round; other libraries run in the first rounds only."""

    baseline: list[float] = field(default_factory=list)
    regard: list[float] = field(default_factory=list)
    libraries: dict[str, list[float]] = field(default_factory=dict)
    rates: dict[str, list[float]] = field(default_factory=dict)  # of the machine, per second

    def timing(self) -> Timing:
        return _timing(self.baseline, self.regard)

    def library_timings(self) -> dict[str, Timing]:
        return {name: _timing(times, self.regard) for name, times in self.libraries.items()}


def _timing(baseline: Sequence[float], regard: Sequence[float]) -> Timing:
    regard = regard[: len(baseline)]
    return Timing(min(baseline), min(regard), statistics.median(baseline), statistics.median(regard), len(baseline))


def as_timed_call(function: Callable[[], object], calls: int = 1) -> TimedCall:
    """Return a function that runs `calls` calls and returns the mean time of one call."""

    def timed() -> float:
        start = time.perf_counter()
        for _ in range(calls):
            function()
        return (time.perf_counter() - start) / calls

    return timed


def run_interleaved(
    baseline: TimedCall,
    regard: TimedCall,
    libraries: Mapping[str, TimedCall],
    rates: Mapping[str, Callable[[], float]],
    limits: RoundLimits,
) -> RoundTimes:
    """Measure in rounds; baseline and regard swap places each round, because the second finds inputs in the caches."""
    times = RoundTimes(libraries={name: [] for name in libraries}, rates={name: [] for name in rates})
    is_slow = baseline() + regard() > limits.slow_call_s
    min_rounds = min(limits.min_rounds, limits.min_slow_rounds) if is_slow else limits.min_rounds
    while len(times.regard) < min_rounds or (
        len(times.regard) < limits.max_rounds and sum(times.baseline) + sum(times.regard) < limits.time_limit_s
    ):
        for name, rate in rates.items():
            times.rates[name].append(rate())
        pair = [(baseline, times.baseline), (regard, times.regard)]
        for timed, seconds in pair if len(times.regard) % 2 else reversed(pair):
            seconds.append(timed())
        for name, timed in libraries.items():
            seconds = times.libraries[name]
            if len(seconds) < limits.min_library_rounds or sum(seconds) < limits.library_time_limit_s:
                time.sleep(PAUSE_S)
                seconds.append(timed())
        if libraries:
            time.sleep(PAUSE_S)
    return times
