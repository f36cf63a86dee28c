"""Turns: everybody runs once a round, so that a busy machine slows all of them, and what the machine itself does a
second, measured beside each round, tells how busy it was."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

Turn = Callable[[], float]  # runs once; the seconds it took

PAUSE = 0.01  # threads that have finished go on looking for work for a while, and would take another process's core


@dataclass(frozen=True)
class Patience:
    """How often: at least so many rounds, and more until the seconds are spent, up to a limit.

    Where the pair takes longer than `slow` seconds, fewer rounds must do.
    """

    seconds: float = 3.0
    least: int = 5
    most: int = 25
    least_of_others: int = 3
    seconds_of_others: float = 1.0
    slow: float = 4.0
    least_if_slow: int = 3


@dataclass(frozen=True)
class Timing:
    """Seconds: the best and the median of rounds in which both ran."""

    peer: float
    ours: float
    peer_median: float
    ours_median: float
    rounds: int

    @property
    def ratio(self) -> float:
        return self.peer / self.ours

    @property
    def ratio_median(self) -> float:
        return self.peer_median / self.ours_median

    def and_then(self, other: "Timing") -> "Timing":
        """Both pieces of work, one after the other."""
        return Timing(
            self.peer + other.peer,
            self.ours + other.ours,
            self.peer_median + other.peer_median,
            self.ours_median + other.ours_median,
            min(self.rounds, other.rounds),
        )


@dataclass
class Rounds:
    """What was measured, round by round; other libraries take part in the first rounds only."""

    peer: list[float] = field(default_factory=list)
    ours: list[float] = field(default_factory=list)
    others: dict[str, list[float]] = field(default_factory=dict)
    rates: dict[str, list[float]] = field(default_factory=dict)  # of the machine itself, a second

    def timing(self) -> Timing:
        return _timing(self.peer, self.ours)

    def timings_of_others(self) -> dict[str, Timing]:
        return {name: _timing(times, self.ours) for name, times in self.others.items()}


def _timing(peer: Sequence[float], ours: Sequence[float]) -> Timing:
    ours = ours[: len(peer)]
    return Timing(min(peer), min(ours), statistics.median(peer), statistics.median(ours), len(peer))


def timed(work: Callable[[], object], calls: int = 1) -> Turn:
    """The seconds of one call, of so many in a row."""

    def turn() -> float:
        begin = time.perf_counter()
        for _ in range(calls):
            work()
        return (time.perf_counter() - begin) / calls

    return turn


def take_turns(
    peer: Turn, ours: Turn, others: Mapping[str, Turn], rates: Mapping[str, Callable[[], float]], patience: Patience
) -> Rounds:
    """The pair changes places from round to round, because who comes second finds the inputs in the caches."""
    found = Rounds(others={name: [] for name in others}, rates={name: [] for name in rates})
    is_slow = peer() + ours() > patience.slow
    least = min(patience.least, patience.least_if_slow) if is_slow else patience.least
    while len(found.ours) < least or (
        len(found.ours) < patience.most and sum(found.peer) + sum(found.ours) < patience.seconds
    ):
        for name, rate in rates.items():
            found.rates[name].append(rate())
        pair = [(peer, found.peer), (ours, found.ours)]
        for turn, into in pair if len(found.ours) % 2 else reversed(pair):
            into.append(turn())
        for name, turn in others.items():
            into = found.others[name]
            if len(into) < patience.least_of_others or sum(into) < patience.seconds_of_others:
                time.sleep(PAUSE)
                into.append(turn())
        if others:
            time.sleep(PAUSE)
    return found
