"""The value of a term: on ranges, on index tensors, in the precision of the score, and outside of its tensors."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

import regard
from regard.errors import SpecError
from regard.spec.evaluate import DECIDES, FUNCTIONS, Evaluation, Positions
from regard.spec.term import COMPARISONS, FALSE, TRUE, Term, apply, constant, lookup, variable, walk
from regard.spec.text import text

from .worlds import World, Writer, world

B, H, I, J, P, S = (variable(name) for name in "bhijps")
CPU = torch.device("cpu")


def positions(
    batch: int = 1, heads: int = 1, n_q: int = 4, n_k: int = 4, start: int | Tensor = 0, device: torch.device = CPU
) -> Positions:
    return Positions(range(batch), range(heads), range(n_q), range(n_k), start=start, n_q=n_q, n_k=n_k, device=device)


def value(term: Term, tensors: Sequence[Tensor] = (), where: Positions | None = None) -> Tensor:
    where = where or positions()
    return Evaluation(tensors, where).condition(term).expand(where.shape)


def test_positions_broadcast_over_batch_heads_queries_and_keys() -> None:
    where = positions(2, 3, 4, 5, start=7)
    assert where.shape == (2, 3, 4, 5)
    for name, shape in {"b": (2, 1, 1, 1), "h": (1, 3, 1, 1), "i": (1, 1, 4, 1), "j": (1, 1, 1, 5)}.items():
        assert where[name].shape == shape  # type: ignore[union-attr]
    assert where["p"].flatten().tolist() == [7, 8, 9, 10]  # type: ignore[union-attr]
    assert (where["n_q"], where["n_k"]) == (4, 5)


def test_each_batch_element_stands_at_its_own_start() -> None:
    where = positions(3, n_q=2, start=torch.tensor([0, 5, -1]))
    assert where["p"].shape == (3, 1, 2, 1)  # type: ignore[union-attr]
    assert where["p"].flatten().tolist() == [0, 1, 5, 6, -1, 0]  # type: ignore[union-attr]


def test_a_part_of_the_positions_is_the_same_part_of_the_values() -> None:
    starts = torch.tensor([0, 5, -1])
    whole = positions(3, 2, 9, 9, start=starts)
    term = apply("add", apply("mul", P, constant(100)), apply("add", apply("mul", J, constant(7)), apply("add", B, H)))
    some = Positions(range(1, 3), range(1, 2), range(4, 8), range(2, 9), start=starts, n_q=9, n_k=9, device=CPU)
    assert torch.equal(value(term, where=some), value(term, where=whole)[1:3, 1:2, 4:8, 2:9])
    picked = Positions(
        *(torch.tensor(x) for x in ([2, 0], [1], [8, 0, 3], [5, 5])), start=starts, n_q=9, n_k=9, device=CPU
    )
    assert torch.equal(
        value(term, where=picked), value(term, where=whole)[[2, 0]][:, [1]][:, :, [8, 0, 3]][..., [5, 5]]
    )


@pytest.mark.parametrize("seed", range(6))
def test_random_formulas_have_the_same_value_whatever_tile_they_are_computed_in(seed: int) -> None:
    """One tile as ranges, one as index tensors: a mask must not depend on how the plane is cut."""
    where = world(seed)
    writer = Writer(where, 50 + seed)
    rows, columns = range(3, 20), range(5, 21)
    batch, heads, n_q, n_k = where.lengths
    lengths = {"start": where.start, "n_q": n_q, "n_k": n_k, "device": CPU}
    tile = Positions(range(batch), range(heads), rows, columns, **lengths)
    picked = Positions(*(torch.tensor(list(x)) for x in (range(batch), range(heads), rows, columns)), **lengths)
    for _ in range(60):
        term = writer.condition(4)
        whole = where.values_or_none(term)
        for part in (tile, picked) if whole is not None else ():
            assert (value(term, where.tensors, part).numpy() == whole[:, :, 3:20, 5:21]).all(), text(term)


@pytest.mark.parametrize("seed", range(4))
def test_every_random_formula_can_be_evaluated(seed: int) -> None:
    where = world(400 + seed, scalars=True)
    writer = Writer(where, seed)
    for n in range(100):
        term = (writer.condition, writer.whole, writer.real)[n % 3](4)
        assert where.values(term).shape == where.lengths


def test_a_comparison_may_begin_with_a_number() -> None:
    for number, left in ((constant(2), 2), (constant(2.5), 2.5), (variable("n_k"), 4), (TRUE, 1)):
        for op in COMPARISONS:
            expected = getattr(torch, op)(torch.full((4,), float(left)), torch.arange(4).float())
            assert value(apply(op, number, J))[0, 0, 0].tolist() == expected.tolist(), (op, left)


def test_a_sum_may_begin_with_a_condition() -> None:
    for op, expected in {"add": [1, 2, 3, 4], "sub": [1, 0, -1, -2], "mul": [0, 1, 2, 3]}.items():
        assert value(apply(op, TRUE, J))[0, 0, 0].tolist() == expected, op


def test_logic_takes_constants_on_either_side() -> None:
    condition = apply("lt", I, J)
    seen = torch.ones(4, 4).triu(1).bool()
    assert torch.equal(value(apply("xor", condition, TRUE))[0, 0], ~seen)
    assert torch.equal(value(apply("xor", FALSE, condition))[0, 0], seen)


def test_a_choice_with_a_constant_condition_takes_that_branch() -> None:
    half = constant(0.5)
    assert value(apply("where", TRUE, J, half))[0, 0, 0].tolist() == [0.0, 1.0, 2.0, 3.0]
    assert value(apply("where", FALSE, J, half))[0, 0, 0].tolist() == [0.5] * 4


def test_the_greater_of_a_condition_and_a_number_is_a_number() -> None:
    condition = apply("gt", J, constant(1))
    assert value(apply("maximum", condition, constant(2)))[0, 0, 0].tolist() == [2, 2, 2, 2]
    assert value(apply("minimum", condition, constant(-1)))[0, 0, 0].tolist() == [-1, -1, -1, -1]
    assert value(apply("minimum", condition, constant(2)))[0, 0, 0].tolist() == [0, 0, 1, 1]


def test_conditions_count_as_zero_and_one_in_sums() -> None:
    condition = apply("gt", J, constant(1))
    for op, expected in {"add": [0, 0, 2, 2], "sub": [0, 0, 0, 0], "mul": [0, 0, 1, 1]}.items():
        assert value(apply(op, condition, condition))[0, 0, 0].tolist() == expected
    assert value(apply("neg", condition))[0, 0, 0].tolist() == [0, 0, -1, -1]
    assert value(apply("div", condition, constant(2)))[0, 0, 0].tolist() == [0.0, 0.0, 0.5, 0.5]


def test_whole_numbers_divide_downwards_as_in_torch() -> None:
    distance = apply("sub", I, J)
    expected = torch.arange(4).view(4, 1) - torch.arange(4)
    for divisor in (3, -3):
        assert torch.equal(value(apply("floordiv", distance, constant(divisor)))[0, 0], expected // divisor)
        assert torch.equal(value(apply("mod", distance, constant(divisor)))[0, 0], expected % divisor)


def test_a_quotient_of_positions_is_a_float32() -> None:
    assert value(apply("div", J, constant(3))).dtype == torch.float32
    assert value(apply("to_float", J)).dtype == torch.float32


def test_every_operation_has_a_function() -> None:
    where = world(0)
    writer = Writer(where, 0)
    used = {node.op for _ in range(400) for node in walk(writer.condition(4))}
    assert used - {"constant", "variable", "lookup"} <= set(FUNCTIONS)
    assert len(used) > 35  # the generator reaches nearly all of them


def test_a_lookup_at_plain_positions_is_a_view_of_the_tensor() -> None:
    table = torch.arange(2 * 3 * 6 * 8.0).view(2, 3, 6, 8)
    where = Positions(range(1, 2), range(3), range(2, 5), range(4, 8), start=0, n_q=6, n_k=8, device=CPU)
    found = Evaluation((table,), where).condition(lookup(0, (B, H, I, J), "float"))
    assert torch.equal(found, table[1:2, :, 2:5, 4:8])
    assert found.untyped_storage().data_ptr() == table.untyped_storage().data_ptr()


def test_a_lookup_may_name_the_positions_in_any_order() -> None:
    table = torch.arange(8 * 6).view(8, 6)
    where = Positions(range(1), range(1), range(2, 5), range(4, 8), start=0, n_q=6, n_k=8, device=CPU)
    assert torch.equal(value(lookup(0, (J, I), "int"), (table,), where)[0, 0], table[4:8, 2:5].T)
    square = torch.arange(36).view(6, 6)
    assert value(lookup(0, (I, I), "int"), (square,), where)[0, 0, :, 0].tolist() == [14, 21, 28]
    assert value(lookup(0, (constant(1), I), "int"), (square,), where)[0, 0, :, 0].tolist() == [8, 9, 10]
    assert value(lookup(0, (constant(-1), I), "int"), (square,), where)[0, 0, :, 0].tolist() == [32, 33, 34]


def test_an_index_below_zero_counts_from_the_end_as_in_torch() -> None:
    table = torch.tensor([10, 11, 12, 13])
    found = value(lookup(0, (apply("sub", I, J),), "int"), (table,))
    assert torch.equal(found[0, 0], table[torch.arange(4).view(4, 1) - torch.arange(4)])


def test_a_lookup_outside_its_tensor_is_an_error_only_where_it_is_seen() -> None:
    table = torch.tensor([1, 2, 3])
    where = positions(2, 3)
    looking = Evaluation((table,), where)
    looking.condition(apply("gt", lookup(0, (J,), "int"), constant(0)))
    hidden = torch.ones(where.shape, dtype=torch.bool)
    hidden[..., 3] = False
    looking.check_range(hidden)
    hidden[1, 2, 0, 3] = True
    with pytest.raises(SpecError, match=r"at b=1, h=2, i=0, j=3 it does not \(tensors of shape \(3,\)\)"):
        looking.check_range(hidden)


def test_the_error_counts_positions_from_the_beginning_not_from_the_tile() -> None:
    table = torch.zeros(5)
    where = Positions(range(1, 2), range(1), range(8, 10), range(4, 8), start=0, n_q=16, n_k=16, device=CPU)
    looking = Evaluation((table,), where)
    looking.number(lookup(0, (apply("add", J, constant(0)),), "float"))
    with pytest.raises(SpecError, match=r"at b=1, h=0, i=8, j=5 it does not"):
        looking.check_range(torch.ones(where.shape, dtype=torch.bool))


def test_what_is_inside_its_tensor_needs_no_check() -> None:
    looking = Evaluation((torch.arange(4),), positions())
    looking.condition(lookup(0, (apply("sub", I, J),), "int"))
    assert looking.out_of_range is None
    looking.check_range(torch.ones(1, 1, 4, 4, dtype=torch.bool))


def test_captured_floats_join_the_score_in_its_precision() -> None:
    score = torch.zeros(1, 1, 4, 4, dtype=torch.float64)
    fine = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    term = apply("add", S, lookup(0, (J,), "float"))
    found = Evaluation((fine,), positions(), score, torch.float64).number(term)
    assert found.dtype == torch.float64 and found[0, 0, 0].tolist() == [0.1, 0.2, 0.3, 0.4]
    coarse = Evaluation((fine,), positions(), score.float(), torch.float32).number(term)
    assert coarse.dtype == torch.float32 and torch.equal(coarse[0, 0, 0], fine.float())
    half = Evaluation((fine.bfloat16(),), positions(), score.float(), torch.float32).number(term)
    assert half.dtype == torch.float32 and torch.equal(half[0, 0, 0], fine.bfloat16().float())


@pytest.mark.parametrize("op", sorted(DECIDES - {"floordiv"}))
def test_what_decides_is_rounded_alike_whatever_the_precision_of_the_score(op: str) -> None:
    """A bucket, a comparison or a sign must fall the same way on every engine."""
    table = torch.tensor([0.1, 1 / 3, 2.5, 1e-9], dtype=torch.float64).float()
    borderline = apply("mul", apply("div", lookup(0, (J,), "float"), constant(3)), constant(3.0))
    decided = apply(op, borderline, lookup(0, (J,), "float")) if op in COMPARISONS else apply(op, borderline)
    term = apply("to_float", apply("add", decided, constant(0)) if op in COMPARISONS else decided)
    found = [
        Evaluation((table,), positions(), torch.zeros(1, 1, 4, 4, dtype=dtype), dtype).number(term).double()
        for dtype in (torch.float32, torch.float64)
    ]
    assert torch.equal(*found)


def test_a_lookup_tells_where_it_reads_in_the_flattened_tensor() -> None:
    table = torch.arange(12).view(3, 4)
    term = lookup(0, (apply("sub", I, J), J), "int")
    where = positions(n_q=3, n_k=3)
    found = Evaluation((table,), where).places(term).expand(where.shape)
    assert torch.equal(table.flatten()[found], value(term, (table,), where))


def test_a_world_evaluates_as_numpy_would() -> None:
    """The worlds that other tests rely on: one formula written out by hand."""
    where = World((2, 1, 3, 4), torch.tensor([0, 2]), (torch.tensor([[1, 5, 2, 0], [3, 3, 1, 1]]),))
    term = apply("and", apply("le", J, P), apply("gt", lookup(0, (B, J), "int"), constant(1)))
    b, i, j = np.ogrid[:2, :3, :4]
    table = where.tensors[0].numpy()
    expected = (j <= i + 2 * b) & (table[b, j] > 1)
    assert (where.values(term)[:, 0] == expected).all()


@pytest.mark.parametrize("engine", ["tiled", "reference"])
def test_a_whole_number_divided_by_zero_is_refused_in_a_sentence(engine):
    x = torch.ones(4, 8)

    with pytest.raises(SpecError, match="floordiv with a divisor that is 0 at some pair"):
        regard.attention(x, x, x, mask=lambda b, h, i, j: j // i == 1, engine=engine)
