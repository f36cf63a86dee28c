"""Peak extra memory of one forward and backward pass, measured in a separate process.

python -m benchmarks.harness.memory '[FUNCTION, SHAPE, KEY_SHAPE, DTYPE, GRADIENTS]'
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

from benchmarks.cases import BenchmarkCase, Shape, bind_inputs, call_name_of, case_inputs, execution_context

ROOT = Path(__file__).parents[2]

# malloc returns freed memory to the system at once; memory of the first call would hide that of the second.
MALLOC_SETTINGS = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}


@cache
def extra_memory(function: str, shape: Shape, key_shape: Shape, dtype: str, gradients: bool) -> int:
    arguments = json.dumps([function, shape, key_shape, dtype, gradients])
    command = [sys.executable, "-m", "benchmarks.harness.memory", arguments]
    process = subprocess.run(
        command, cwd=ROOT, env=os.environ | MALLOC_SETTINGS, capture_output=True, text=True, check=True
    )
    return int(process.stdout)


def max_extra_memory(case: BenchmarkCase) -> int:
    """Return the limit of extra memory: one byte per pair, and at least 4 MiB for buffers of fixed size.

    Gradients in half precision are accumulated in float32, which needs a buffer.
    """
    sums = 0 if case.dtype == "float32" else 4 * (math.prod(case.shape) + 2 * math.prod(case.key_shape))
    return max(case.pairs, 4 * 2**20) + sums


def measure_extra_memory(function: str, shape: Shape, key_shape: Shape, dtype: str, gradients: bool) -> int:
    inputs = case_inputs(call_name_of(function), shape, key_shape, dtype)
    leaves = [x.requires_grad_() for x in inputs] if gradients else []
    run = bind_inputs(function, inputs)
    gradient = torch.randn(shape).to(inputs[0])

    def work() -> int:
        torch.set_num_threads(1)
        with execution_context(function), torch.set_grad_enabled(gradients):
            output = run()
            if gradients:
                output.backward(gradient)
        return output.nbytes

    tensors = work() + sum(
        x.nbytes for x in leaves
    )  # the first call also loads modules and computes the mask of the baseline
    for x in leaves:
        x.grad = None
    reset_peak_rss()
    before = reset_peak_rss()
    thread = Thread(target=work)  # a new thread has no buffers of the first call
    thread.start()
    thread.join()
    return max(0, reset_peak_rss() - before - tensors)


def reset_peak_rss() -> int:
    """Return the peak of resident memory since the last call, in bytes; getrusage includes the peak of the parent."""
    lines = Path("/proc/self/status").read_text().splitlines()
    peak_now = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
    Path("/proc/self/clear_refs").write_text("5")
    return peak_now


if __name__ == "__main__":
    print(measure_extra_memory(*json.loads(sys.argv[1])))
