"""The bounds of single operations, tried against torch's own result on numbers between the bounds."""

import random
from itertools import product

import numpy as np
import pytest
import torch

from regard.spec.evaluate import FUNCTIONS
from regard.spec.interval import FAR, Interval, combine, exactly
from regard.spec.term import (
    ARITHMETIC,
    BITWISE,
    COMPARISONS,
    LOGIC,
    ROUNDING,
    SMOOTH,
    Kind,
    Term,
    apply,
    constant,
    lookup,
    variable,
)

WHOLE = (-1000, -17, -5, -3, -2, -1, 0, 1, 2, 3, 4, 7, 31, 1000)
REAL = (-torch.inf, -1e30, -88.8, -7.25, -1.0, -1e-20, -0.0, 0.0, 1e-20, 0.3, 1.0, 2.5, 88.8, 1e30, torch.inf)
CONDITIONS = (0, 1)
DTYPES: dict[Kind, type] = {"bool": np.int8, "int": np.int64, "float": np.float32}
TORCH: dict[Kind, torch.dtype] = {"bool": torch.bool, "int": torch.int64, "float": torch.float32}


def leaf(kind: Kind, number: int) -> Term:
    return lookup(number, (variable("i"),), kind)


def draws(kind: Kind, count: int) -> list[tuple[Interval, list[float]]]:
    """Intervals, with numbers inside them: the ends, some between, and NaN where nothing is known."""
    dice = random.Random(0)
    found = []
    for _ in range(count):
        ladder = {"bool": CONDITIONS, "int": WHOLE, "float": REAL}[kind]
        low, high = sorted(dice.choices(ladder, k=2))
        if dice.random() < 0.3:
            high = low
        inside = [x for x in ladder if low <= x <= high]
        if kind == "float" and np.isfinite([low, high]).all():
            inside += [float(np.float32(low + (high - low) * dice.random())) for _ in range(2)]
        if kind == "int":
            inside += [dice.randint(low, high) for _ in range(2)]
        if kind == "float" and (low, high) == (-torch.inf, torch.inf):
            inside.append(torch.nan)
        found.append(((np.array([low], DTYPES[kind]), np.array([high], DTYPES[kind])), inside))
    return found


def holds(op: str, *kinds: Kind, count: int = 60) -> int:
    """Try an operation on intervals of these kinds; how many of the bounds were finite."""
    node = apply(op, *(leaf(kind, n) for n, kind in enumerate(kinds)))
    decided = 0
    choices = [draws(kind, count)[shift:] + draws(kind, count)[:shift] for shift, kind in enumerate(kinds)]
    for drawn in zip(*choices, strict=True):
        (low,), (high,) = combine(node, [interval for interval, _ in drawn])
        decided += bool(np.isfinite(low) and np.isfinite(high) and abs(float(low)) < FAR)
        tuples = list(product(*(inside for _, inside in drawn)))
        if op in ("floordiv", "mod") and "float" not in kinds:
            tuples = [t for t in tuples if t[1] != 0]  # torch refuses
        args = [torch.tensor([t[n] for t in tuples], dtype=TORCH[kind]) for n, kind in enumerate(kinds)]
        if not len(tuples):
            continue
        values = FUNCTIONS[op](*args).double().numpy()
        unknown = np.isneginf(low) and np.isposinf(high)
        wrong = np.where(np.isnan(values), not unknown, (values < low) | (values > high))
        if wrong.any():
            first = int(np.argmax(wrong))
            pytest.fail(f"{op}{tuples[first]} = {values[first]} is not within [{low}, {high}], from {drawn}")
    return decided


NUMBERS: list[tuple[Kind, Kind]] = [("int", "int"), ("float", "float"), ("int", "float"), ("float", "int")]


@pytest.mark.parametrize("kinds", NUMBERS, ids="-".join)
@pytest.mark.parametrize("op", sorted((ARITHMETIC - {"pow"}) | COMPARISONS | {"div"}))
def test_an_operation_on_two_numbers_stays_within_its_bounds(op: str, kinds: tuple[Kind, Kind]) -> None:
    assert holds(op, *kinds, count=120) > 10


@pytest.mark.parametrize(
    ("op", "kind"), [*product(("neg", "abs", "sign"), ("int", "float")), ("to_float", "int")], ids=str
)
def test_an_operation_on_one_number_stays_within_its_bounds(op: str, kind: Kind) -> None:
    assert holds(op, kind) > 10


@pytest.mark.parametrize("op", sorted(ROUNDING | {"to_int"}))
def test_rounding_stays_within_its_bounds(op: str) -> None:
    if op == "to_int":  # a float beyond every whole number has none to be bounded by; test_bounds looks at those
        node = apply(op, leaf("float", 0))
        for low, high in [(-2.7, 3.9), (-0.5, 0.5), (5.0, 5.0), (-1e9, 1e9)]:
            least, most = combine(node, [(np.array([low], np.float32), np.array([high], np.float32))])
            assert (least.item(), most.item()) == (int(low), int(high))
        assert combine(node, [(np.array([0.0]), np.array([np.inf]))])[1].item() == FAR
        return
    assert holds(op, "float") > 10


