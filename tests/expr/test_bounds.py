"""Bounds hold at every position of every box, for thousands of random expressions and for hand-written ones."""

from dataclasses import dataclass, field
from functools import cache

import numpy as np
import pytest
import torch

from regard.expr.bounds import MAX_HOISTED_NUMEL, BoundsEvaluator, IndexBoxes, MinMaxPyramid, as_bounds_array
from regard.expr.interval import MAX_TRACKED_INT
from regard.expr.ir import Expr, apply, constant, lookup, variable, walk
from regard.expr.printing import to_text

from .random_exprs import EvalContext, ExprGenerator, box_values, random_boxes, random_context, tile_boxes

I, J, P, B, H = (variable(name) for name in "ijpbh")
SEEDS = range(3)
MORE_SEEDS = [pytest.param(seed, marks=pytest.mark.long) for seed in range(3, 12)]
MASKS_PER_SEED = 220
NUMBERS_PER_SEED = 50


@dataclass
class BoundsReport:
    """Results over many expressions: numbers of empty and full boxes, how many were decided, and violated bounds."""

    num_exprs: int = 0
    empty: int = 0
    full: int = 0
    decided_empty: int = 0
    decided_full: int = 0
    violations: list[str] = field(default_factory=list)


def some_boxes(context: EvalContext, number: int) -> IndexBoxes:
    return random_boxes(context, number, 12) if number % 2 else tile_boxes(context, 8 if number % 4 else 16)


@cache
def evaluate_bounds(seed: int, scalars: bool = False, narrow: bool = False, in_range: bool = False) -> BoundsReport:
    context, report = random_context(seed, scalars=scalars, narrow=narrow), BoundsReport()
    generator = ExprGenerator(context, seed, in_range=in_range)
    bounds = BoundsEvaluator(context.tensors, context.score_shape, context.query_offset)
    for number in range(MASKS_PER_SEED):
        expr = generator.boolean(4)
        values = context.values_or_none(expr)
        if values is None:
            continue
        boxes = some_boxes(context, number)
        low, high = bounds.bounds(expr, boxes)
        report.num_exprs += 1
        for r, block in enumerate(box_values(values, boxes)):
            all_true, any_true = bool(block.all()), bool(block.any())
            if low[r] > all_true or high[r] < any_true:
                report.violations.append(f"{to_text(expr)} in {all_true, any_true}, bounded by {low[r], high[r]}")
            report.full += all_true
            report.decided_full += all_true and low[r] == 1
            report.empty += not any_true
            report.decided_empty += not any_true and high[r] == 0
    return report


@pytest.mark.parametrize("seed", [*SEEDS, *MORE_SEEDS])
def test_bounds_of_random_booleans_hold(seed: int) -> None:
    report = evaluate_bounds(seed)
    assert not report.violations, report.violations[0]
    assert report.num_exprs > 0.95 * MASKS_PER_SEED


@pytest.mark.parametrize("seed", [100, 101])
def test_bounds_hold_with_scalar_tensors(seed: int) -> None:
    report = evaluate_bounds(seed, scalars=True)
    assert not report.violations, report.violations[0]


@pytest.mark.parametrize("seed", [110, 111])
def test_bounds_hold_with_narrow_integers(seed: int) -> None:
    report = evaluate_bounds(seed, narrow=True)
    assert not report.violations, report.violations[0]


def test_most_empty_and_full_boxes_of_random_booleans_are_decided() -> None:
    # a lookup that may be out of range stays undecided, so that evaluation reports it; here every lookup is in range
    reports = [evaluate_bounds(seed, in_range=True) for seed in SEEDS]
    assert not any(report.violations for report in reports)
    empty = sum(r.decided_empty for r in reports) / sum(r.empty for r in reports)
    full = sum(r.decided_full for r in reports) / sum(r.full for r in reports)
    # measured: 0.80 of the empty and of the full boxes, most of which are not aligned to powers of two
    assert empty > 0.78 and full > 0.78, (empty, full)


