"""Evaluation of expressions: on ranges and index tensors, dtypes, and lookups out of range."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

import regard
from regard.errors import ArgumentError
from regard.expr.evaluate import DISCONTINUOUS_OPS, TORCH_IMPLEMENTATIONS, Evaluator, IndexGrid
from regard.expr.ir import COMPARISONS, FALSE, TRUE, Expr, apply, constant, lookup, variable, walk
from regard.expr.printing import to_text

from .random_exprs import EvalContext, ExprGenerator, random_context

B, H, I, J, P, S = (variable(name) for name in "bhijps")
CPU = torch.device("cpu")


def index_grid(
    batch: int = 1,
    heads: int = 1,
    n_q: int = 4,
    n_k: int = 4,
    query_offset: int | Tensor = 0,
    device: torch.device = CPU,
) -> IndexGrid:
    return IndexGrid(
        range(batch), range(heads), range(n_q), range(n_k), query_offset=query_offset, n_q=n_q, n_k=n_k, device=device
    )


def value(expr: Expr, tensors: Sequence[Tensor] = (), grid: IndexGrid | None = None) -> Tensor:
    grid = grid or index_grid()
    return Evaluator(tensors, grid).mask_value(expr).expand(grid.shape)


def test_positions_broadcast_over_batch_heads_queries_and_keys() -> None:
    grid = index_grid(2, 3, 4, 5, query_offset=7)
    assert grid.shape == (2, 3, 4, 5)
    for name, shape in {"b": (2, 1, 1, 1), "h": (1, 3, 1, 1), "i": (1, 1, 4, 1), "j": (1, 1, 1, 5)}.items():
        assert grid[name].shape == shape  # type: ignore[union-attr]
    assert grid["p"].flatten().tolist() == [7, 8, 9, 10]  # type: ignore[union-attr]
    assert (grid["n_q"], grid["n_k"]) == (4, 5)


def test_each_batch_element_has_its_own_query_offset() -> None:
    grid = index_grid(3, n_q=2, query_offset=torch.tensor([0, 5, -1]))
    assert grid["p"].shape == (3, 1, 2, 1)  # type: ignore[union-attr]
    assert grid["p"].flatten().tolist() == [0, 1, 5, 6, -1, 0]  # type: ignore[union-attr]


def test_subset_of_positions_gives_the_same_values() -> None:
    query_offsets = torch.tensor([0, 5, -1])
    whole = index_grid(3, 2, 9, 9, query_offset=query_offsets)
    expr = apply("add", apply("mul", P, constant(100)), apply("add", apply("mul", J, constant(7)), apply("add", B, H)))
    some = IndexGrid(
        range(1, 3), range(1, 2), range(4, 8), range(2, 9), query_offset=query_offsets, n_q=9, n_k=9, device=CPU
    )
    assert torch.equal(value(expr, grid=some), value(expr, grid=whole)[1:3, 1:2, 4:8, 2:9])
    gathered = IndexGrid(
        *(torch.tensor(x) for x in ([2, 0], [1], [8, 0, 3], [5, 5])),
        query_offset=query_offsets,
        n_q=9,
        n_k=9,
        device=CPU,
    )
    assert torch.equal(
        value(expr, grid=gathered), value(expr, grid=whole)[[2, 0]][:, [1]][:, :, [8, 0, 3]][..., [5, 5]]
    )


@pytest.mark.parametrize("seed", range(6))
def test_random_expressions_have_the_same_values_in_every_tile(seed: int) -> None:
    """Evaluate a tile given as ranges and as index tensors: a mask must not depend on the tiling."""
    context = random_context(seed)
    generator = ExprGenerator(context, 50 + seed)
    rows, columns = range(3, 20), range(5, 21)
    batch, heads, n_q, n_k = context.score_shape
    options = {"query_offset": context.query_offset, "n_q": n_q, "n_k": n_k, "device": CPU}
    tile = IndexGrid(range(batch), range(heads), rows, columns, **options)
    gathered = IndexGrid(*(torch.tensor(list(x)) for x in (range(batch), range(heads), rows, columns)), **options)
    for _ in range(60):
        expr = generator.boolean(4)
        whole = context.values_or_none(expr)
        for part in (tile, gathered) if whole is not None else ():
            assert (value(expr, context.tensors, part).numpy() == whole[:, :, 3:20, 5:21]).all(), to_text(expr)


@pytest.mark.parametrize("seed", range(4))
def test_every_random_expression_can_be_evaluated(seed: int) -> None:
    context = random_context(400 + seed, scalars=True)
    generator = ExprGenerator(context, seed)
    for n in range(100):
        expr = (generator.boolean, generator.integer, generator.floating)[n % 3](4)
        assert context.values(expr).shape == context.score_shape


def test_comparison_may_have_a_number_on_the_left() -> None:
    for number, left in ((constant(2), 2), (constant(2.5), 2.5), (variable("n_k"), 4), (TRUE, 1)):
        for op in COMPARISONS:
            expected = getattr(torch, op)(torch.full((4,), float(left)), torch.arange(4).float())
            assert value(apply(op, number, J))[0, 0, 0].tolist() == expected.tolist(), (op, left)


def test_arithmetic_may_have_a_boolean_on_the_left() -> None:
    for op, expected in {"add": [1, 2, 3, 4], "sub": [1, 0, -1, -2], "mul": [0, 1, 2, 3]}.items():
        assert value(apply(op, TRUE, J))[0, 0, 0].tolist() == expected, op


def test_logic_takes_constants_on_both_sides() -> None:
    condition = apply("lt", I, J)
    expected = torch.ones(4, 4).triu(1).bool()
    assert torch.equal(value(apply("xor", condition, TRUE))[0, 0], ~expected)
    assert torch.equal(value(apply("xor", FALSE, condition))[0, 0], expected)


def test_where_with_a_constant_condition_takes_that_branch() -> None:
    half = constant(0.5)
    assert value(apply("where", TRUE, J, half))[0, 0, 0].tolist() == [0.0, 1.0, 2.0, 3.0]
    assert value(apply("where", FALSE, J, half))[0, 0, 0].tolist() == [0.5] * 4


def test_maximum_of_boolean_and_number_is_a_number() -> None:
    condition = apply("gt", J, constant(1))
    assert value(apply("maximum", condition, constant(2)))[0, 0, 0].tolist() == [2, 2, 2, 2]
    assert value(apply("minimum", condition, constant(-1)))[0, 0, 0].tolist() == [-1, -1, -1, -1]
    assert value(apply("minimum", condition, constant(2)))[0, 0, 0].tolist() == [0, 0, 1, 1]


def test_booleans_count_as_zero_and_one_in_arithmetic() -> None:
    condition = apply("gt", J, constant(1))
    for op, expected in {"add": [0, 0, 2, 2], "sub": [0, 0, 0, 0], "mul": [0, 0, 1, 1]}.items():
        assert value(apply(op, condition, condition))[0, 0, 0].tolist() == expected
    assert value(apply("neg", condition))[0, 0, 0].tolist() == [0, 0, -1, -1]
    assert value(apply("div", condition, constant(2)))[0, 0, 0].tolist() == [0.0, 0.0, 0.5, 0.5]


def test_integer_division_rounds_down_as_in_torch() -> None:
    distance = apply("sub", I, J)
    expected = torch.arange(4).view(4, 1) - torch.arange(4)
    for divisor in (3, -3):
        assert torch.equal(value(apply("floordiv", distance, constant(divisor)))[0, 0], expected // divisor)
        assert torch.equal(value(apply("mod", distance, constant(divisor)))[0, 0], expected % divisor)


def test_quotient_of_positions_is_float32() -> None:
    assert value(apply("div", J, constant(3))).dtype == torch.float32
    assert value(apply("to_float", J)).dtype == torch.float32


def test_every_operation_has_an_implementation() -> None:
    context = random_context(0)
    generator = ExprGenerator(context, 0)
    used = {node.op for _ in range(400) for node in walk(generator.boolean(4))}
    assert used - {"constant", "variable", "lookup"} <= set(TORCH_IMPLEMENTATIONS)
    assert len(used) > 35  # the generator uses nearly all operations


def test_lookup_at_plain_positions_is_a_view_of_the_tensor() -> None:
    table = torch.arange(2 * 3 * 6 * 8.0).view(2, 3, 6, 8)
    grid = IndexGrid(range(1, 2), range(3), range(2, 5), range(4, 8), query_offset=0, n_q=6, n_k=8, device=CPU)
    actual = Evaluator((table,), grid).mask_value(lookup(0, (B, H, I, J), "float"))
    assert torch.equal(actual, table[1:2, :, 2:5, 4:8])
    assert actual.untyped_storage().data_ptr() == table.untyped_storage().data_ptr()


def test_lookup_may_use_positions_in_any_order() -> None:
    table = torch.arange(8 * 6).view(8, 6)
    grid = IndexGrid(range(1), range(1), range(2, 5), range(4, 8), query_offset=0, n_q=6, n_k=8, device=CPU)
    assert torch.equal(value(lookup(0, (J, I), "int"), (table,), grid)[0, 0], table[4:8, 2:5].T)
    square = torch.arange(36).view(6, 6)
    assert value(lookup(0, (I, I), "int"), (square,), grid)[0, 0, :, 0].tolist() == [14, 21, 28]
    assert value(lookup(0, (constant(1), I), "int"), (square,), grid)[0, 0, :, 0].tolist() == [8, 9, 10]
    assert value(lookup(0, (constant(-1), I), "int"), (square,), grid)[0, 0, :, 0].tolist() == [32, 33, 34]


def test_negative_index_counts_from_the_end_as_in_torch() -> None:
    table = torch.tensor([10, 11, 12, 13])
    actual = value(lookup(0, (apply("sub", I, J),), "int"), (table,))
    assert torch.equal(actual[0, 0], table[torch.arange(4).view(4, 1) - torch.arange(4)])


def test_lookup_out_of_range_is_an_error_only_for_visible_pairs() -> None:
    table = torch.tensor([1, 2, 3])
    grid = index_grid(2, 3)
    evaluator = Evaluator((table,), grid)
    evaluator.mask_value(apply("gt", lookup(0, (J,), "int"), constant(0)))
    visible = torch.ones(grid.shape, dtype=torch.bool)
    visible[..., 3] = False
    evaluator.check_lookups_in_range(visible)
    visible[1, 2, 0, 3] = True
    with pytest.raises(ArgumentError, match=r"at b=1, h=2, i=0, j=3 it is out of range \(tensors of shape \(3,\)\)"):
        evaluator.check_lookups_in_range(visible)


def test_error_names_absolute_positions() -> None:
    table = torch.zeros(5)
    grid = IndexGrid(range(1, 2), range(1), range(8, 10), range(4, 8), query_offset=0, n_q=16, n_k=16, device=CPU)
    evaluator = Evaluator((table,), grid)
    evaluator.score_value(lookup(0, (apply("add", J, constant(0)),), "float"))
    with pytest.raises(ArgumentError, match=r"at b=1, h=0, i=8, j=5 it is out of range"):
        evaluator.check_lookups_in_range(torch.ones(grid.shape, dtype=torch.bool))


def test_lookups_in_range_are_not_recorded() -> None:
    evaluator = Evaluator((torch.arange(4),), index_grid())
    evaluator.mask_value(lookup(0, (apply("sub", I, J),), "int"))
    assert evaluator.out_of_range is None
    evaluator.check_lookups_in_range(torch.ones(1, 1, 4, 4, dtype=torch.bool))


def test_captured_floats_have_the_dtype_of_the_score() -> None:
    score = torch.zeros(1, 1, 4, 4, dtype=torch.float64)
    fine = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    expr = apply("add", S, lookup(0, (J,), "float"))
    actual = Evaluator((fine,), index_grid(), score, torch.float64).score_value(expr)
    assert actual.dtype == torch.float64 and actual[0, 0, 0].tolist() == [0.1, 0.2, 0.3, 0.4]
    coarse = Evaluator((fine,), index_grid(), score.float(), torch.float32).score_value(expr)
    assert coarse.dtype == torch.float32 and torch.equal(coarse[0, 0, 0], fine.float())
    half = Evaluator((fine.bfloat16(),), index_grid(), score.float(), torch.float32).score_value(expr)
    assert half.dtype == torch.float32 and torch.equal(half[0, 0, 0], fine.bfloat16().float())


@pytest.mark.parametrize("op", sorted(DISCONTINUOUS_OPS - {"floordiv"}))
def test_discontinuous_operations_do_not_depend_on_the_score_dtype(op: str) -> None:
    """A bucket, a comparison or a sign must have the same result on every backend."""
    table = torch.tensor([0.1, 1 / 3, 2.5, 1e-9], dtype=torch.float64).float()
    borderline = apply("mul", apply("div", lookup(0, (J,), "float"), constant(3)), constant(3.0))
    decision = apply(op, borderline, lookup(0, (J,), "float")) if op in COMPARISONS else apply(op, borderline)
    expr = apply("to_float", apply("add", decision, constant(0)) if op in COMPARISONS else decision)
    actual = [
        Evaluator((table,), index_grid(), torch.zeros(1, 1, 4, 4, dtype=dtype), dtype).score_value(expr).double()
        for dtype in (torch.float32, torch.float64)
    ]
    assert torch.equal(*actual)


def test_flat_indices_address_the_flattened_tensor() -> None:
    table = torch.arange(12).view(3, 4)
    expr = lookup(0, (apply("sub", I, J), J), "int")
    grid = index_grid(n_q=3, n_k=3)
    actual = Evaluator((table,), grid).flat_indices(expr).expand(grid.shape)
    assert torch.equal(table.flatten()[actual], value(expr, (table,), grid))


def test_eval_context_agrees_with_numpy() -> None:
    """Check the context that other tests rely on against a formula in NumPy."""
    context = EvalContext((2, 1, 3, 4), torch.tensor([0, 2]), (torch.tensor([[1, 5, 2, 0], [3, 3, 1, 1]]),))
    expr = apply("and", apply("le", J, P), apply("gt", lookup(0, (B, J), "int"), constant(1)))
    b, i, j = np.ogrid[:2, :3, :4]
    table = context.tensors[0].numpy()
    expected = (j <= i + 2 * b) & (table[b, j] > 1)
    assert (context.values(expr)[:, 0] == expected).all()


@pytest.mark.parametrize("backend", ["tiled", "reference"])
def test_integer_division_by_zero_raises_argument_error(backend: str) -> None:
    x = torch.ones(4, 8)

    with pytest.raises(ArgumentError, match="floordiv with a divisor that is 0 for some pair"):
        regard.attention(x, x, x, mask=lambda b, h, i, j: j // i == 1, backend=backend)
