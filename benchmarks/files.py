"""Attention over files: queries, keys, values and output on disk, at lengths that memory would not hold.

    python -m benchmarks.files [--tokens 125000 250000 500000 1000000] [--place DIRECTORY]

For each length, 8 heads of width 64 in float32: a window of 256 to both sides plus 16 global tokens, all queries; and
full causal attention of the last 1,024 queries over all keys. Each runs in a process of its own, with 2 threads. What
is measured: seconds on the clock and of the processor, the peak of anonymous memory (RssAnon) as a thread samples it,
and of all resident memory, and the distance of some rows from the same computed in memory at float64. The files, 2 KB a
token for each of the four, are made in the place and removed afterwards. Writes benchmarks/results/files.json.
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
from benchmarks.run import RESULTS, machine
from regard import mask
from regard.distributed.files import attention_from_files
from regard.distributed.stored import mapped
from regard.distributed.written import target, writing
from regard.plan.blocks import ranges

HEADS, WIDTH, WINDOW, GLOBAL, LAST = 8, 64, 256, 16, 1024
LENGTHS = (125_000, 250_000, 500_000, 1_000_000)
BUDGET = "1GB"
SEEN = mask.window(WINDOW) | mask.tokens(range(GLOBAL))
KINDS = ("window and global tokens", "causal, the last 1,024 queries")
THREADS = 2


class Memory(threading.Thread):
    """The peaks of anonymous and of all resident memory, in bytes, from when it starts."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.over, self.peaks = threading.Event(), {"RssAnon": 0, "VmRSS": 0}

    def run(self) -> None:
        while not self.over.wait(0.005):
            self.look()

    def look(self) -> None:
        for line in Path("/proc/self/status").read_text().splitlines():
            name = line.split(":")[0]
            if name in self.peaks:
                self.peaks[name] = max(self.peaks[name], 1024 * int(line.split()[1]))


def measured(kind: str, place: Path, n: int) -> dict[str, Any]:
    """Seconds and memory of one call in this process."""
    torch.set_num_threads(THREADS)
    q, k, v = (place / f"{name}.npy" for name in "qkv")
    out = place / "o.npy"
    asked: dict[str, Any] = {"q": q, "mask": SEEN}
    if kind == KINDS[1]:
        asked = {"q": mapped(q)[..., -LAST:, :], "mask": mask.causal()}
    memory = Memory()
    memory.look()
    before = dict(memory.peaks)
    memory.start()
    steps = 0
    with Progress() as bar:
        shown = bar.add_task(f"{n:,} tokens, {kind}", total=1.0)

        def told(share: float) -> None:
            nonlocal steps
            steps += 1
            bar.update(shown, completed=share)

        begin, worked = time.perf_counter(), time.process_time()
        o = attention_from_files(asked["q"], k, v, out, mask=asked["mask"], budget=BUDGET, progress=told)
        seconds, worked = time.perf_counter() - begin, time.process_time() - worked
    memory.over.set()
    memory.join()
    error = stray(kind, o, place, n)
    out.unlink()
    peaks = memory.peaks
    return {
        "seconds": seconds,
        "processor_seconds": worked,
        "steps": steps,
        "error": error,
        "anonymous_before": before["RssAnon"],
        "anonymous": peaks["RssAnon"],
        "resident": peaks["VmRSS"],
    }


def stray(kind: str, o: torch.Tensor, place: Path, n: int) -> float:
    """The largest distance of some rows from the same in float64, computed from the keys that they see."""
    q, k, v = (mapped(place / f"{name}.npy") for name in "qkv")
    worst = 0.0
    for row in (0, o.shape[-2] // 3, o.shape[-2] - 1):
        at = row + (n - o.shape[-2])
        if kind == KINDS[0] and at >= GLOBAL:
            near = torch.arange(max(0, at - WINDOW + 1), min(n, at + WINDOW))
            seen = torch.unique(torch.cat([torch.arange(GLOBAL), near]))
        else:
            seen = torch.arange(n if kind == KINDS[0] else at + 1)
        rows = q[..., at : at + 1, :].double(), k[..., seen, :].double(), v[..., seen, :].double()
        worst = max(worst, float((o[..., row : row + 1, :] - regard.attention(*rows)).abs().max()))
    return worst


def fill(place: Path, n: int) -> None:
    """q, k and v, normal numbers, a part at a time."""
    numbers = torch.Generator().manual_seed(0)
    for name in "qkv":
        with writing(target(place / f"{name}.npy"), (1, HEADS, n, WIDTH), torch.float32) as rows:
            for part in ranges(n, 2**14):
                rows.put(part, torch.randn(1, HEADS, len(part), WIDTH, generator=numbers))
    os.sync()  # or what is measured would wait for the disk to take these


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=list(LENGTHS))
    parser.add_argument("--place", type=Path, default=None, help="where the files are made; room for 8 KB a token")
    parser.add_argument("--results", type=Path, default=RESULTS / "files.json")
    parser.add_argument("--only", nargs=2, metavar=("KIND", "TOKENS"), help="one measurement, in this process")
    asked = parser.parse_args()
    if asked.only:
        kind, n = asked.only
        (asked.place / "found.json").write_text(json.dumps(measured(kind, asked.place, int(n))))
        return
    rows = []
    for n in asked.tokens:
        with tempfile.TemporaryDirectory(dir=asked.place) as made:
            fill(Path(made), n)
            rows += [{"kind": kind, "tokens": n, **_run(kind, Path(made), n)} for kind in KINDS]
        for row in rows[-len(KINDS) :]:
            print(f"{row['kind']:32} {n:>9,} tokens {row['seconds']:7.1f} s  anonymous {row['anonymous'] / 1e9:.2f} GB")
    figures = {
        "date": datetime.now(UTC).isoformat(timespec="minutes"),
        "threads": THREADS,
        "budget": BUDGET,
        "asked": f"{HEADS} heads of width {WIDTH}, float32; window {WINDOW} and {GLOBAL} global tokens; causal",
        "growth": {kind: growth([r for r in rows if r["kind"] == kind]) for kind in KINDS},
        "rows": rows,
    }
    asked.results.write_text(json.dumps({"machine": machine(), **figures}, indent=1) + "\n")


def growth(rows: list[dict[str, Any]]) -> dict[str, float]:
    """The power of n with which seconds grow, by least squares of logarithms: 1 is linear."""
    x = torch.tensor([math.log(r["tokens"]) for r in rows], dtype=torch.float64)
    x = x - x.mean()
    found = {}
    for name in ("seconds", "processor_seconds"):
        y = torch.tensor([math.log(r[name]) for r in rows], dtype=torch.float64)
        found[name] = float((x * y).sum() / (x * x).sum()) if len(rows) > 1 else math.nan
    return found


def _run(kind: str, place: Path, n: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.files", "--place", str(place), "--only", kind, str(n)]
    subprocess.run(command, check=True)
    found: dict[str, Any] = json.loads((place / "found.json").read_text())
    return found


if __name__ == "__main__":
    main()
