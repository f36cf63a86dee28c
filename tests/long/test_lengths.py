"""Long sequences: linear memory, and linear work where the mask leaves a band. Its seconds: benchmarks/lengths.py."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

pytestmark = pytest.mark.long

ROOT = pathlib.Path(__file__).parents[2]
GIGABYTE = 10**9
A_MATRIX = 4 * 65_536**2  # bytes of all pairs at the longest length, 17 GB


def run(case: str, threads: int) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.long.program", case],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": str(threads)},
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, float] = json.loads(done.stdout)
    print(case, found)
    return found


def test_65536_tokens_go_forward_and_backward_in_less_than_a_gigabyte():
    found = run("forward and backward", threads=2)

    # Three gradients and an output of 17 MB each, and tiles: a sixteenth of what is allowed.
    assert found["bytes"] < GIGABYTE < A_MATRIX
    # Weights are about 1/65536; sums of as many float32 terms stray by far less than a single value of about 1.
    assert found["error"] < 1e-5
    assert found["gradient_error"] < 1e-5


@pytest.mark.parametrize("case", ["entmax near softmax", "entmax of equal scores"])
def test_entmax_over_65536_tokens_keeps_to_linear_memory_where_no_weight_is_zero(case):
    found = run(case, threads=2)

    # Each thread keeps the scores of 48 queries, 13 MB; the rest is as for softmax.
    assert found["bytes"] < GIGABYTE
    assert found["error"] < 1e-5
    assert found["relative_gradient_error"] < 5e-5  # sums of 65,536 float32 terms of both signs


def test_sinkhorn_over_65536_tokens_keeps_to_linear_memory():
    found = run("sinkhorn", threads=2)

    assert found["bytes"] < GIGABYTE
    assert found["stray"] < 0.01 * found["stray_of_softmax"]


def test_a_window_over_twice_the_tokens_takes_twice_the_work():
    found = run("windowed", threads=1)

    # A query sees 256 keys; tiles at the edges of the band hold some more.
    assert 262_144 * 200 < found["visited"] < 262_144 * 2_000
    assert found["visited"] < 2.05 * found["visited_of_half"]
    assert found["calls"] < 1.2 * found["calls_of_half"]  # all tiles at once: one more halving
    assert found["error"] < 1e-5  # float32 sums of 256 terms


def test_measures_over_32768_tokens_take_less_than_a_gigabyte():
    found = run("measures", threads=2)

    assert found["bytes"] < GIGABYTE < 4 * 32_768**2
    assert found["error"] < 1e-4  # entropy is about 10, summed from 32,768 float32 weights


def test_second_derivatives_keep_to_linear_memory():
    found = run("second order", threads=2)

    # One matrix of all pairs is 268 MB, and a graph of them holds a dozen. Live tensors take some tens of MB; what is
    # resident is more, since the blocks' tensors of many sizes scatter over the heap.
    assert found["bytes"] < 2 * 4 * 8_192**2