@pytest.mark.parametrize("op", sorted(SMOOTH))
def test_smooth_functions_stay_within_their_bounds(op: str) -> None:
    decided = holds(op, "float")
    assert op in ("sin", "cos") or decided > 5


@pytest.mark.parametrize("op", sorted(LOGIC - {"not"}))
def test_logic_stays_within_its_bounds(op: str) -> None:
    assert holds(op, "bool", "bool") > 10


def test_logic_is_exact() -> None:
    no, yes, maybe = (np.array([0]), np.array([0])), (np.array([1]), np.array([1])), (np.array([0]), np.array([1]))

    def of(op: str, *args: Interval) -> tuple[int, int]:
        low, high = combine(apply(op, *(leaf("bool", n) for n in range(len(args)))), list(args))
        return low.item(), high.item()

    assert of("and", maybe, no) == (0, 0) and of("and", yes, yes) == (1, 1) and of("and", maybe, yes) == (0, 1)
    assert of("or", maybe, yes) == (1, 1) and of("or", no, no) == (0, 0) and of("or", maybe, no) == (0, 1)
    assert of("xor", yes, no) == (1, 1) and of("xor", yes, yes) == (0, 0) and of("xor", maybe, no) == (0, 1)
    assert of("not", yes) == (0, 0) and of("not", no) == (1, 1) and of("not", maybe) == (0, 1)


@pytest.mark.parametrize("kinds", NUMBERS, ids="-".join)
def test_a_choice_stays_within_its_bounds(kinds: tuple[Kind, Kind]) -> None:
    assert holds("where", "bool", *kinds, count=120) > 10


def test_a_choice_that_is_sure_takes_only_that_branch() -> None:
    node = apply("where", leaf("bool", 0), leaf("int", 1), leaf("int", 2))
    one, other = (np.array([3]), np.array([4])), (np.array([10]), np.array([12]))
    for condition, expected in (((1, 1), (3, 4)), ((0, 0), (10, 12)), ((0, 1), (3, 12))):
        low, high = combine(node, [tuple(np.array([c]) for c in condition), one, other])
        assert (low.item(), high.item()) == expected


@pytest.mark.parametrize("op", sorted(BITWISE | {"pow"}))
def test_what_has_no_rule_is_unknown(op: str) -> None:
    low, high = combine(apply(op, leaf("int", 0), leaf("int", 1)), [exactly(np.array([3])), exactly(np.array([2]))])
    assert (low.item(), high.item()) == (-FAR, FAR)


def test_a_number_times_itself_is_not_negative() -> None:
    x = leaf("int", 0)
    low, high = combine(apply("mul", x, x), [(np.array([-3]), np.array([2]))] * 2)
    assert (low.item(), high.item()) == (0, 9)
    y = leaf("float", 0)
    low, high = combine(apply("mul", y, y), [(np.array([-3.0]), np.array([-2.0]))] * 2)
    assert (low.item(), high.item()) == (4.0, 9.0)


def test_a_remainder_of_numbers_in_one_period_is_exact() -> None:
    node = apply("mod", leaf("int", 0), leaf("int", 1))
    seven = exactly(np.array([7]))
    for (low, high), expected in {(15, 19): (1, 5), (-6, -3): (1, 4), (13, 15): (0, 6), (0, 6): (0, 6)}.items():
        least, most = combine(node, [(np.array([low]), np.array([high])), seven])
        assert (least.item(), most.item()) == expected


def test_sums_and_products_beyond_the_reach_of_whole_numbers_are_unknown() -> None:
    big = exactly(np.array([2**61 + 5]))
    for op in ("add", "mul"):
        node = apply(op, leaf("int", 0), leaf("int", 1))
        low, high = combine(node, [big, big] if op == "mul" else [exactly(np.array([2**62])), big])
        assert (low.item(), high.item()) == (-FAR, FAR), op


def test_a_division_by_an_interval_around_zero_is_unknown() -> None:
    around = (np.array([-1.0], np.float32), np.array([1.0], np.float32))
    one = exactly(np.array([1.0], np.float32))
    low, high = combine(apply("div", leaf("float", 0), leaf("float", 1)), [one, around])
    assert np.isneginf(low).all() and np.isposinf(high).all()


def test_conditions_are_counted_as_zero_and_one() -> None:
    low, high = exactly(np.array([True, False]))
    assert low.tolist() == [1, 0] and high.dtype == np.int8


def test_numbers_meet_in_float64_only_if_a_table_has_it() -> None:
    node = apply("add", leaf("float", 0), constant(0.1))
    coarse = combine(node, [exactly(np.array([1.0], np.float32)), exactly(np.asarray(0.1))])
    fine = combine(node, [exactly(np.array([1.0], np.float64)), exactly(np.asarray(0.1))])
    assert coarse[0].item() == np.float32(1.0) + np.float32(0.1)
    assert fine[0].item() == 1.0 + 0.1
