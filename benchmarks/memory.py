"""Peak extra memory of one forward and backward pass, in a process of its own.

python -m benchmarks.memory FUNCTION BATCH HEADS N WIDTH KEY_HEADS   ->   bytes beyond inputs, output and gradients
"""

import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from threading import Thread

ROOT = Path(__file__).parents[1]

# Memory that is given back leaves the process at once, or what a first call returned would hide what a second takes.
AT_ONCE = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}


@cache
def extra_memory(function: str, shape: tuple[int, ...], key_heads: int) -> int:
    command = [sys.executable, "-m", "benchmarks.memory", function, *map(str, shape), str(key_heads)]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | AT_ONCE, capture_output=True, text=True, check=True)
    return int(done.stdout)


def largest_allowed(n: int) -> int:
    """Below this nobody kept a number for each pair: a byte each, and some room for buffers of fixed size."""
    return max(n * n, 4 * 2**20)


def peak(function: str, batch: int, heads: int, n: int, width: int, key_heads: int) -> int:
    import torch

    from benchmarks.questions import FUNCTIONS, around

    q, k, v = (torch.randn(batch, h, n, width, requires_grad=True) for h in (heads, key_heads, key_heads))
    gradient = torch.randn(q.shape)

    def work() -> None:
        torch.set_num_threads(1)
        with around(function):
            FUNCTIONS[function](q, k, v).backward(gradient)

    work()  # loads what is loaded lazily and makes the peer's mask
    for x in (q, k, v):
        x.grad = None
    high_water()
    before = high_water()
    thread = Thread(target=work)  # a new one has no buffers from the first call
    thread.start()
    thread.join()
    tensors = 4 * batch * n * width * (2 * heads + 2 * key_heads)  # the output, and the gradients of q, k, v
    return max(0, high_water() - before - tensors)


def high_water() -> int:
    """The peak of resident memory since the last call, in bytes. getrusage would tell the parent's peak as well."""
    lines = Path("/proc/self/status").read_text().splitlines()
    peak_now = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
    Path("/proc/self/clear_refs").write_text("5")
    return peak_now


if __name__ == "__main__":
    print(peak(sys.argv[1], *map(int, sys.argv[2:])))
