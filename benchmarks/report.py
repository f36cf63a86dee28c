"""What a run says: its rows, the tables that are printed, and what is wrong with them."""

from collections import defaultdict
from dataclasses import dataclass

from rich.table import Table

from benchmarks.memory import largest_allowed
from benchmarks.questions import Case
from benchmarks.rounds import Timing


@dataclass(frozen=True)
class Burst:
    """Floating point operations a second, in bursts of multiply-adds beside the rounds."""

    best: float
    median: float

    @property
    def load(self) -> float:
        return self.best / self.median


@dataclass(frozen=True)
class Row:
    case: Case
    threads: int
    forward: Timing
    backward: Timing
    others: dict[str, Timing]  # forward only
    left_out: dict[str, str]  # libraries that cannot answer, and why
    failed: dict[str, str]
    burst: Burst | None  # None without a C++ compiler
    peer_memory: int
    our_memory: int

    @property
    def both(self) -> Timing:
        return self.forward.and_then(self.backward)

    @property
    def peak_share(self) -> float | None:
        """How much of the burst's best rate the two products of the forward pass reach, where every pair counts."""
        if self.burst is None or not self.case.ours.endswith("full"):
            return None
        batch, heads, n, width = self.case.shape
        return 4 * batch * heads * n * n * width / self.forward.ours / self.burst.best


def _table(title: str, *columns: str) -> Table:
    result = Table(title=title, title_justify="left")
    for column in columns:
        result.add_column(column, justify="left" if column in ("case", "peer") else "right")
    return result


def main_table(rows: list[Row]) -> Table:
    result = _table(
        "peer's time / regard's: best (median); extra memory of forward + backward; share of the peak, forward",
        *("case", "peer", "threads", "forward", "backward", "forward + backward"),
        *("peer memory", "our memory", "of peak", "load"),
    )
    for row in rows:
        result.add_row(
            *(row.case.name, row.case.peer, str(row.threads)),
            *(f"{t.ratio:.2f} ({t.ratio_median:.2f})" for t in (row.forward, row.backward, row.both)),
            *(f"{m / 2**20:.1f} MiB" for m in (row.peer_memory, row.our_memory)),
            "" if row.peak_share is None else f"{row.peak_share:.2f}",
            "" if row.burst is None else f"{row.burst.load:.2f}",
        )
    return result


def others_table(rows: list[Row]) -> Table:
    asked = [row for row in rows if row.others or row.left_out or row.failed]
    libraries = list(dict.fromkeys(name for row in asked for name in (*row.others, *row.left_out, *row.failed)))
    result = _table("library's time / regard's, forward, best (median)", "case", "threads", *libraries)
    for row in asked:
        cells = [
            f"{row.others[name].ratio:.2f} ({row.others[name].ratio_median:.2f})" if name in row.others else "-"
            for name in libraries
        ]
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
    """Why a run has failed: a library broke or was wrong, or regard kept a number for each pair."""
    found = [f"{library}: {row.case.name}: {failure}" for row in rows for library, failure in row.failed.items()]
    for row in rows:
        allowed = largest_allowed(row.case.shape[2])
        if row.our_memory >= allowed:
            found.append(
                f"regard took {row.our_memory:,} bytes beyond its tensors for '{row.case.name}'; "
                f"they must be fewer than {allowed:,}"
            )
    return list(dict.fromkeys(found))
