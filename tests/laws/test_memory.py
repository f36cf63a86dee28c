"""Memory is O(n) beyond inputs and outputs, unless the plan states n x n.

The peak resident memory is measured in a separate process (`peak_memory.py`). Very long problems are in `tests/long`.
"""

import json
import os
import pathlib
import subprocess
import sys

import pytest

import regard

from . import cases

LENGTH = 8192
SQUARE = 4 * LENGTH**2  # bytes of one n x n matrix of float32
MIB = 2**20
CASES = [
    "plain",
    "causal",
    "window",
    "function",
    "table",
    "keys",
    "gaussian",
    "additive",
    "custom",
    "dropout",
    "sink",
    "sigmoid",
    "relu",
    "sparsemax",
    "entmax",
    "topk",
    "hardmax",
    "sinkhorn",
    "measure",
]

_peaks: dict[tuple[str, str], dict[str, int]] = {}


def measured_bytes(backend, names, length):
    """Return the bytes of each case. One process runs all cases, because starting it takes longer than a case."""
    if (backend, names) not in _peaks:
        program = pathlib.Path(__file__).with_name("peak_memory.py")
        command = [sys.executable, str(program), backend, names, str(length)]
        # one thread has one arena; a low threshold returns freed memory at once, so that the next case cannot reuse it
        environment = os.environ | {"OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": str(2**17)}
        process = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        assert process.returncode == 0, process.stderr
        _peaks[backend, names] = json.loads(process.stdout)
    return _peaks[backend, names]


def predicted_bytes(backend, length):
    shape = (1, 1, length, 32)
    return regard.explain(shape, shape, shape, backend=backend).cost.extra_memory


@pytest.mark.parametrize("name", CASES)
def test_no_backend_takes_n_by_n_memory_unless_its_plan_states_it(backend, name):
    if predicted_bytes(backend, LENGTH) >= SQUARE:
        return  # the plan states it

    # 54 MB, a fifth of one n x n matrix: less than a boolean matrix, more than the O(n) float64 tensors of gaussian
    peaks = measured_bytes(backend, ",".join(CASES), LENGTH)
    if name not in peaks and backend not in cases.SUPPORTS_EVERY_CALL:
        pytest.skip("this backend does not support the call")
    assert peaks[name] < SQUARE / 5


def test_the_plan_predicts_the_memory_of_the_call(backend):
    length = LENGTH if predicted_bytes(backend, LENGTH) < SQUARE else 2048

    # 1.5 times for rounding by the allocator, plus a few MB that any call leaves allocated
    assert measured_bytes(backend, "forward", length)["forward"] < 1.5 * predicted_bytes(backend, length) + 8 * MIB
