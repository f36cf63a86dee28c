"""Long sequences take linear memory, and linear work under a sliding window.

Times are measured in benchmarks/studies/length_doubling.py.
"""

import json
import os
import pathlib
import subprocess
import sys

import pytest

pytestmark = pytest.mark.long

ROOT = pathlib.Path(__file__).parents[2]
GIGABYTE = 10**9
ALL_PAIRS_BYTES = 4 * 65_536**2  # 17 GB


def run(case: str, threads: int) -> dict[str, float]:
    process = subprocess.run(
        [sys.executable, "-m", "tests.long.program", case],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": str(threads)},
    )
    assert process.returncode == 0, process.stderr
    result: dict[str, float] = json.loads(process.stdout)
    print(case, result)
    return result


def test_both_passes_over_65536_tokens_take_less_than_a_gigabyte():
    result = run("forward and backward", threads=2)

    # Three gradients and an output of 17 MB each, and tiles: a sixteenth of the limit.
    assert result["bytes"] < GIGABYTE < ALL_PAIRS_BYTES
    # Weights are about 1/65536; the rounding of such sums in float32 is far below values of about 1.
    assert result["error"] < 1e-5
    assert result["gradient_error"] < 1e-5


@pytest.mark.parametrize("case", ["entmax near softmax", "entmax of equal scores"])
def test_entmax_over_65536_tokens_without_zero_weights_takes_linear_memory(case):
    result = run(case, threads=2)

    # Each thread stores the scores of 48 queries, 13 MB; the rest is as for softmax.
    assert result["bytes"] < GIGABYTE
    assert result["error"] < 1e-5
    assert result["relative_gradient_error"] < 5e-5  # sums of 65,536 float32 terms of both signs


def test_sinkhorn_over_65536_tokens_takes_linear_memory():
    result = run("sinkhorn", threads=2)

    assert result["bytes"] < GIGABYTE
    assert result["mean_difference"] < 0.01 * result["mean_difference_of_softmax"]


def test_the_work_of_a_sliding_window_is_linear():
    result = run("windowed", threads=1)

    # A query attends to 256 keys; tiles at the edges of the band contain a few more.
    assert 262_144 * 200 < result["visited"] < 262_144 * 2_000
    assert result["visited"] < 2.05 * result["visited_at_half_length"]
    assert (
        result["calls"] < 1.2 * result["calls_at_half_length"]
    )  # tiles are classified by recursive halving: one more level
    assert result["error"] < 1e-5  # float32 sums of 256 terms


def test_measures_over_32768_tokens_take_less_than_a_gigabyte():
    result = run("measures", threads=2)

    assert result["bytes"] < GIGABYTE < 4 * 32_768**2
    assert result["error"] < 1e-4  # entropy is about 10, summed from 32,768 float32 weights


def test_second_derivatives_take_linear_memory():
    result = run("second order", threads=2)

    # One matrix of all pairs takes 268 MB, and an autograd graph would store a dozen. Live tensors take tens of MB;
    # resident memory is larger because blocks of many sizes fragment the heap.
    assert result["bytes"] < 2 * 4 * 8_192**2