@pytest.mark.parametrize("seed", [*SEEDS, *MORE_SEEDS])
def test_bounds_of_random_numbers_hold(seed: int) -> None:
    context = random_context(seed)
    generator = ExprGenerator(context, 1000 + seed)
    bounds = BoundsEvaluator(context.tensors, context.score_shape, context.query_offset)
    for number in range(NUMBERS_PER_SEED):
        expr = generator.integer(4) if number % 2 else generator.floating(4)
        values = context.values_or_none(expr) if expr.args else None
        if values is None or _exceeds_tracked_range(context, expr):
            continue
        boxes = some_boxes(context, number // 2)
        low, high = bounds.bounds(expr, boxes)
        for r, block in enumerate(box_values(values, boxes)):
            numbers = block[~np.isnan(block)]
            if len(numbers) < block.size:
                assert np.isneginf(low[r]) and np.isposinf(high[r]), (
                    f"{to_text(expr)} may be NaN, not in {low[r], high[r]}"
                )
            assert not len(numbers) or (low[r] <= numbers.min() and high[r] >= numbers.max()), (
                f"{to_text(expr)} takes {numbers.min()} to {numbers.max()}, bounded by {low[r], high[r]}"
            )


def _exceeds_tracked_range(context: EvalContext, expr: Expr) -> bool:
    """Integers beyond 2^62 are not tracked; only comparisons with them must be right."""
    return any(
        np.abs(context.values(node).astype(np.float64)).max() >= MAX_TRACKED_INT
        for node in walk(expr)
        if node.kind == "int"
    )


def test_bounds_hold_with_default_dtype_float64() -> None:
    torch.set_default_dtype(torch.float64)
    try:
        evaluate_bounds.cache_clear()
        violations = [line for seed in (200, 201, 202) for line in evaluate_bounds(seed).violations]
    finally:
        torch.set_default_dtype(torch.float32)
        evaluate_bounds.cache_clear()
    assert not violations, violations[0]


def bound(expr: Expr, *tensors: torch.Tensor, i: tuple[int, int] = (0, 7), j: tuple[int, int] = (0, 7), n: int = 8):  # type: ignore[no-untyped-def]
    boxes = IndexBoxes(*(np.array([x]) for x in (0, 0, *i, *j)))
    low, high = BoundsEvaluator(tensors, (1, 1, n, n), 0).bounds(expr, boxes)
    return low.item(), high.item()


def test_positions_are_bounded_by_the_corners_of_the_box() -> None:
    assert bound(apply("sub", I, J), i=(2, 4), j=(5, 6)) == (-4, -1)
    assert bound(apply("le", J, P), i=(4, 7), j=(0, 3)) == (1, 1)
    assert bound(apply("le", J, P), i=(0, 3), j=(4, 7)) == (0, 0)
    assert bound(apply("le", J, P), i=(0, 3), j=(3, 7)) == (0, 1)


def test_key_only_subexpression_is_bounded_exactly() -> None:
    residue = apply("mod", apply("mul", J, J), constant(7))  # 0 1 4 2 2 4 1 0: intervals alone would give 0 to 6
    assert bound(residue, j=(2, 3)) == (2, 4)
    assert bound(residue, j=(6, 7)) == (0, 1)


def test_lookup_is_bounded_by_the_entries_it_reads() -> None:
    table = torch.tensor([5, 1, 9, 3, 7, 2, 8, 0, 6, 4, 11, 10, 13, 12, 15, 14])
    assert bound(lookup(0, (J,), "int"), table, j=(2, 3)) == (3, 9)
    distance = apply("add", apply("sub", I, J), constant(7))
    assert bound(lookup(0, (distance,), "int"), table, i=(7, 7), j=(7, 7)) == (0, 0)
    assert bound(lookup(0, (distance,), "int"), table, i=(4, 4), j=(0, 1)) == (10, 11)


def test_negative_index_counts_from_the_end() -> None:
    table = torch.tensor([1, 2, 3, 40])
    assert bound(lookup(0, (apply("sub", I, J),), "int"), table, i=(0, 0), j=(1, 1)) == (40, 40)
    assert bound(lookup(0, (apply("sub", I, J),), "int"), table, i=(0, 1), j=(0, 1)) == (1, 40)


def test_nan_in_a_tensor_makes_only_its_boxes_unknown() -> None:
    table = torch.tensor([[1.0, torch.nan], [3.0, 4.0]])
    entry = lookup(0, (apply("sub", I, I), J), "float")
    assert bound(lookup(0, (I, J), "float"), table, i=(0, 1), j=(0, 1), n=2) == (-np.inf, np.inf)
    assert bound(lookup(0, (I, J), "float"), table, i=(1, 1), j=(0, 1), n=2) == (3.0, 4.0)
    assert bound(apply("lt", entry, constant(9.0)), table, i=(0, 1), j=(1, 1), n=2)[0] == 0


def test_comparison_with_nan_is_undecided() -> None:
    table = torch.tensor([torch.nan, 1.0])
    for op in ("lt", "le", "gt", "ge", "eq"):
        comparison = apply(op, lookup(0, (apply("mod", apply("add", I, J), constant(2)),), "float"), constant(5.0))
        assert bound(comparison, table, n=2, i=(0, 1), j=(0, 1))[0] == 0, op
    unequal = apply("ne", lookup(0, (apply("mod", apply("add", I, J), constant(2)),), "float"), constant(1.0))
    assert bound(unequal, table, n=2, i=(0, 1), j=(0, 1)) == (0, 1)


@pytest.mark.parametrize("default_dtype", [torch.float32, torch.float64])
def test_floats_are_bounded_in_their_computed_precision(default_dtype: torch.dtype) -> None:
    """Whether 1/a * b <= b/a holds depends on rounding, which differs between float32 and float64."""
    torch.set_default_dtype(default_dtype)
    try:
        for a in range(1, 40):
            for b in range(1, 40):
                left = apply("mul", apply("div", apply("sub", I, J), constant(a)), constant(float(b)))
                expr = apply("le", left, constant(b / a))
                expected = int((torch.tensor([1]) / a * float(b) <= b / a).item())
                assert bound(expr, i=(1, 1), j=(0, 0)) == (expected, expected), (a, b)
    finally:
        torch.set_default_dtype(torch.float32)


def test_float64_tensor_is_compared_in_float64() -> None:
    table = torch.tensor([1.0 + 1e-12], dtype=torch.float64)
    expr = apply("gt", lookup(0, (apply("mul", apply("sub", I, J), constant(0)),), "float"), constant(1.0))
    assert bound(expr, table) == (1, 1)
    assert bound(expr, table.float()) == (0, 0)


def test_integer_that_may_overflow_is_undecided() -> None:
    wraps = apply(
        "mul", apply("add", apply("add", I, J), constant(2**31)), apply("add", apply("add", I, J), constant(2**32))
    )
    assert bound(apply("gt", wraps, constant(0))) == (0, 1)
    assert (2**31 + 14) * (2**32 + 14) >= 2**63


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32])
def test_bounds_of_narrow_integer_tensors_hold(dtype: torch.dtype) -> None:
    most = torch.iinfo(dtype).max
    table = torch.tensor([0, 0, 1, 1, most, most, 2, 2], dtype=dtype)
    for op in ("add", "sub", "mul"):
        result = apply(op, lookup(0, (I,), "int"), lookup(0, (J,), "int"))
        for comparison in (apply("lt", result, constant(0)), apply("gt", result, constant(most))):
            values = EvalContext((1, 1, 8, 8), 0, (table,)).values(comparison)
            for i in range(0, 8, 2):
                for j in range(0, 8, 2):
                    block = values[0, 0, i : i + 2, j : j + 2]
                    low, high = bound(comparison, table, i=(i, i + 1), j=(j, j + 1))
                    assert low <= block.min() and high >= block.max(), f"{to_text(comparison)} at i={i}, j={j}"


