"""Bounds hold at every position of every region, for thousands of random formulas and for the real ones."""

from dataclasses import dataclass, field
from functools import cache

import numpy as np
import pytest
import torch

from regard.spec.bounds import HOIST_LIMIT, Bounds, Extremes, Regions, as_array
from regard.spec.interval import FAR
from regard.spec.term import Term, apply, constant, lookup, variable, walk
from regard.spec.text import text

from .worlds import World, Writer, parts, random_regions, tiles, world

I, J, P, B, H = (variable(name) for name in "ijpbh")
WORLDS = range(12)
CONDITIONS_A_WORLD = 220
NUMBERS_A_WORLD = 50


@dataclass
class Verdict:
    """What the bounds of many formulas were worth: how many regions were decided, and which answers were wrong."""

    formulas: int = 0
    empty: int = 0
    full: int = 0
    found_empty: int = 0
    found_full: int = 0
    wrong: list[str] = field(default_factory=list)


def regions_of(where: World, number: int) -> Regions:
    return random_regions(where, number, 12) if number % 2 else tiles(where, 8 if number % 4 else 16)


@cache
def judged(seed: int, scalars: bool = False, narrow: bool = False, inside: bool = False) -> Verdict:
    where, verdict = world(seed, scalars=scalars, narrow=narrow), Verdict()
    writer = Writer(where, seed, inside=inside)
    bounds = Bounds(where.tensors, where.lengths, where.start)
    for number in range(CONDITIONS_A_WORLD):
        term = writer.condition(4)
        values = where.values_or_none(term)
        if values is None:
            continue
        regions = regions_of(where, number)
        low, high = bounds.of(term, regions)
        verdict.formulas += 1
        for r, part in enumerate(parts(values, regions)):
            least, most = bool(part.all()), bool(part.any())
            if low[r] > least or high[r] < most:
                verdict.wrong.append(f"{text(term)} in {least, most}, bounded by {low[r], high[r]}")
            verdict.full += least
            verdict.found_full += least and low[r] == 1
            verdict.empty += not most
            verdict.found_empty += not most and high[r] == 0
    return verdict


@pytest.mark.parametrize("seed", WORLDS)
def test_no_bound_of_a_random_condition_is_ever_wrong(seed: int) -> None:
    verdict = judged(seed)
    assert not verdict.wrong, verdict.wrong[0]
    assert verdict.formulas > 0.95 * CONDITIONS_A_WORLD


@pytest.mark.parametrize("seed", [100, 101])
def test_no_bound_is_ever_wrong_with_tensors_of_no_dimension(seed: int) -> None:
    verdict = judged(seed, scalars=True)
    assert not verdict.wrong, verdict.wrong[0]


@pytest.mark.parametrize("seed", [110, 111])
def test_no_bound_is_ever_wrong_with_whole_numbers_of_few_bits(seed: int) -> None:
    verdict = judged(seed, narrow=True)
    assert not verdict.wrong, verdict.wrong[0]


def test_most_regions_that_a_random_condition_leaves_empty_or_full_are_recognised() -> None:
    # a look-up that may leave its tensor is left undecided, so that a seen one is refused: here none does
    every = [judged(seed, inside=True) for seed in WORLDS]
    assert not any(v.wrong for v in every)
    empty = sum(v.found_empty for v in every) / sum(v.empty for v in every)
    full = sum(v.found_full for v in every) / sum(v.full for v in every)
    # measured: .80 of the empty and of the full ones, in regions that mostly do not lie on the grid
    assert empty > 0.78 and full > 0.78, (empty, full)


