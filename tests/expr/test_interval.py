"""Interval bounds of single operations, checked against torch on sampled numbers between the bounds."""

import random
from itertools import product

import numpy as np
import pytest
import torch

from regard.expr.evaluate import TORCH_IMPLEMENTATIONS
from regard.expr.interval import MAX_TRACKED_INT, Interval, op_interval, point_interval
from regard.expr.ir import (
    ARITHMETIC,
    BITWISE,
    COMPARISONS,
    ELEMENTARY_FUNCTIONS,
    LOGIC,
    ROUNDING,
    Expr,
    ScalarKind,
    apply,
    constant,
    lookup,
    variable,
)

INTEGERS = (-1000, -17, -5, -3, -2, -1, 0, 1, 2, 3, 4, 7, 31, 1000)
FLOATS = (-torch.inf, -1e30, -88.8, -7.25, -1.0, -1e-20, -0.0, 0.0, 1e-20, 0.3, 1.0, 2.5, 88.8, 1e30, torch.inf)
BOOLEANS = (0, 1)
DTYPES: dict[ScalarKind, type] = {"bool": np.int8, "int": np.int64, "float": np.float32}
TORCH: dict[ScalarKind, torch.dtype] = {"bool": torch.bool, "int": torch.int64, "float": torch.float32}


def leaf(kind: ScalarKind, number: int) -> Expr:
    return lookup(number, (variable("i"),), kind)


def random_intervals(kind: ScalarKind, count: int) -> list[tuple[Interval, list[float]]]:
    """Return intervals with numbers in them: both ends, some between, and NaN for unbounded intervals."""
    rng = random.Random(0)
    intervals = []
    for _ in range(count):
        candidates = {"bool": BOOLEANS, "int": INTEGERS, "float": FLOATS}[kind]
        low, high = sorted(rng.choices(candidates, k=2))
        if rng.random() < 0.3:
            high = low
        samples = [x for x in candidates if low <= x <= high]
        if kind == "float" and np.isfinite([low, high]).all():
            samples += [float(np.float32(low + (high - low) * rng.random())) for _ in range(2)]
        if kind == "int":
            samples += [rng.randint(low, high) for _ in range(2)]
        if kind == "float" and (low, high) == (-torch.inf, torch.inf):
            samples.append(torch.nan)
        intervals.append(((np.array([low], DTYPES[kind]), np.array([high], DTYPES[kind])), samples))
    return intervals


def check_bounds(op: str, *kinds: ScalarKind, count: int = 60) -> int:
    """Check the bounds of an operation on intervals of these kinds; return how many bounds were finite."""
    node = apply(op, *(leaf(kind, n) for n, kind in enumerate(kinds)))
    decided = 0
    choices = [
        random_intervals(kind, count)[shift:] + random_intervals(kind, count)[:shift]
        for shift, kind in enumerate(kinds)
    ]
    for operands in zip(*choices, strict=True):
        (low,), (high,) = op_interval(node, [interval for interval, _ in operands])
        decided += bool(np.isfinite(low) and np.isfinite(high) and abs(float(low)) < MAX_TRACKED_INT)
        points = list(product(*(samples for _, samples in operands)))
        if op in ("floordiv", "mod") and "float" not in kinds:
            points = [t for t in points if t[1] != 0]  # torch raises an error
        args = [torch.tensor([t[n] for t in points], dtype=TORCH[kind]) for n, kind in enumerate(kinds)]
        if not len(points):
            continue
        values = TORCH_IMPLEMENTATIONS[op](*args).double().numpy()
        unknown = np.isneginf(low) and np.isposinf(high)
        violated = np.where(np.isnan(values), not unknown, (values < low) | (values > high))
        if violated.any():
            first = int(np.argmax(violated))
            pytest.fail(f"{op}{points[first]} = {values[first]} is not within [{low}, {high}], from {operands}")
    return decided


NUMBERS: list[tuple[ScalarKind, ScalarKind]] = [("int", "int"), ("float", "float"), ("int", "float"), ("float", "int")]


@pytest.mark.parametrize("kinds", NUMBERS, ids="-".join)
@pytest.mark.parametrize("op", sorted((ARITHMETIC - {"pow"}) | COMPARISONS | {"div"}))
def test_binary_operation_stays_within_its_bounds(op: str, kinds: tuple[ScalarKind, ScalarKind]) -> None:
    assert check_bounds(op, *kinds, count=120) > 10


@pytest.mark.parametrize(
    ("op", "kind"), [*product(("neg", "abs", "sign"), ("int", "float")), ("to_float", "int")], ids=str
)
def test_unary_operation_stays_within_its_bounds(op: str, kind: ScalarKind) -> None:
    assert check_bounds(op, kind) > 10


@pytest.mark.parametrize("op", sorted(ROUNDING | {"to_int"}))
def test_rounding_stays_within_its_bounds(op: str) -> None:
    if op == "to_int":  # floats outside the integer range are covered by test_bounds
        node = apply(op, leaf("float", 0))
        for low, high in [(-2.7, 3.9), (-0.5, 0.5), (5.0, 5.0), (-1e9, 1e9)]:
            lower, upper = op_interval(node, [(np.array([low], np.float32), np.array([high], np.float32))])
            assert (lower.item(), upper.item()) == (int(low), int(high))
        assert op_interval(node, [(np.array([0.0]), np.array([np.inf]))])[1].item() == MAX_TRACKED_INT
        return
    assert check_bounds(op, "float") > 10