@pytest.mark.parametrize("infinite", [torch.inf, -torch.inf, torch.nan])
def test_bounds_hold_for_floats_outside_the_integer_range(infinite: float) -> None:
    table = torch.full((8,), infinite)
    table[5] = 1.0
    large = apply("to_int", lookup(0, (I,), "float"))  # the smallest int64
    for shift in (apply("bitand", I, J), apply("neg", apply("bitor", I, J)), apply("sub", I, J)):
        for expr in (apply("add", large, shift), apply("sub", shift, large), apply("mul", shift, large)):
            for comparison in (apply("ne", J, expr), apply("lt", expr, J), apply("gt", apply("abs", expr), J)):
                context = EvalContext((1, 1, 8, 8), 0, (table,))
                values = context.values(comparison)
                low, high = bound(comparison, table)
                assert low <= values.min() and high >= values.max(), to_text(comparison)


def test_each_batch_element_has_its_own_query_offset() -> None:
    query_offsets = torch.tensor([0, 5, -3])
    boxes = IndexBoxes(*(np.array(x) for x in ([0, 1, 2], [0, 0, 0], [2, 2, 2], [3, 3, 3], [0, 0, 0], [0, 0, 0])))
    low, high = BoundsEvaluator((), (3, 1, 4, 4), query_offsets).bounds(P, boxes)
    assert low.tolist() == [2, 7, -1] and high.tolist() == [3, 8, 0]
    square = apply("mul", P, P)
    low, high = BoundsEvaluator((), (3, 1, 4, 4), query_offsets).bounds(square, boxes)
    assert low.tolist() == [4, 49, 0] and high.tolist() == [9, 64, 1]