@pytest.mark.parametrize("seed", WORLDS)
def test_no_bound_of_a_random_number_is_ever_wrong(seed: int) -> None:
    where = world(seed)
    writer = Writer(where, 1000 + seed)
    bounds = Bounds(where.tensors, where.lengths, where.start)
    for number in range(NUMBERS_A_WORLD):
        term = writer.whole(4) if number % 2 else writer.real(4)
        values = where.values_or_none(term) if term.args else None
        if values is None or _is_beyond(where, term):
            continue
        regions = regions_of(where, number // 2)
        low, high = bounds.of(term, regions)
        for r, part in enumerate(parts(values, regions)):
            known = part[~np.isnan(part)]
            if len(known) < part.size:
                assert np.isneginf(low[r]) and np.isposinf(high[r]), (
                    f"{text(term)} may be NaN, not in {low[r], high[r]}"
                )
            assert not len(known) or (low[r] <= known.min() and high[r] >= known.max()), (
                f"{text(term)} takes {known.min()} to {known.max()}, bounded by {low[r], high[r]}"
            )


def _is_beyond(where: World, term: Term) -> bool:
    """Whole numbers beyond 2^62 are not followed; only what is decided with them has to be right."""
    return any(np.abs(where.values(node).astype(np.float64)).max() >= FAR for node in walk(term) if node.kind == "int")


def test_no_bound_is_ever_wrong_where_torch_computes_in_float64_by_default() -> None:
    torch.set_default_dtype(torch.float64)
    try:
        judged.cache_clear()
        wrong = [line for seed in (200, 201, 202) for line in judged(seed).wrong]
    finally:
        torch.set_default_dtype(torch.float32)
        judged.cache_clear()
    assert not wrong, wrong[0]


def bound(term: Term, *tensors: torch.Tensor, i: tuple[int, int] = (0, 7), j: tuple[int, int] = (0, 7), n: int = 8):  # type: ignore[no-untyped-def]
    regions = Regions(*(np.array([x]) for x in (0, 0, *i, *j)))
    low, high = Bounds(tensors, (1, 1, n, n), 0).of(term, regions)
    return low.item(), high.item()


def test_positions_are_bounded_by_the_corners_of_the_region() -> None:
    assert bound(apply("sub", I, J), i=(2, 4), j=(5, 6)) == (-4, -1)
    assert bound(apply("le", J, P), i=(4, 7), j=(0, 3)) == (1, 1)
    assert bound(apply("le", J, P), i=(0, 3), j=(4, 7)) == (0, 0)
    assert bound(apply("le", J, P), i=(0, 3), j=(3, 7)) == (0, 1)


def test_a_part_that_depends_on_one_side_alone_is_bounded_exactly() -> None:
    wave = apply("mod", apply("mul", J, J), constant(7))  # 0 1 4 2 2 4 1 0: intervals alone would give 0 to 6
    assert bound(wave, j=(2, 3)) == (2, 4)
    assert bound(wave, j=(6, 7)) == (0, 1)


def test_the_bounds_of_a_table_are_those_of_the_entries_looked_up() -> None:
    table = torch.tensor([5, 1, 9, 3, 7, 2, 8, 0, 6, 4, 11, 10, 13, 12, 15, 14])
    assert bound(lookup(0, (J,), "int"), table, j=(2, 3)) == (3, 9)
    distance = apply("add", apply("sub", I, J), constant(7))
    assert bound(lookup(0, (distance,), "int"), table, i=(7, 7), j=(7, 7)) == (0, 0)
    assert bound(lookup(0, (distance,), "int"), table, i=(4, 4), j=(0, 1)) == (10, 11)


def test_an_index_below_zero_counts_from_the_end() -> None:
    table = torch.tensor([1, 2, 3, 40])
    assert bound(lookup(0, (apply("sub", I, J),), "int"), table, i=(0, 0), j=(1, 1)) == (40, 40)
    assert bound(lookup(0, (apply("sub", I, J),), "int"), table, i=(0, 1), j=(0, 1)) == (1, 40)


def test_a_nan_in_a_table_makes_only_its_neighbourhood_unknown() -> None:
    table = torch.tensor([[1.0, torch.nan], [3.0, 4.0]])
    entry = lookup(0, (apply("sub", I, I), J), "float")
    assert bound(lookup(0, (I, J), "float"), table, i=(0, 1), j=(0, 1), n=2) == (-np.inf, np.inf)
    assert bound(lookup(0, (I, J), "float"), table, i=(1, 1), j=(0, 1), n=2) == (3.0, 4.0)
    assert bound(apply("lt", entry, constant(9.0)), table, i=(0, 1), j=(1, 1), n=2)[0] == 0


def test_a_comparison_with_nan_never_counts_as_sure() -> None:
    table = torch.tensor([torch.nan, 1.0])
    for op in ("lt", "le", "gt", "ge", "eq"):
        both = apply(op, lookup(0, (apply("mod", apply("add", I, J), constant(2)),), "float"), constant(5.0))
        assert bound(both, table, n=2, i=(0, 1), j=(0, 1))[0] == 0, op
    unequal = apply("ne", lookup(0, (apply("mod", apply("add", I, J), constant(2)),), "float"), constant(1.0))
    assert bound(unequal, table, n=2, i=(0, 1), j=(0, 1)) == (0, 1)


@pytest.mark.parametrize("usual", [torch.float32, torch.float64])
def test_floats_are_bounded_in_the_precision_they_are_computed_in(usual: torch.dtype) -> None:
    """Whether 1/a * b <= b/a holds in floats depends on how each is rounded: differently in float32 and float64."""
    torch.set_default_dtype(usual)
    try:
        for a in range(1, 40):
            for b in range(1, 40):
                left = apply("mul", apply("div", apply("sub", I, J), constant(a)), constant(float(b)))
                term = apply("le", left, constant(b / a))
                seen = int((torch.tensor([1]) / a * float(b) <= b / a).item())
                assert bound(term, i=(1, 1), j=(0, 0)) == (seen, seen), (a, b)
    finally:
        torch.set_default_dtype(torch.float32)


def test_a_float64_table_is_compared_in_float64() -> None:
    table = torch.tensor([1.0 + 1e-12], dtype=torch.float64)
    term = apply("gt", lookup(0, (apply("mul", apply("sub", I, J), constant(0)),), "float"), constant(1.0))
    assert bound(term, table) == (1, 1)
    assert bound(term, table.float()) == (0, 0)


def test_a_whole_number_that_overflows_decides_nothing() -> None:
    wraps = apply(
        "mul", apply("add", apply("add", I, J), constant(2**31)), apply("add", apply("add", I, J), constant(2**32))
    )
    assert bound(apply("gt", wraps, constant(0))) == (0, 1)
    assert (2**31 + 14) * (2**32 + 14) >= 2**63


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32])
def test_bounds_follow_whole_numbers_of_few_bits_as_they_are_computed(dtype: torch.dtype) -> None:
    most = torch.iinfo(dtype).max
    table = torch.tensor([0, 0, 1, 1, most, most, 2, 2], dtype=dtype)
    for op in ("add", "sub", "mul"):
        changed = apply(op, lookup(0, (I,), "int"), lookup(0, (J,), "int"))
        for decided in (apply("lt", changed, constant(0)), apply("gt", changed, constant(most))):
            values = World((1, 1, 8, 8), 0, (table,)).values(decided)
            for i in range(0, 8, 2):
                for j in range(0, 8, 2):
                    part = values[0, 0, i : i + 2, j : j + 2]
                    low, high = bound(decided, table, i=(i, i + 1), j=(j, j + 1))
                    assert low <= part.min() and high >= part.max(), f"{text(decided)} at i={i}, j={j}"


