"""What a run says: its rows, the tables that are printed, and what is wrong with them."""

import math
import statistics
from collections import defaultdict
from dataclasses import dataclass

from rich.table import Table

from benchmarks.memory import largest_allowed
from benchmarks.models import RUNS
from benchmarks.questions import Case
from benchmarks.rounds import Rounds, Timing


@dataclass(frozen=True)
class Rate:
    """What the machine itself did a second, beside the rounds."""

    best: float
    median: float

    @classmethod
    def of(cls, *rounds: Rounds, name: str) -> "Rate | None":
        found = [rate for some in rounds for rate in some.rates.get(name, [])]
        return cls(max(found), statistics.median(found)) if found else None

    @property
    def load(self) -> float:
        return self.best / self.median


@dataclass(frozen=True)
class Row:
    case: Case
    threads: int
    forward: Timing
    backward: Timing | None  # None without gradients
    others: dict[str, Timing]  # forward only
    left_out: dict[str, str]  # libraries that cannot answer, and why
    failed: dict[str, str]
    burst: Rate | None  # floating point operations in multiply-adds; None without a C++ compiler
    reading: Rate | None  # bytes of keys and values added up by torch; None where there are as many queries
    peer_memory: int
    our_memory: int

    @property
    def both(self) -> Timing | None:
        return self.backward and self.forward.and_then(self.backward)

    @property
    def peak_share(self) -> float | None:
        """How much of the burst's best rate the two products of the forward pass reach, where every pair counts."""
        if self.burst is None or not self.case.ours.endswith("full"):
            return None
        batch, heads, _, width = self.case.shape
        return 4 * batch * heads * self.case.pairs * width / self.forward.ours / self.burst.best

    @property
    def read_rate(self) -> float | None:
        """Bytes of keys and values a second, as if each was read once."""
        if self.reading is None:
            return None
        return 2 * math.prod(self.case.key_shape) * 4 / self.forward.ours

    @property
    def read_share(self) -> float | None:
        return self.read_rate / self.reading.best if self.read_rate and self.reading else None


def _table(title: str, *columns: str) -> Table:
    result = Table(title=title, title_justify="left")
    for column in columns:
        result.add_column(column, justify="left" if column in ("case", "peer") else "right")
    return result


def main_table(rows: list[Row]) -> Table:
    result = _table(
        "peer's time / regard's: best (median); extra memory of both passes; share of the peak, forward",
        *("case", "peer", "threads", "forward", "backward", "forward + backward"),
        *("peer memory", "our memory", "of peak", "load"),
    )
    for row in rows:
        result.add_row(
            *(row.case.name, row.case.peer, str(row.threads)),
            *(_ratio(timing) for timing in (row.forward, row.backward, row.both)),
            *(f"{m / 2**20:.1f} MiB" for m in (row.peer_memory, row.our_memory)),
            "" if row.peak_share is None else f"{row.peak_share:.2f}",
            "" if row.burst is None else f"{row.burst.load:.2f}",
        )
    return result


def _ratio(timing: Timing | None) -> str:
    return "" if timing is None else f"{timing.ratio:.2f} ({timing.ratio_median:.2f})"


def times_table(rows: list[Row]) -> Table:
    """Rows without gradients: where not only the ratio matters."""
    result = _table(
        "seconds of one call without gradients, best; keys and values read in a second, and by torch's sum beside it",
        *("case", "peer", "threads", "peer's time", "regard's time", "read", "sum reads", "share"),
    )
    for row in (row for row in rows if row.backward is None):
        rates = row.read_rate, row.reading.best if row.reading else None
        result.add_row(
            *(row.case.name, row.case.peer, str(row.threads)),
            *(_seconds(time) for time in (row.forward.peer, row.forward.ours)),
            *("" if rate is None else f"{rate / 1e9:.1f} GB/s" for rate in rates),
            "" if row.read_share is None else f"{row.read_share:.2f}",
        )
    return result


def _seconds(time: float) -> str:
    if time < 1e-3:
        return f"{time * 1e6:.1f} µs"
    return f"{time * 1e3:.1f} ms" if time < 1 else f"{time:.2f} s"


def others_table(rows: list[Row]) -> Table:
    asked = [row for row in rows if row.others or row.left_out or row.failed]
    libraries = list(dict.fromkeys(name for row in asked for name in (*row.others, *row.left_out, *row.failed)))
    result = _table("library's time / regard's, forward, best (median)", "case", "threads", *libraries)
    for row in asked:
        cells = [_ratio(row.others[name]) if name in row.others else "-" for name in libraries]
        result.add_row(row.case.name, str(row.threads), *cells)
    return result


def left_out(rows: list[Row]) -> list[str]:
    """One line for each library and reason."""
    found: dict[tuple[str, str], dict[str, None]] = defaultdict(dict)
    for row in rows:
        for library, reason in row.left_out.items():
            found[library, reason][row.case.name] = None
    return [f"{library} left out, {reason}: {'; '.join(cases)}" for (library, reason), cases in found.items()]


def complaints(rows: list[Row]) -> list[str]:
    """Why a run has failed: a library broke or was wrong, or regard kept a number for each pair.

    A model keeps much that is not attention's, so that its memory says nothing of pairs.
    """
    found = [f"{library}: {row.case.name}: {failure}" for row in rows for library, failure in row.failed.items()]
    for row in (row for row in rows if row.case.ours not in RUNS):
        allowed = largest_allowed(row.case)
        if row.our_memory >= allowed:
            found.append(
                f"regard took {row.our_memory:,} bytes beyond its tensors for '{row.case.name}'; "
                f"they must be fewer than {allowed:,}"
            )
    return list(dict.fromkeys(found))