def test_large_subexpressions_are_bounded_by_intervals() -> None:
    batch = MAX_HOISTED_NUMEL // 64
    boxes = IndexBoxes(*(np.array([x]) for x in (batch - 1, 1, 0, 39, 0, 39)))
    expr = apply("mod", apply("add", apply("add", J, H), B), constant(50))
    low, high = BoundsEvaluator((), (batch, 2, 40, 40), 0).bounds(expr, boxes)
    first = batch - 1 + 1
    assert low.item() <= min((first + j) % 50 for j in range(40))
    assert high.item() >= max((first + j) % 50 for j in range(40))


@pytest.mark.parametrize("shape", [(37,), (5, 19), (2, 3, 11)])
def test_pyramid_bounds_hold_and_are_exact_for_aligned_boxes(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    table = rng.integers(-50, 50, shape)
    pyramid = MinMaxPyramid(table)
    first = [rng.integers(0, n, 400) for n in shape]
    last = [np.minimum(a + rng.integers(0, n, 400), n - 1) for a, n in zip(first, shape, strict=True)]
    low, high = pyramid.range_bounds(first, last)
    for r in range(400):
        box = table[tuple(slice(a[r], z[r] + 1) for a, z in zip(first, last, strict=True))]
        assert low[r] <= box.min() and high[r] >= box.max()
        aligned = all(
            (z[r] - a[r] + 1).bit_count() == 1 and a[r] % (z[r] - a[r] + 1) == 0
            for a, z in zip(first, last, strict=True)
        )
        assert not aligned or (low[r], high[r]) == (box.min(), box.max())


def test_half_precision_tensors_are_bounded_as_float32() -> None:
    assert as_bounds_array(torch.ones(2, dtype=torch.bfloat16)).dtype == np.float32
    assert as_bounds_array(torch.ones(2, dtype=torch.float64)).dtype == np.float64
    assert as_bounds_array(torch.ones(2, dtype=torch.int32)).dtype == np.int64
    assert as_bounds_array(torch.ones(2, dtype=torch.bool)).dtype == np.int8