@pytest.mark.parametrize("infinite", [torch.inf, -torch.inf, torch.nan])
def test_a_float_that_no_whole_number_can_hold_decides_nothing_wrongly(infinite: float) -> None:
    table = torch.full((8,), infinite)
    table[5] = 1.0
    large = apply("to_int", lookup(0, (I,), "float"))  # the least whole number there is
    for shift in (apply("bitand", I, J), apply("neg", apply("bitor", I, J)), apply("sub", I, J)):
        for term in (apply("add", large, shift), apply("sub", shift, large), apply("mul", shift, large)):
            for decided in (apply("ne", J, term), apply("lt", term, J), apply("gt", apply("abs", term), J)):
                where = World((1, 1, 8, 8), 0, (table,))
                values = where.values(decided)
                low, high = bound(decided, table)
                assert low <= values.min() and high >= values.max(), text(decided)


def test_each_batch_element_has_its_own_start() -> None:
    starts = torch.tensor([0, 5, -3])
    regions = Regions(*(np.array(x) for x in ([0, 1, 2], [0, 0, 0], [2, 2, 2], [3, 3, 3], [0, 0, 0], [0, 0, 0])))
    low, high = Bounds((), (3, 1, 4, 4), starts).of(P, regions)
    assert low.tolist() == [2, 7, -1] and high.tolist() == [3, 8, 0]
    square = apply("mul", P, P)
    low, high = Bounds((), (3, 1, 4, 4), starts).of(square, regions)
    assert low.tolist() == [4, 49, 0] and high.tolist() == [9, 64, 1]


def test_parts_that_are_too_large_to_evaluate_are_bounded_by_intervals() -> None:
    batch = HOIST_LIMIT // 64
    regions = Regions(*(np.array([x]) for x in (batch - 1, 1, 0, 39, 0, 39)))
    term = apply("mod", apply("add", apply("add", J, H), B), constant(50))
    low, high = Bounds((), (batch, 2, 40, 40), 0).of(term, regions)
    first = batch - 1 + 1
    assert low.item() <= min((first + j) % 50 for j in range(40))
    assert high.item() >= max((first + j) % 50 for j in range(40))


@pytest.mark.parametrize("shape", [(37,), (5, 19), (2, 3, 11)])
def test_extremes_hold_over_every_box_and_are_exact_over_aligned_ones(shape: tuple[int, ...]) -> None:
    draw = np.random.default_rng(0)
    table = draw.integers(-50, 50, shape)
    extremes = Extremes(table)
    first = [draw.integers(0, n, 400) for n in shape]
    last = [np.minimum(a + draw.integers(0, n, 400), n - 1) for a, n in zip(first, shape, strict=True)]
    low, high = extremes.over(first, last)
    for r in range(400):
        box = table[tuple(slice(a[r], z[r] + 1) for a, z in zip(first, last, strict=True))]
        assert low[r] <= box.min() and high[r] >= box.max()
        aligned = all(
            (z[r] - a[r] + 1).bit_count() == 1 and a[r] % (z[r] - a[r] + 1) == 0
            for a, z in zip(first, last, strict=True)
        )
        assert not aligned or (low[r], high[r]) == (box.min(), box.max())


def test_half_precision_tables_are_bounded_as_float32() -> None:
    assert as_array(torch.ones(2, dtype=torch.bfloat16)).dtype == np.float32
    assert as_array(torch.ones(2, dtype=torch.float64)).dtype == np.float64
    assert as_array(torch.ones(2, dtype=torch.int32)).dtype == np.int64
    assert as_array(torch.ones(2, dtype=torch.bool)).dtype == np.int8
