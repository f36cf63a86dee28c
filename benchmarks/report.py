"""The results of a benchmark run: rows, tables, and failed checks."""

import math
import statistics
from collections import defaultdict
from dataclasses import dataclass

from rich.table import Table

from benchmarks.baselines.models import MODEL_RUNS
from benchmarks.cases import BenchmarkCase
from benchmarks.harness.memory import max_extra_memory
from benchmarks.harness.timing import RoundTimes, Timing


@dataclass(frozen=True)
class Rate:
    """A rate of the machine per second, measured once per round."""

    best: float
    median: float

    @classmethod
    def from_rounds(cls, *rounds: RoundTimes, name: str) -> "Rate | None":
        rates = [rate for times in rounds for rate in times.rates.get(name, [])]
        return cls(max(rates), statistics.median(rates)) if rates else None

    @property
    def load(self) -> float:
        return self.best / self.median


@dataclass(frozen=True)
class CaseResult:
    case: BenchmarkCase
    num_threads: int
    forward: Timing
    backward: Timing | None  # None without gradients
    libraries: dict[str, Timing]  # forward only
    unsupported: dict[str, str]  # libraries that do not support the case, and why
    failures: dict[str, str]
    peak_flops: Rate | None  # FLOP/s of multiply-adds; None without a C++ compiler
    read_bandwidth: Rate | None  # bytes per second of torch summing k and v; None for as many queries as keys
    baseline_memory: int
    regard_memory: int

    @property
    def forward_backward(self) -> Timing | None:
        return self.backward and self.forward.plus(self.backward)

    @property
    def fraction_of_peak(self) -> float | None:
        """FLOP/s of the two matrix products of the forward pass over the peak; None for calls with a mask."""
        if self.peak_flops is None or not self.case.call_name.endswith("full"):
            return None
        batch, heads, _, head_dim = self.case.shape
        return 4 * batch * heads * self.case.pairs * head_dim / self.forward.regard / self.peak_flops.best

    @property
    def kv_bytes_per_second(self) -> float | None:
        """Bytes of keys and values per second, each counted once."""
        if self.read_bandwidth is None:
            return None
        return 2 * math.prod(self.case.key_shape) * 4 / self.forward.regard

    @property
    def fraction_of_bandwidth(self) -> float | None:
        return (
            self.kv_bytes_per_second / self.read_bandwidth.best
            if self.kv_bytes_per_second and self.read_bandwidth
            else None
        )


def _new_table(title: str, *columns: str) -> Table:
    result = Table(title=title, title_justify="left")
    for column in columns:
        result.add_column(column, justify="left" if column in ("case", "baseline") else "right")
    return result


def main_table(rows: list[CaseResult]) -> Table:
    result = _new_table(
        "baseline time / regard time: best (median); extra memory of both passes; fraction of the peak, forward",
        *("case", "baseline", "threads", "forward", "backward", "forward + backward"),
        *("baseline memory", "regard memory", "of peak", "load"),
    )
    for row in rows:
        result.add_row(
            *(row.case.name, row.case.baseline, str(row.num_threads)),
            *(_format_ratio(timing) for timing in (row.forward, row.backward, row.forward_backward)),
            *(f"{m / 2**20:.1f} MiB" for m in (row.baseline_memory, row.regard_memory)),
            "" if row.fraction_of_peak is None else f"{row.fraction_of_peak:.2f}",
            "" if row.peak_flops is None else f"{row.peak_flops.load:.2f}",
        )
    return result


def _format_ratio(timing: Timing | None) -> str:
    return "" if timing is None else f"{timing.ratio:.2f} ({timing.ratio_median:.2f})"


def times_table(rows: list[CaseResult]) -> Table:
    """Return a table of the absolute times of cases without a backward pass."""
    result = _new_table(
        "best time of one call without gradients; keys and values read per second, also by torch.sum",
        *("case", "baseline", "threads", "baseline time", "regard time", "read", "sum reads", "fraction"),
    )
    for row in (row for row in rows if row.backward is None):
        rates = row.kv_bytes_per_second, row.read_bandwidth.best if row.read_bandwidth else None
        result.add_row(
            *(row.case.name, row.case.baseline, str(row.num_threads)),
            *(_format_time(time) for time in (row.forward.baseline, row.forward.regard)),
            *("" if rate is None else f"{rate / 1e9:.1f} GB/s" for rate in rates),
            "" if row.fraction_of_bandwidth is None else f"{row.fraction_of_bandwidth:.2f}",
        )
    return result


def _format_time(time: float) -> str:
    if time < 1e-3:
        return f"{time * 1e6:.1f} µs"
    return f"{time * 1e3:.1f} ms" if time < 1 else f"{time:.2f} s"


def libraries_table(rows: list[CaseResult]) -> Table:
    compared = [row for row in rows if row.libraries or row.unsupported or row.failures]
    libraries = list(
        dict.fromkeys(name for row in compared for name in (*row.libraries, *row.unsupported, *row.failures))
    )
    result = _new_table("time of the library / time of regard, forward, best (median)", "case", "threads", *libraries)
    for row in compared:
        cells = [_format_ratio(row.libraries[name]) if name in row.libraries else "-" for name in libraries]
        result.add_row(row.case.name, str(row.num_threads), *cells)
    return result


def unsupported_lines(rows: list[CaseResult]) -> list[str]:
    """Return one line for each library and reason."""
    cases_by_reason: dict[tuple[str, str], dict[str, None]] = defaultdict(dict)
    for row in rows:
        for library, reason in row.unsupported.items():
            cases_by_reason[library, reason][row.case.name] = None
    return [f"{library} skipped, {reason}: {'; '.join(cases)}" for (library, reason), cases in cases_by_reason.items()]


def failed_checks(rows: list[CaseResult]) -> list[str]:
    """Return why a run failed: a library raised an error or was wrong, or regard stored a number for each pair.

    The memory of models is not checked, since they also store tensors outside of attention.
    """
    messages = [f"{library}: {row.case.name}: {failure}" for row in rows for library, failure in row.failures.items()]
    for row in (row for row in rows if row.case.call_name not in MODEL_RUNS):
        allowed = max_extra_memory(row.case)
        if row.regard_memory >= allowed:
            messages.append(
                f"regard must take less than {allowed:,} bytes beyond its tensors for '{row.case.name}'; "
                f"got {row.regard_memory:,}"
            )
    return list(dict.fromkeys(messages))
