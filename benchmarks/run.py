"""Compare regard with other implementations: interleaved rounds, ratios of times, peak extra memory.

    make bench          all cases, written to benchmarks/results/
    make bench-quick    small sizes, nothing written

A ratio is the time of the baseline over the time of regard: above 1 regard is faster. Every output is first compared
with the reference backend. Then baseline and regard alternate, so that other load on the machine slows both. Each round
also measures a burst of multiply-adds: its best rate is the peak of the processor, its variation shows the load. For
few queries over many keys, each round also measures how fast torch sums the keys and values. Other libraries run in
separate processes, only with the first number of threads. Memory is measured in a separate process, as the growth of
the peak beyond inputs, output and gradients.
"""

import argparse
import json
import os
import platform
import sys
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

import regard
from benchmarks import plot_results
from benchmarks.baselines.libraries import LIBRARY_BASELINES
from benchmarks.cases import BENCHMARK_CASES, HANDWRITTEN, MECHANISM_CASES, QUICK_CASES, BenchmarkCase
from benchmarks.harness import handwritten_kernels
from benchmarks.harness.case_runner import CaseRunner
from benchmarks.harness.timing import RoundLimits
from benchmarks.report import CaseResult, failed_checks, libraries_table, main_table, times_table, unsupported_lines
from benchmarks.studies import scaling, scaling_plot
from benchmarks.studies.length_doubling import LengthDoubling, doubling_failures, doubling_table, measure_doublings

RESULTS = Path(__file__).parent / "results"
PACKAGES = (
    *("torch", "onnxruntime", "openvino", "jax", "keras"),
    *("entmax", "POT", "performer-pytorch", "transformers"),
)
DERIVED_FIELDS = ("fraction_of_peak", "kv_bytes_per_second", "fraction_of_bandwidth")
SLOW_TO_COMPILE = "flex_attention"  # ten seconds or more for each variant


def installed_version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def machine_info() -> dict[str, str | int]:
    model = platform.processor()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [
            line.split(":")[1].strip() for line in cpuinfo.read_text().splitlines() if line.startswith("model name")
        ]
        model = names[0] if names else model
    return {
        "processor": model,
        "cores": os.cpu_count() or 0,
        "python": platform.python_version(),
        **{name: number for name in PACKAGES if (number := installed_version(name))},
        "regard": str(regard.explain((1, 8), (1, 8), (1, 8)).variant or "without compiled core"),
    }


def write_results(name: str, rows: list[CaseResult], doublings: list[LengthDoubling], limits: RoundLimits) -> None:
    RESULTS.mkdir(exist_ok=True)
    data = {
        "machine": machine_info(),
        "round_limits": asdict(limits),
        **(
            {"doublings": [asdict(doubling) | {"ratio": doubling.ratio} for doubling in doublings]} if doublings else {}
        ),
        "rows": [asdict(row) | {name: getattr(row, name) for name in DERIVED_FIELDS} for row in rows],
    }
    (RESULTS / f"{name}.json").write_text(json.dumps(data, indent=1) + "\n")


CROSSOVER_PAIRS = (  # the slower and the faster mechanism for long sequences
    ("causal", "linear attention"),
    ("linear attention with every weight", "linear attention"),
    ("performer-pytorch", "FAVOR+ (Performer)"),
    ("causal", "FAVOR+ (Performer)"),
    ("softmax", "Reformer (LSH attention)"),
)


def measure_scaling(console: Console) -> None:
    """Measure time and memory of every mechanism by length, and the lengths where one becomes faster than another."""
    points = scaling.measure_in_subprocess()
    crossovers = {f"{fast} before {slow}": scaling.crossover(points, slow, fast) for slow, fast in CROSSOVER_PAIRS}
    data = {"machine": machine_info(), "crossovers": crossovers, "points": [asdict(point) for point in points]}
    (RESULTS / "scaling.json").write_text(json.dumps(data, indent=1) + "\n")
    scaling_plot.plot_scaling(RESULTS / "scaling.json", RESULTS / "scaling.png")
    for name, n in crossovers.items():
        console.print(f"{name}: {'never' if n is None else f'from n {n}'}", markup=False)
    console.print("written to benchmarks/results/: scaling.json, scaling.png")


