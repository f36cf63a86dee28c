"""Attention over ranks is attention of one process, outputs and gradients, for every method and layout that fits."""

import math
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.distributed.launch import by_torchrun, finished, started, written
from tests.distributed.questions import ASKED, DIRECT, SHORT

LAYOUTS = ("contiguous", "zigzag", "striped")
# Sums of some twenty terms of size about 1 in another order, and merged: rounding stays under 40 units of 2e-16.
EXACT = 1e-14
# The gradient of a learned alpha is the difference of two much larger sums, so their rounding shows.
OF_DIFFERENCE = 4e-14


def questions(ranks: int, names: tuple[str, ...], dtypes: tuple[str, ...] = ("float64",)) -> list[str]:
    return [
        f"{method}/{layout}/{dtype}/{name}"
        for name in names
        for method in ("ring", "gather", "ulysses")
        if ASKED[name].fits(method, ranks)
        for layout in LAYOUTS
        for dtype in dtypes
    ]


@cache
def asked(ranks: int, names: tuple[str, ...], dtypes: tuple[str, ...], torchrun: bool = False):
    """What ranks found, all questions in one launch."""
    with TemporaryDirectory() as folder:
        path, what = Path(folder) / "found", questions(ranks, names, dtypes)
        if torchrun:
            assert by_torchrun(ranks, "tests.distributed.rank", str(path), *what) == 0
        else:
            assert finished(started(ranks, "tests.distributed.rank", str(path), *what)) == [0] * ranks
        return written(path, ranks)


def errors(found):
    """For the output and each gradient, over all ranks: root of the squared error as a share of the numbers, and that
    of the direct formula."""
    assert not any("error" in row for row in found), next(row["where"] for row in found if "error" in row)
    shares = []
    for parts in zip(*(row["squares"] for row in found), strict=True):
        size, mine, other = (sum(column) for column in zip(*parts, strict=True))
        shares.append((math.sqrt(mine / max(size, 1e-30)), math.sqrt(other / max(size, 1e-30))))
    return shares


def check_exact(ranks, names, torchrun=False):
    found = asked(ranks, names, ("float64",), torchrun)
    assert list(found) == questions(ranks, names)
    for what, rows in found.items():
        *plain, last = (error for error, _ in errors(rows))
        assert max(plain) <= EXACT, (what, plain)
        assert last <= (OF_DIFFERENCE if what.endswith("learned entmax") else EXACT), (what, last)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_ranks_give_what_one_process_gives(ranks):
    check_exact(ranks, SHORT)


def check_rule(ranks, torchrun=False):
    found = asked(ranks, tuple(DIRECT), ("float32", "bfloat16"), torchrun)
    shares = {what: errors(rows) for what, rows in found.items()}
    # Of what is learned there are four numbers: single roundings, which differ by more than twice by chance.
    far = {what: pairs[:4] for what, pairs in shares.items() if any(not mine <= 2 * other for mine, other in pairs[:4])}
    assert far == {}


def test_the_error_in_low_precision_is_at_most_twice_that_of_the_direct_formula():
    check_rule(3)


@pytest.mark.long
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_ranks_that_torchrun_started_answer_every_question_as_one_process(ranks):
    check_exact(ranks, tuple(ASKED), torchrun=True)


@pytest.mark.long
@pytest.mark.parametrize("ranks", [2, 4])
def test_the_error_rule_holds_under_torchrun(ranks):
    check_rule(ranks, torchrun=True)
