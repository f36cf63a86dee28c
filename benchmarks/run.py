"""Side by side with what people use: interleaved repetitions, ratios of times, peak extra memory.

    make bench          all cases, written to benchmarks/results/
    make bench-quick    small sizes, nothing written

A ratio is the peer's time over regard's: above 1 regard is faster. Everybody's answer is first compared with the engine
that defines correct. Then peer and regard take turns, so that a busy machine slows both, and beside each round runs a
burst of multiply-adds: how much it varies tells how loaded the machine was, and its best is the processor's peak. Where
few queries meet many keys, torch adds up the same keys and values beside each round: how fast the machine reads. Other
libraries take their turns in processes of their own, with the first number of threads alone. Memory is measured in a
process of its own, as the growth of its peak beyond inputs, output and gradients.
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
from benchmarks import compiled, growth, growth_picture, picture
from benchmarks.lengths import Growth, growth_complaints, growth_table, growths
from benchmarks.measuring import Measuring
from benchmarks.peers import LIBRARIES
from benchmarks.questions import CASES, OTHER_MECHANISMS, QUICK, TWINS, Case
from benchmarks.report import Row, complaints, left_out, main_table, others_table, times_table
from benchmarks.rounds import Patience

RESULTS = Path(__file__).parent / "results"
PACKAGES = (
    *("torch", "onnxruntime", "openvino", "jax", "keras"),
    *("entmax", "POT", "performer-pytorch", "transformers"),
)
DERIVED = ("peak_share", "read_rate", "read_share")  # what is written although it follows from the rest
NO_TIME_TO_COMPILE = "flex_attention"  # each variant takes it ten seconds and more


def installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def machine() -> dict[str, str | int]:
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
        **{name: found for name in PACKAGES if (found := installed(name))},
        "regard": str(regard.explain((1, 8), (1, 8), (1, 8)).variant or "without compiled core"),
    }


def write(name: str, rows: list[Row], found: list[Growth], patience: Patience) -> None:
    RESULTS.mkdir(exist_ok=True)
    data = {
        "machine": machine(),
        "patience": asdict(patience),
        **({"lengths": [asdict(one) | {"ratio": one.ratio} for one in found]} if found else {}),
        "rows": [asdict(row) | {name: getattr(row, name) for name in DERIVED} for row in rows],
    }
    (RESULTS / f"{name}.json").write_text(json.dumps(data, indent=1) + "\n")


CROSSINGS = (  # slow where sequences are long, and fast there
    ("causal", "linear attention"),
    ("linear attention with every weight", "linear attention"),
    ("performer-pytorch", "FAVOR+ (Performer)"),
    ("causal", "FAVOR+ (Performer)"),
    ("softmax", "Reformer (LSH attention)"),
)


def measure_growth(console: Console) -> None:
    """Curves of every mechanism, and the lengths from which one overtakes another."""
    points = growth.points()
    crossings = {f"{fast} before {slow}": growth.crossing(points, slow, fast) for slow, fast in CROSSINGS}
    data = {"machine": machine(), "crossings": crossings, "points": [asdict(point) for point in points]}
    (RESULTS / "growth.json").write_text(json.dumps(data, indent=1) + "\n")
    growth_picture.draw(RESULTS / "growth.json", RESULTS / "growth.png")
    for name, n in crossings.items():
        console.print(f"{name}: {'nowhere' if n is None else f'from n {n}'}", markup=False)
    console.print("written to benchmarks/results/: growth.json, growth.png")


@dataclass(frozen=True)
class Run:
    """Cases that are measured together, and the file that takes them; None where nothing is written."""

    cases: list[Case]
    threads: list[int]
    libraries: list[str]
    patience: Patience
    name: str | None

    def rows(self, console: Console, found: list[Growth]) -> list[Row]:
        rows: list[Row] = []
        with Progress(console=console) as progress:
            task = progress.add_task("measuring", total=len(self.cases) * len(self.threads))
            for count in self.threads:
                # what other libraries compile for minutes is compared once; more threads confirm what one has shown
                first = count == self.threads[0]
                others = self.libraries if first else []
                patience = self.patience if first else replace(self.patience, seconds=self.patience.seconds / 2)
                with closing(Measuring(count, others, patience)) as measuring:
                    for case in self.cases:
                        progress.update(task, description=f"{case.name}, {count} thread{'s' if count > 1 else ''}")
                        rows.append(measuring.row(case))
                        if self.name:  # after each one, so that a run that is cut off is not lost
                            write(self.name, rows, found, self.patience)
                        progress.advance(task)
        if self.name:
            picture.draw(RESULTS / f"{self.name}.json", RESULTS / f"{self.name}.png")
            console.print(f"written to benchmarks/results/: {self.name}.json, {self.name}.png")
        return rows


def planned(options: argparse.Namespace, console: Console) -> list[Run]:
    """What the options ask for."""
    threads = options.threads or ([1] if options.quick else sorted({1, os.cpu_count() or 1}))
    patience = Patience(seconds=0.5, least=3, most=7, seconds_of_others=0.3) if options.quick else Patience()
    libraries = [name for name in LIBRARIES if not options.quick or name != NO_TIME_TO_COMPILE]
    if options.quick:
        console.print(f"{NO_TIME_TO_COMPILE} left out, a quick run has no time to compile it")
    try:
        compiled.library()
        left_out = frozenset[str]()
    except compiled.CannotCompile as reason:
        console.print(f"twins and bursts left out, {reason}")
        left_out = frozenset(TWINS)
    sets = {"attention": CASES, "mechanisms": OTHER_MECHANISMS}
    if options.quick:
        sets = {"": QUICK}
    elif options.mechanisms:
        sets = {"mechanisms": OTHER_MECHANISMS}
    runs = []
    for name, cases in sets.items():
        chosen = [c for c in cases if options.only in f"{c.name}, {c.peer}" and c.peer not in left_out]
        asked = libraries if any(case.others for case in chosen) else []
        if chosen:
            runs.append(Run(chosen, threads, asked, patience, name if name and not options.only else None))
    return runs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes, nothing written")
    parser.add_argument("--threads", type=int, nargs="*", default=None, help="default: 1 and all cores")
    parser.add_argument("--mechanisms", action="store_true", help="only mechanisms beyond softmax, and their growth")
    parser.add_argument("--only", default="", help="cases whose name or peer contains this; nothing is written")
    options = parser.parse_args()
    console = Console(width=150)
    rows: list[Row] = []
    found: list[Growth] = []
    for run in planned(options, console):
        lengths = growths() if run.name == "attention" else []
        found += lengths
        rows += run.rows(console, lengths)
    tables = main_table(rows), times_table(rows), others_table(rows), growth_table(found)
    console.print(*(table for table in tables if table.row_count), *left_out(rows), sep="\n", markup=False)
    if not options.quick and not options.only:
        measure_growth(console)
    wrong = complaints(rows) + growth_complaints(found)
    for line in wrong:
        console.print(line, style="bold red", markup=False)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
