"""Peak extra memory of one forward pass, with backward where there is one, in a process of its own.

python -m benchmarks.memory '[FUNCTION, SHAPE, KEY_SHAPE, DTYPE, GRADIENTS]'
    ->   bytes beyond inputs, output and gradients
"""

import json
import math
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from threading import Thread

import torch

from benchmarks.questions import Case, Shape, answered, around, given, ready

ROOT = Path(__file__).parents[1]

# Memory that is given back leaves the process at once, or what a first call returned would hide what a second takes.
AT_ONCE = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}


@cache
def extra_memory(function: str, shape: Shape, key_shape: Shape, dtype: str, gradients: bool) -> int:
    asked = json.dumps([function, shape, key_shape, dtype, gradients])
    command = [sys.executable, "-m", "benchmarks.memory", asked]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | AT_ONCE, capture_output=True, text=True, check=True)
    return int(done.stdout)


def largest_allowed(case: Case) -> int:
    """Below this nobody kept a number for each pair: a byte each, and some room for buffers of fixed size.

    Gradients of half precision are summed up as floats, beside those that are handed back.
    """
    sums = 0 if case.dtype == "float32" else 4 * (math.prod(case.shape) + 2 * math.prod(case.key_shape))
    return max(case.pairs, 4 * 2**20) + sums


def peak(function: str, shape: Shape, key_shape: Shape, dtype: str, gradients: bool) -> int:
    asked = given(answered(function), shape, key_shape, dtype)
    leaves = [x.requires_grad_() for x in asked] if gradients else []
    answer = ready(function, asked)
    gradient = torch.randn(shape).to(asked[0])

    def work() -> int:
        torch.set_num_threads(1)
        with around(function), torch.set_grad_enabled(gradients):
            output = answer()
            if gradients:
                output.backward(gradient)
        return output.nbytes

    tensors = work() + sum(x.nbytes for x in leaves)  # it also loads what is loaded lazily and makes the peer's mask
    for x in leaves:
        x.grad = None
    high_water()
    before = high_water()
    thread = Thread(target=work)  # a new one has no buffers from the first call
    thread.start()
    thread.join()
    return max(0, high_water() - before - tensors)


def high_water() -> int:
    """The peak of resident memory since the last call, in bytes. getrusage would tell the parent's peak as well."""
    lines = Path("/proc/self/status").read_text().splitlines()
    peak_now = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
    Path("/proc/self/clear_refs").write_text("5")
    return peak_now


if __name__ == "__main__":
    print(peak(*json.loads(sys.argv[1])))
