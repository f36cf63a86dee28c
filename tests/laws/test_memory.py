"""Memory: O(n) beyond inputs and outputs unless the plan says otherwise; nothing becomes n x n silently.

Measured as resident memory in a process of its own (`peak.py`). The truly long problems run elsewhere.
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
MEBI = 2**20
CASES = [
    "plain",
    "causal",
    "window",
    "function",
    "table",
    "keys",
    "metric",
    "additive",
    "custom",
    "dropout",
    "sink",
    "sigmoid",
    "relu",
    "sparsemax",
    "entmax",
    "top",
    "argmax",
    "sinkhorn",
    "measure",
]

_found: dict[tuple[str, str], dict[str, int]] = {}


def measured(engine, names, length):
    """Bytes of each case. All in one process: starting one takes longer than a case does."""
    if (engine, names) not in _found:
        program = pathlib.Path(__file__).with_name("peak.py")
        command = [sys.executable, str(program), engine, names, str(length)]
        # each thread keeps arenas of its own, and what is freed is to go back at once, or the next case hides in it
        surroundings = os.environ | {"OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": str(2**17)}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=surroundings)
        assert done.returncode == 0, done.stderr
        _found[engine, names] = json.loads(done.stdout)
    return _found[engine, names]


def predicted(engine, length):
    shape = (1, 1, length, 32)
    return regard.explain(shape, shape, shape, engine=engine).cost.extra_memory


@pytest.mark.parametrize("name", CASES)
def test_no_engine_takes_n_by_n_memory_unless_its_plan_says_so(engine, name):
    if predicted(engine, LENGTH) >= SQUARE:
        return  # it says so

    # A fifth of one n x n matrix, 54 MB: less than one of booleans, more than what a metric keeps of O(n) in float64.
    found = measured(engine, ",".join(CASES), LENGTH)
    if name not in found and engine not in cases.NEVER_DECLINE:
        pytest.skip("this engine declines")
    assert found[name] < SQUARE / 5


def test_the_plan_tells_the_memory_that_the_call_takes(engine):
    length = LENGTH if predicted(engine, LENGTH) < SQUARE else 2048

    # Half as much again for what the allocator rounds up, and some MB that any call leaves behind.
    assert measured(engine, "forward", length)["forward"] < 1.5 * predicted(engine, length) + 8 * MEBI
