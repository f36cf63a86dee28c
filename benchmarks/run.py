"""Side by side with what people use: interleaved repetitions, ratios of times, peak extra memory.

    make bench          all cases, written to benchmarks/results/
    make bench-quick    small sizes, nothing written

A ratio is the peer's time over regard's: above 1 regard is faster. Peer and regard take turns, so that a busy machine
slows both. Beside each round runs a burst of one fixed matrix product: how much it varies tells how loaded the
machine was. Memory is measured in a process of its own, as the growth of its peak beyond inputs and output.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, astuple, dataclass
from pathlib import Path

import torch
from questions import CASES, FUNCTIONS, QUICK, Case
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import regard

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Timing:
    """Seconds: the best and the median of interleaved rounds."""

    peer: float
    ours: float
    peer_median: float
    ours_median: float

    @property
    def ratio(self) -> float:
        return self.peer / self.ours

    @property
    def ratio_median(self) -> float:
        return self.peer_median / self.ours_median


@dataclass(frozen=True)
class Row:
    case: Case
    threads: int
    forward: Timing
    backward: Timing
    burst_spread: float
    peer_memory: int
    our_memory: int

    @property
    def both(self) -> Timing:
        """Forward and backward together."""
        parts = zip(astuple(self.forward), astuple(self.backward), strict=True)
        return Timing(*(one + other for one, other in parts))


def take_turns(peer: Callable[[], object], ours: Callable[[], object], rounds: int) -> tuple[Timing, float]:
    """Both in turn, and how much a fixed product varied beside them: its median over its best."""
    a, b = torch.randn(512, 512), torch.randn(512, 512)
    times: tuple[list[float], list[float], list[float]] = ([], [], [])
    peer(), ours()
    for _ in range(rounds):
        for work, into in zip((lambda: a @ b, peer, ours), times, strict=True):
            begin = time.perf_counter()
            work()
            into.append(time.perf_counter() - begin)
    burst, theirs, own = times
    timing = Timing(min(theirs), min(own), statistics.median(theirs), statistics.median(own))
    return timing, statistics.median(burst) / min(burst)


def measure(case: Case, threads: int, rounds: int) -> Row:
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    shapes = (case.shape, case.key_shape, case.key_shape)
    q, k, v = (torch.randn(shape, requires_grad=True) for shape in shapes)
    gradient = torch.randn(case.shape)
    peer, ours = FUNCTIONS[case.peer], FUNCTIONS[case.ours]
    with torch.no_grad():
        forward, spread = take_turns(lambda: peer(q, k, v), lambda: ours(q, k, v), rounds)
    theirs, own = peer(q, k, v), ours(q, k, v)
    backward, _ = take_turns(
        lambda: torch.autograd.grad(theirs, (q, k, v), gradient, retain_graph=True),
        lambda: torch.autograd.grad(own, (q, k, v), gradient, retain_graph=True),
        rounds,
    )
    memory = [extra_memory(case, name) for name in (case.peer, case.ours)]
    return Row(case, threads, forward, backward, spread, *memory)


def extra_memory(case: Case, function: str) -> int:
    """Bytes beyond inputs and outputs at the peak of one forward and backward, in a process of its own."""
    command = [sys.executable, __file__, "--peak", function, *map(str, case.shape), str(case.key_shape[1])]
    return int(subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ).stdout)


def peak(function: str, shape: list[int]) -> int:
    torch.set_num_threads(1)
    work = FUNCTIONS[function]

    batch, heads, n, width, key_heads = shape
    q, k, v = (torch.randn(batch, h, n, width, requires_grad=True) for h in (heads, key_heads, key_heads))
    work(q, k, v).sum().backward()  # loads what is loaded lazily and makes the peer's mask
    for x in (q, k, v):
        x.grad = None
    high_water()
    before = high_water()
    work(q, k, v).sum().backward()
    tensors = 4 * batch * n * width * (3 * heads + 2 * key_heads)  # the output, its gradient and those of q, k, v
    return max(0, high_water() - before - tensors)


def high_water() -> int:
    """The peak of resident memory since the last call, in bytes. getrusage would tell the parent's peak as well."""
    lines = Path("/proc/self/status").read_text().splitlines()
    peak_now = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
    Path("/proc/self/clear_refs").write_text("5")
    return peak_now


def table(rows: list[Row]) -> Table:
    result = Table(title="peer's time / regard's: best (median); memory beyond tensors, forward + backward")
    for column in ("case", "peer", "threads", "forward", "forward + backward", "peer memory", "our memory", "load"):
        result.add_column(column, justify="left" if column in ("case", "peer") else "right")
    for row in rows:
        result.add_row(
            *(row.case.name, row.case.peer, str(row.threads)),
            *(f"{t.ratio:.2f} ({t.ratio_median:.2f})" for t in (row.forward, row.both)),
            *(f"{m / 2**20:.0f} MiB" for m in (row.peer_memory, row.our_memory)),
            f"{row.burst_spread:.2f}",
        )
    return result


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
        "torch": torch.__version__,
        "regard": str(regard.explain((1, 8), (1, 8), (1, 8)).variant or "without compiled core"),
    }


def write(rows: list[Row], rounds: int) -> None:
    RESULTS.mkdir(exist_ok=True)
    data = {"machine": machine(), "rounds": rounds, "rows": [asdict(row) for row in rows]}
    (RESULTS / "attention.json").write_text(json.dumps(data, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes, nothing written")
    parser.add_argument("--threads", type=int, nargs="*", default=None, help="default: 1 and all cores")
    parser.add_argument("--rounds", type=int, default=None)
    parser.add_argument("--peak", nargs=6, metavar=("FUNCTION", "B", "H", "N", "D", "K"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peak:
        sys.stdout.write(str(peak(options.peak[0], [int(n) for n in options.peak[1:]])))
        return
    cases = QUICK if options.quick else CASES
    threads = options.threads or ([1] if options.quick else sorted({1, os.cpu_count() or 1}))
    rounds = options.rounds or (3 if options.quick else 7)
    console = Console(width=140)
    rows = []
    with Progress(console=console) as progress:
        task = progress.add_task("measuring", total=len(cases) * len(threads))
        for count in threads:
            for case in cases:
                progress.update(task, description=f"{case.name}, {count} thread{'s' if count > 1 else ''}")
                rows.append(measure(case, count, rounds))
                if not options.quick:  # after each one, so that a run that is cut off is not lost
                    write(rows, rounds)
                progress.advance(task)
    console.print(table(rows))
    if not options.quick:
        console.print("written to benchmarks/results/attention.json")


if __name__ == "__main__":
    main()
