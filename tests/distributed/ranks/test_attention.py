"""Attention over ranks matches a single process, in outputs and gradients, for every supported method and layout."""

import math
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.distributed.cases import CASES, DIRECT_FORMULAS, METHODS, QUICK_CASES
from tests.distributed.launch import read_results, run_with_torchrun, start_ranks, wait_for_ranks

LAYOUTS = ("contiguous", "zigzag", "striped")
# Sums of about twenty terms of size about 1 in another order, and merged: rounding stays under 40 units of 2e-16.
TOLERANCE = 1e-14
# The gradient of a learned alpha is the difference of two much larger sums, so their rounding shows.
ALPHA_TOLERANCE = 4e-14


def run_names(world_size: int, cases: tuple[str, ...], dtypes: tuple[str, ...] = ("float64",)) -> list[str]:
    return [
        f"{method}/{layout}/{dtype}/{case}"
        for case in cases
        for method in METHODS
        if CASES[case].supports(method, world_size)
        for layout in LAYOUTS
        for dtype in dtypes
    ]


@cache
def run_cases(world_size: int, cases: tuple[str, ...], dtypes: tuple[str, ...], torchrun: bool = False):
    """Return the results of all ranks by run, from one launch."""
    with TemporaryDirectory() as folder:
        path, runs = Path(folder) / "results", run_names(world_size, cases, dtypes)
        command = ("tests.distributed.compare_worker", str(path), *runs)
        if torchrun:
            assert run_with_torchrun(world_size, *command) == 0
        else:
            assert wait_for_ranks(start_ranks(world_size, *command)) == [0] * world_size
        return read_results(path, world_size)


def relative_errors(rank_results):
    """Return (error, error of the direct formula) of the output and of each gradient, over all ranks.

    Errors are Frobenius norms, relative to the norm of the exact values.
    """
    failures = [result["traceback"] for result in rank_results if "error" in result]
    assert not failures, failures[0]
    errors = []
    for squares in zip(*(result["squares"] for result in rank_results), strict=True):
        exact, error, direct_error = (sum(column) for column in zip(*squares, strict=True))
        norm = max(exact, 1e-30)
        errors.append((math.sqrt(error / norm), math.sqrt(direct_error / norm)))
    return errors


def check_exact(world_size, cases, torchrun=False):
    results = run_cases(world_size, cases, ("float64",), torchrun)
    assert list(results) == run_names(world_size, cases)
    for run, rank_results in results.items():
        *errors, last_error = (error for error, _ in relative_errors(rank_results))
        assert max(errors) <= TOLERANCE, (run, errors)
        assert last_error <= (ALPHA_TOLERANCE if run.endswith("learned entmax") else TOLERANCE), (run, last_error)


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_attention_over_ranks_matches_a_single_process(world_size):
    check_exact(world_size, QUICK_CASES)


def check_low_precision(world_size, torchrun=False):
    results = run_cases(world_size, tuple(DIRECT_FORMULAS), ("float32", "bfloat16"), torchrun)
    # A learned tensor has only four elements: single roundings, which differ by more than a factor of two by chance.
    errors = {run: relative_errors(rank_results)[:4] for run, rank_results in results.items()}
    too_large = {run: pairs for run, pairs in errors.items() if any(not error <= 2 * direct for error, direct in pairs)}
    assert too_large == {}


def test_low_precision_error_is_at_most_twice_that_of_the_direct_formula():
    check_low_precision(3)


@pytest.mark.long
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_all_cases_match_a_single_process_under_torchrun(world_size):
    check_exact(world_size, tuple(CASES), torchrun=True)


@pytest.mark.long
@pytest.mark.parametrize("world_size", [2, 4])
def test_low_precision_error_under_torchrun(world_size):
    check_low_precision(world_size, torchrun=True)