@pytest.mark.parametrize("op", sorted(ELEMENTARY_FUNCTIONS))
def test_elementary_functions_stay_within_their_bounds(op: str) -> None:
    decided = check_bounds(op, "float")
    assert op in ("sin", "cos") or decided > 5


@pytest.mark.parametrize("op", sorted(LOGIC - {"not"}))
def test_logic_stays_within_its_bounds(op: str) -> None:
    assert check_bounds(op, "bool", "bool") > 10


def test_bounds_of_logic_are_exact() -> None:
    no, yes, maybe = (np.array([0]), np.array([0])), (np.array([1]), np.array([1])), (np.array([0]), np.array([1]))

    def bounds(op: str, *args: Interval) -> tuple[int, int]:
        low, high = op_interval(apply(op, *(leaf("bool", n) for n in range(len(args)))), list(args))
        return low.item(), high.item()

    assert (
        bounds("and", maybe, no) == (0, 0) and bounds("and", yes, yes) == (1, 1) and bounds("and", maybe, yes) == (0, 1)
    )
    assert bounds("or", maybe, yes) == (1, 1) and bounds("or", no, no) == (0, 0) and bounds("or", maybe, no) == (0, 1)
    assert bounds("xor", yes, no) == (1, 1) and bounds("xor", yes, yes) == (0, 0) and bounds("xor", maybe, no) == (0, 1)
    assert bounds("not", yes) == (0, 0) and bounds("not", no) == (1, 1) and bounds("not", maybe) == (0, 1)


@pytest.mark.parametrize("kinds", NUMBERS, ids="-".join)
def test_where_stays_within_its_bounds(kinds: tuple[ScalarKind, ScalarKind]) -> None:
    assert check_bounds("where", "bool", *kinds, count=120) > 10


def test_where_with_a_decided_condition_takes_only_that_branch() -> None:
    node = apply("where", leaf("bool", 0), leaf("int", 1), leaf("int", 2))
    one, other = (np.array([3]), np.array([4])), (np.array([10]), np.array([12]))
    for condition, expected in (((1, 1), (3, 4)), ((0, 0), (10, 12)), ((0, 1), (3, 12))):
        low, high = op_interval(node, [tuple(np.array([c]) for c in condition), one, other])
        assert (low.item(), high.item()) == expected


@pytest.mark.parametrize("op", sorted(BITWISE | {"pow"}))
def test_operation_without_interval_arithmetic_is_unknown(op: str) -> None:
    low, high = op_interval(
        apply(op, leaf("int", 0), leaf("int", 1)), [point_interval(np.array([3])), point_interval(np.array([2]))]
    )
    assert (low.item(), high.item()) == (-MAX_TRACKED_INT, MAX_TRACKED_INT)


def test_square_is_not_negative() -> None:
    x = leaf("int", 0)
    low, high = op_interval(apply("mul", x, x), [(np.array([-3]), np.array([2]))] * 2)
    assert (low.item(), high.item()) == (0, 9)
    y = leaf("float", 0)
    low, high = op_interval(apply("mul", y, y), [(np.array([-3.0]), np.array([-2.0]))] * 2)
    assert (low.item(), high.item()) == (4.0, 9.0)


def test_remainder_within_one_period_is_exact() -> None:
    node = apply("mod", leaf("int", 0), leaf("int", 1))
    seven = point_interval(np.array([7]))
    for (low, high), expected in {(15, 19): (1, 5), (-6, -3): (1, 4), (13, 15): (0, 6), (0, 6): (0, 6)}.items():
        lower, upper = op_interval(node, [(np.array([low]), np.array([high])), seven])
        assert (lower.item(), upper.item()) == expected


def test_overflowing_sums_and_products_are_unknown() -> None:
    big = point_interval(np.array([2**61 + 5]))
    for op in ("add", "mul"):
        node = apply(op, leaf("int", 0), leaf("int", 1))
        low, high = op_interval(node, [big, big] if op == "mul" else [point_interval(np.array([2**62])), big])
        assert (low.item(), high.item()) == (-MAX_TRACKED_INT, MAX_TRACKED_INT), op


def test_division_by_an_interval_around_zero_is_unknown() -> None:
    around_zero = (np.array([-1.0], np.float32), np.array([1.0], np.float32))
    one = point_interval(np.array([1.0], np.float32))
    low, high = op_interval(apply("div", leaf("float", 0), leaf("float", 1)), [one, around_zero])
    assert np.isneginf(low).all() and np.isposinf(high).all()


def test_booleans_count_as_zero_and_one() -> None:
    low, high = point_interval(np.array([True, False]))
    assert low.tolist() == [1, 0] and high.dtype == np.int8


def test_numbers_are_promoted_to_float64_only_by_a_tensor() -> None:
    node = apply("add", leaf("float", 0), constant(0.1))
    coarse = op_interval(node, [point_interval(np.array([1.0], np.float32)), point_interval(np.asarray(0.1))])
    fine = op_interval(node, [point_interval(np.array([1.0], np.float64)), point_interval(np.asarray(0.1))])
    assert coarse[0].item() == np.float32(1.0) + np.float32(0.1)
    assert fine[0].item() == 1.0 + 0.1
