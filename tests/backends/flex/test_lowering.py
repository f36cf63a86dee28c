"""Expressions lowered to functions of one pair: they compute the values of the evaluator."""

import pytest
import torch
from torch import Tensor

from regard.backends.flex.lowering import FlexLowering, may_index_out_of_range, rounding_sensitive_ops
from regard.expr.evaluate import Evaluator
from regard.expr.ir import FALSE, TRUE, Expr, apply, constant, lookup, variable
from regard.expr.printing import to_text
from tests.expr.random_exprs import EvalContext, ExprGenerator, random_context

B, H, I, J, P, S = (variable(name) for name in "bhijps")
CPU = torch.device("cpu")
LENGTHS = (2, 3, 4, 5)


def lowering(context: EvalContext) -> FlexLowering:
    return FlexLowering(context.tensors, context.score_shape, context.query_offset, CPU)


def indices(context: EvalContext) -> list[Tensor]:
    """b, h, i and j as FlexAttention passes them: 32-bit integers."""
    return [torch.as_tensor(context.grid()[name]).int() for name in "bhij"]


@pytest.mark.parametrize("seed", range(60))
def test_lowered_mask_equals_the_evaluated_expression(seed: int) -> None:
    context = random_context(seed, scalars=True, narrow=True)
    generator = ExprGenerator(context, seed, in_range=True)
    for _ in range(4):
        expr = generator.boolean(3)
        actual = lowering(context).mask_mod(expr)(*indices(context))
        assert torch.equal(actual.expand(context.score_shape), torch.as_tensor(context.values(expr))), to_text(expr)


@pytest.mark.parametrize("seed", range(60))
def test_lowered_score_modifier_equals_the_evaluated_expression(seed: int) -> None:
    context = random_context(seed, scalars=True, narrow=True)
    generator = ExprGenerator(context, 500 + seed, in_range=True)
    scores = torch.randn(context.score_shape)
    for op in ("add", "mul", "minimum"):
        expr = apply(op, apply("tanh", S), generator.floating(3))
        actual = lowering(context).score_mod(expr, torch.float32)(scores, *indices(context))
        expected = Evaluator(context.tensors, context.grid(), scores, torch.float32).score_value(expr)
        torch.testing.assert_close(
            actual, expected.expand(context.score_shape), rtol=0, atol=0, equal_nan=True, msg=to_text(expr)
        )


def test_half_precision_score_is_modified_in_float32() -> None:
    scores = torch.full((1,), 3.0, dtype=torch.bfloat16)
    function = FlexLowering((), (1, 1, 1, 1), 0, CPU).score_mod(apply("div", S, constant(7.0)), torch.float32)
    assert torch.equal(function(scores, *[torch.zeros(1, dtype=torch.int32)] * 4), torch.tensor([3.0]) / 7.0)


@pytest.mark.parametrize("expr", [TRUE, FALSE])
def test_constant_mask_is_lowered_to_a_tensor(expr: Expr) -> None:
    actual = FlexLowering((), LENGTHS, 0, CPU).mask_mod(expr)(*torch.zeros(4, dtype=torch.int32))
    assert actual.dtype == torch.bool and actual.shape == () and bool(actual) == (expr is TRUE)


def test_products_of_positions_do_not_overflow() -> None:
    far = torch.tensor(100_000, dtype=torch.int32)
    function = FlexLowering((), LENGTHS, 0, CPU).mask_mod(apply("gt", apply("mul", I, J), constant(2_000_000_000)))
    assert bool(function(far, far, far, far))


@pytest.mark.parametrize(
    "index, leaves",
    [
        (I, False),
        (J, True),
        (P, True),
        (apply("sub", J, I), True),
        (apply("maximum", apply("sub", I, J), constant(0)), False),
        (apply("sub", I, constant(4)), False),  # counted from the end
        (constant(-5), True),
    ],
    ids=lambda x: to_text(x) if isinstance(x, Expr) else "",
)
def test_lookup_that_may_be_out_of_range_is_detected(index: Expr, leaves: bool) -> None:
    table = torch.zeros(LENGTHS[2])
    assert may_index_out_of_range([TRUE, apply("add", S, lookup(0, (index,), "float"))], [table], LENGTHS, 2) == leaves


def test_lookup_range_depends_on_the_query_offset_of_each_batch_element() -> None:
    table, expr = torch.zeros(9), lookup(0, (P,), "float")
    assert not may_index_out_of_range([expr], [table], LENGTHS, torch.tensor([5, -9]))
    assert may_index_out_of_range([expr], [table], LENGTHS, torch.tensor([6, 0]))


@pytest.mark.parametrize(
    "expr, ops",
    [
        (apply("le", J, P), []),
        (apply("lt", lookup(0, (J,), "float"), constant(0.5)), []),
        (apply("lt", apply("abs", lookup(0, (J,), "float")), apply("to_float", I)), []),
        (apply("lt", apply("div", I, constant(3)), constant(0.5)), ["div"]),
        (apply("to_int", apply("log", apply("to_float", I))), ["log"]),
        (apply("add", S, apply("div", I, constant(3))), []),  # it changes the score, and no comparison depends on it
        (
            apply("lt", apply("mul", S, constant(2.0)), constant(0.5)),
            [],
        ),  # scores may be rounded differently by each backend
    ],
    ids=lambda x: to_text(x) if isinstance(x, Expr) else "",
)
def test_rounding_sensitive_ops_are_named(expr: Expr, ops: list[str]) -> None:
    assert list(rounding_sensitive_ops([TRUE, expr])) == ops
