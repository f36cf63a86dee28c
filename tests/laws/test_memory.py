"""Memory: O(n) beyond inputs and outputs unless the plan says otherwise; nothing becomes n x n silently.

Measured as resident memory in a process of its own (`peak.py`). The truly long problems run elsewhere.
"""

import json
import pathlib
import subprocess
import sys

import pytest

import regard

LENGTH = 8192
SQUARE = 4 * LENGTH**2
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
    "measure",
]

_measured: dict[str, dict[str, int]] = {}


def measured(engine: str, length: int) -> dict[str, int]:
    """All cases in one process, since starting one takes longer than a case does."""
    if engine not in _measured:
        program = pathlib.Path(__file__).with_name("peak.py")
        command = [sys.executable, str(program), engine, ",".join(CASES), str(length)]
        _measured[engine] = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return _measured[engine]


@pytest.mark.parametrize("name", CASES)
def test_no_engine_takes_n_by_n_memory_unless_its_plan_says_so(engine, name):
    shape = (1, 1, LENGTH, 32)
    predicted = regard.explain(shape, shape, shape, engine=engine).cost.extra_memory
    if predicted >= SQUARE:
        pytest.skip(f"the plan of {engine} says that it takes {predicted:,} bytes")

    # An eighth of one n x n float32 matrix: 32 MB hold inputs' gradients, tiles and what the allocator keeps.
    assert measured(engine, LENGTH)[name] < SQUARE / 8
