"""Attention over files: queries, keys, values and output on disk, at lengths that do not fit in memory.

    python -m benchmarks.studies.out_of_core [--tokens 125000 250000 500000 1000000] [--folder DIRECTORY]

For each length, 8 heads of dimension 64 in float32: a window of 256 to both sides plus 16 global tokens, all queries;
and causal attention of the last 1,024 queries over all keys. Each workload runs in a separate process with 2 threads.
Measures the elapsed and CPU time, the sampled peaks of anonymous (RssAnon) and of all resident memory, and the error of
some rows against float64. The four temporary files take 2 KB per token each. Writes
benchmarks/results/out_of_core.json.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from rich.progress import Progress

import regard
from benchmarks.run import RESULTS, machine_info
from regard import mask
from regard.distributed.out_of_core.attention import attention_from_files
from regard.distributed.out_of_core.file_writer import open_writer, resolve_output
from regard.distributed.out_of_core.tensor_file import open_memmap
from regard.plan.tiling import ranges

NUM_HEADS, HEAD_DIM, WINDOW, NUM_GLOBAL_TOKENS, NUM_LAST_QUERIES = 8, 64, 256, 16, 1024
LENGTHS = (125_000, 250_000, 500_000, 1_000_000)
BUDGET = "1GB"
WINDOW_MASK = mask.sliding_window(WINDOW) | mask.global_tokens(range(NUM_GLOBAL_TOKENS))
WORKLOADS = ("window and global tokens", "causal, the last 1,024 queries")
NUM_THREADS = 2


class MemorySampler(threading.Thread):
    """Samples the peaks of anonymous and of all resident memory, in bytes."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.stopped, self.peaks = threading.Event(), {"RssAnon": 0, "VmRSS": 0}

    def run(self) -> None:
        while not self.stopped.wait(0.005):
            self.sample()

    def sample(self) -> None:
        for line in Path("/proc/self/status").read_text().splitlines():
            name = line.split(":")[0]
            if name in self.peaks:
                self.peaks[name] = max(self.peaks[name], 1024 * int(line.split()[1]))


def measure_call(workload: str, folder: Path, n: int) -> dict[str, Any]:
    """Measure the time and memory of one call in this process."""
    torch.set_num_threads(NUM_THREADS)
    q, k, v = (folder / f"{name}.npy" for name in "qkv")
    out = folder / "o.npy"
    arguments: dict[str, Any] = {"q": q, "mask": WINDOW_MASK}
    if workload == WORKLOADS[1]:
        arguments = {"q": open_memmap(q)[..., -NUM_LAST_QUERIES:, :], "mask": mask.causal()}
    memory = MemorySampler()
    memory.sample()
    before = dict(memory.peaks)
    memory.start()
    steps = 0
    with Progress() as bar:
        task = bar.add_task(f"{n:,} tokens, {workload}", total=1.0)

        def count_step(fraction: float) -> None:
            nonlocal steps
            steps += 1
            bar.update(task, completed=fraction)

        start, cpu_start = time.perf_counter(), time.process_time()
        o = attention_from_files(arguments["q"], k, v, out, mask=arguments["mask"], budget=BUDGET, progress=count_step)
        seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu_start
    memory.stopped.set()
    memory.join()
    error = max_error(workload, o, folder, n)
    out.unlink()
    peaks = memory.peaks
    return {
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "steps": steps,
        "error": error,
        "anonymous_before": before["RssAnon"],
        "anonymous": peaks["RssAnon"],
        "resident": peaks["VmRSS"],
    }


def max_error(workload: str, o: torch.Tensor, folder: Path, n: int) -> float:
    """Return the largest error of some rows against float64, computed from their visible keys."""
    q, k, v = (open_memmap(folder / f"{name}.npy") for name in "qkv")
    worst = 0.0
    for row in (0, o.shape[-2] // 3, o.shape[-2] - 1):
        position = row + (n - o.shape[-2])
        if workload == WORKLOADS[0] and position >= NUM_GLOBAL_TOKENS:
            near = torch.arange(max(0, position - WINDOW + 1), min(n, position + WINDOW))
            visible = torch.unique(torch.cat([torch.arange(NUM_GLOBAL_TOKENS), near]))
        else:
            visible = torch.arange(n if workload == WORKLOADS[0] else position + 1)
        rows = (q[..., position : position + 1, :], k[..., visible, :], v[..., visible, :])
        worst = max(
            worst, float((o[..., row : row + 1, :] - regard.attention(*(x.double() for x in rows))).abs().max())
        )
    return worst


def write_inputs(folder: Path, n: int) -> None:
    """Write random q, k and v in parts."""
    generator = torch.Generator().manual_seed(0)
    for name in "qkv":
        with open_writer(resolve_output(folder / f"{name}.npy"), (1, NUM_HEADS, n, HEAD_DIM), torch.float32) as rows:
            for part in ranges(n, 2**14):
                rows.write_rows(part, torch.randn(1, NUM_HEADS, len(part), HEAD_DIM, generator=generator))
    os.sync()  # otherwise the measurement would include the writes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=list(LENGTHS))
    parser.add_argument("--folder", type=Path, default=None, help="for the temporary files, 8 KB per token")
    parser.add_argument("--results", type=Path, default=RESULTS / "out_of_core.json")
    parser.add_argument("--only", nargs=2, metavar=("WORKLOAD", "TOKENS"), help="one measurement, in this process")
    options = parser.parse_args()
    if options.only:
        workload, n = options.only
        (options.folder / "result.json").write_text(json.dumps(measure_call(workload, options.folder, int(n))))
        return
    rows = []
    for n in options.tokens:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            write_inputs(Path(folder), n)
            rows += [{"workload": workload, "tokens": n, **_run(workload, Path(folder), n)} for workload in WORKLOADS]
        for row in rows[-len(WORKLOADS) :]:
            numbers = f"{row['seconds']:7.1f} s  anonymous {row['anonymous'] / 1e9:.2f} GB"
            print(f"{row['workload']:32} {n:>9,} tokens {numbers}")
    results = {
        "date": datetime.now(UTC).isoformat(timespec="minutes"),
        "threads": NUM_THREADS,
        "budget": BUDGET,
        "num_heads": NUM_HEADS,
        "head_dim": HEAD_DIM,
        "window": WINDOW,
        "num_global_tokens": NUM_GLOBAL_TOKENS,
        "scaling_exponents": {w: scaling_exponents([r for r in rows if r["workload"] == w]) for w in WORKLOADS},
        "rows": rows,
    }
    options.results.write_text(json.dumps({"machine": machine_info(), **results}, indent=1) + "\n")


def scaling_exponents(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Return the exponent of n in the time, by least squares of logarithms: 1 is linear."""
    x = torch.tensor([math.log(r["tokens"]) for r in rows], dtype=torch.float64)
    x = x - x.mean()
    exponents = {}
    for name in ("seconds", "cpu_seconds"):
        y = torch.tensor([math.log(r[name]) for r in rows], dtype=torch.float64)
        exponents[name] = float((x * y).sum() / (x * x).sum()) if len(rows) > 1 else math.nan
    return exponents


def _run(workload: str, folder: Path, n: int) -> dict[str, Any]:
    command = [
        sys.executable,
        "-m",
        "benchmarks.studies.out_of_core",
        "--folder",
        str(folder),
        "--only",
        workload,
        str(n),
    ]
    subprocess.run(command, check=True)
    result: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return result


if __name__ == "__main__":
    main()