@dataclass(frozen=True)
class BenchmarkRun:
    """Cases that are measured together, and the name of the results file; None writes nothing."""

    cases: list[BenchmarkCase]
    thread_counts: list[int]
    libraries: list[str]
    limits: RoundLimits
    name: str | None

    def run_cases(self, console: Console, doublings: list[LengthDoubling]) -> list[CaseResult]:
        rows: list[CaseResult] = []
        with Progress(console=console) as progress:
            task = progress.add_task("measuring", total=len(self.cases) * len(self.thread_counts))
            for count in self.thread_counts:
                # other libraries compile for minutes, so only the first number of threads includes them
                first = count == self.thread_counts[0]
                libraries = self.libraries if first else []
                limits = self.limits if first else replace(self.limits, time_limit_s=self.limits.time_limit_s / 2)
                with closing(CaseRunner(count, libraries, limits)) as runner:
                    for case in self.cases:
                        progress.update(task, description=f"{case.name}, {count} thread{'s' if count > 1 else ''}")
                        rows.append(runner.run_case(case))
                        if self.name:  # after each case, so that an interrupted run keeps its results
                            write_results(self.name, rows, doublings, self.limits)
                        progress.advance(task)
        if self.name:
            plot_results.plot_results(RESULTS / f"{self.name}.json", RESULTS / f"{self.name}.png")
            console.print(f"written to benchmarks/results/: {self.name}.json, {self.name}.png")
        return rows


def plan_runs(options: argparse.Namespace, console: Console) -> list[BenchmarkRun]:
    """Return the runs that the options select."""
    threads = options.threads or ([1] if options.quick else sorted({1, os.cpu_count() or 1}))
    limits = (
        RoundLimits(time_limit_s=0.5, min_rounds=3, max_rounds=7, library_time_limit_s=0.3)
        if options.quick
        else RoundLimits()
    )
    libraries = [name for name in LIBRARY_BASELINES if not options.quick or name != SLOW_TO_COMPILE]
    if options.quick:
        console.print(f"{SLOW_TO_COMPILE} skipped: compilation takes too long for a quick run")
    try:
        handwritten_kernels.library()
        skipped = frozenset[str]()
    except handwritten_kernels.CompileError as reason:
        console.print(f"handwritten kernels and peak rates skipped: {reason}")
        skipped = frozenset(HANDWRITTEN)
    sets = {"attention": BENCHMARK_CASES, "mechanisms": MECHANISM_CASES}
    if options.quick:
        sets = {"": QUICK_CASES}
    elif options.mechanisms:
        sets = {"mechanisms": MECHANISM_CASES}
    runs = []
    for name, cases in sets.items():
        selected = [c for c in cases if options.only in f"{c.name}, {c.baseline}" and c.baseline not in skipped]
        run_libraries = libraries if any(case.has_library_baselines for case in selected) else []
        if selected:
            runs.append(
                BenchmarkRun(selected, threads, run_libraries, limits, name if name and not options.only else None)
            )
    return runs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes, nothing written")
    parser.add_argument("--threads", type=int, nargs="*", default=None, help="default: 1 and all cores")
    parser.add_argument(
        "--mechanisms", action="store_true", help="only mechanisms other than softmax, and their scaling"
    )
    parser.add_argument("--only", default="", help="cases whose name or baseline contains this; nothing is written")
    options = parser.parse_args()
    console = Console(width=150)
    rows: list[CaseResult] = []
    doublings: list[LengthDoubling] = []
    for run in plan_runs(options, console):
        run_doublings = measure_doublings() if run.name == "attention" else []
        doublings += run_doublings
        rows += run.run_cases(console, run_doublings)
    tables = main_table(rows), times_table(rows), libraries_table(rows), doubling_table(doublings)
    console.print(*(table for table in tables if table.row_count), *unsupported_lines(rows), sep="\n", markup=False)
    if not options.quick and not options.only:
        measure_scaling(console)
    failures = failed_checks(rows) + doubling_failures(doublings)
    for line in failures:
        console.print(line, style="bold red", markup=False)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
