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
QUICK_CASES = ["plain", "causal", "table", "additive", "dropout", "sink", "measure"]  # one of each kind

_peaks: dict[tuple[str, str, int], dict[str, int]] = {}


def matrix_bytes(length):
    return 4 * length**2  # n x n numbers of float32


def measured_bytes(backend, names, length):
    """Return the bytes of each case. One process runs all cases, because starting it takes longer than a case."""
    if (backend, names, length) not in _peaks:
        program = pathlib.Path(__file__).with_name("peak_memory.py")
        command = [sys.executable, str(program), backend, names, str(length)]
        # one thread has one arena; a low threshold returns freed memory at once, so that the next case cannot reuse it
        environment = os.environ | {"OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": str(2**17)}
        process = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        assert process.returncode == 0, process.stderr
        _peaks[backend, names, length] = json.loads(process.stdout)
    return _peaks[backend, names, length]


def predicted_bytes(backend, length):
    shape = (1, 1, length, 32)
    return regard.explain(shape, shape, shape, backend=backend).cost.extra_memory


@pytest.mark.parametrize("name", QUICK_CASES)
def test_no_backend_takes_n_by_n_memory_unless_its_plan_states_it(backend, name):
    check_memory(backend, name, QUICK_CASES, 4096, max_part=1 / 2)  # less than a matrix of float32


@pytest.mark.long
@pytest.mark.parametrize("name", CASES)
def test_no_backend_takes_the_memory_of_a_boolean_matrix_unless_its_plan_states_it(backend, name):
    # 54 MB, a fifth of one n x n matrix: less than a boolean matrix, more than the O(n) float64 tensors of gaussian
    check_memory(backend, name, CASES, 8192, max_part=1 / 5)


def check_memory(backend, name, names, length, max_part):
    """Check that a call takes less than a part of an n x n matrix of float32, if its plan predicts less than one."""
    square = matrix_bytes(length)
    if predicted_bytes(backend, length) >= square:
        return
    peaks = measured_bytes(backend, ",".join(names), length)
    if name not in peaks and backend not in cases.SUPPORTS_EVERY_CALL:
        pytest.skip("this backend does not support the call")
    assert peaks[name] < max_part * square


def test_the_plan_predicts_the_memory_of_the_call(backend):
    length = 8192 if predicted_bytes(backend, 8192) < matrix_bytes(8192) else 2048

    # 1.5 times for rounding by the allocator, plus a few MB that any call leaves allocated
    assert measured_bytes(backend, "forward", length)["forward"] < 1.5 * predicted_bytes(backend, length) + 8 * MIB
