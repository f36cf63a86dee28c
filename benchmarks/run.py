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
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

import regard
from benchmarks import compiled, growth, growth_picture, picture
from benchmarks.lengths import Growth, growth_complaints, growth_table, growths
from benchmarks.measuring import Measuring
from benchmarks.peers import LIBRARIES
from benchmarks.questions import CASES, QUICK, TWINS
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


def write(rows: list[Row], found: list[Growth], patience: Patience) -> None:
    RESULTS.mkdir(exist_ok=True)
    data = {
        "machine": machine(),
        "patience": asdict(patience),
        "lengths": [asdict(one) | {"ratio": one.ratio} for one in found],
        "rows": [asdict(row) | {name: getattr(row, name) for name in DERIVED} for row in rows],
    }
    (RESULTS / "attention.json").write_text(json.dumps(data, indent=1) + "\n")


CROSSINGS = (  # slow where sequences are long, and fast there
    ("softmax", "linear attention"),
    ("linear attention with every weight", "linear attention"),
    ("performer-pytorch", "FAVOR+ (Performer)"),
    ("softmax", "FAVOR+ (Performer)"),
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes, nothing written")
    parser.add_argument("--threads", type=int, nargs="*", default=None, help="default: 1 and all cores")
    parser.add_argument("--growth", action="store_true", help="only the curves of time and memory against the length")
    parser.add_argument("--only", default="", help="cases whose name or peer contains this; nothing is written")
    options = parser.parse_args()
    writes = not options.quick and not options.only
    cases = [case for case in (QUICK if options.quick else CASES) if options.only in f"{case.name}, {case.peer}"]
    threads = options.threads or ([1] if options.quick else sorted({1, os.cpu_count() or 1}))
    patience = Patience(seconds=0.5, least=3, most=7, seconds_of_others=0.3) if options.quick else Patience()
    libraries = [name for name in LIBRARIES if not options.quick or name != NO_TIME_TO_COMPILE]
    console = Console(width=150)
    if options.growth:
        measure_growth(console)
        return
    if options.quick:
        console.print(f"{NO_TIME_TO_COMPILE} left out, a quick run has no time to compile it")
    try:
        compiled.library()
    except compiled.CannotCompile as reason:
        console.print(f"twins and bursts left out, {reason}")
        cases = [case for case in cases if case.peer not in TWINS]
    rows: list[Row] = []
    found = growths() if writes else []
    with Progress(console=console) as progress:
        task = progress.add_task("measuring", total=len(cases) * len(threads))
        for count in threads:
            # what other libraries compile for minutes is compared once
            others = libraries if count == threads[0] else []
            with closing(Measuring(count, others, patience)) as measuring:
                for case in cases:
                    progress.update(task, description=f"{case.name}, {count} thread{'s' if count > 1 else ''}")
                    rows.append(measuring.row(case))
                    if writes:  # after each one, so that a run that is cut off is not lost
                        write(rows, found, patience)
                    progress.advance(task)
    tables = main_table(rows), times_table(rows), others_table(rows), growth_table(found)
    console.print(*(table for table in tables if table.row_count), *left_out(rows), sep="\n", markup=False)
    if writes:
        picture.draw(RESULTS / "attention.json", RESULTS / "attention.png")
        console.print("written to benchmarks/results/: attention.json, attention.png")
        measure_growth(console)
    wrong = complaints(rows) + growth_complaints(found)
    for line in wrong:
        console.print(line, style="bold red", markup=False)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
