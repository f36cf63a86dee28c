"""Expressions: equal ones are the same object, kinds follow torch, and simplification is safe."""

import copy
import gc
import pickle
import threading

import pytest
import torch

from regard.expr import ir
from regard.expr.ir import (
    FALSE,
    TRUE,
    Expr,
    apply,
    as_condition,
    constant,
    lookup,
    renumber_slots,
    slot_of,
    substitute,
    variable,
    walk,
)

from .random_exprs import ExprGenerator, random_context

I, J, S = variable("i"), variable("j"), variable("s")
FLOAT, INTEGER, BOOLEAN = lookup(0, (I,), "float"), lookup(1, (I,), "int"), lookup(2, (I,), "bool")


def test_equal_expressions_are_the_same_object() -> None:
    assert apply("le", J, apply("add", I, constant(3))) is apply(
        "le", variable("j"), apply("add", variable("i"), constant(3))
    )
    assert apply("sub", I, J) is not apply("sub", J, I)
    assert lookup(0, (I,), "float") is not lookup(1, (I,), "float")


@pytest.mark.parametrize("one, other", [(0.0, -0.0), (1, True), (0, False), (1, 1.0), (0.0, 0), (2.0, 2)])
def test_equal_python_numbers_of_different_types_are_different_constants(one: object, other: object) -> None:
    assert one == other and constant(one) is not constant(other)  # type: ignore[arg-type]


def test_nan_is_a_single_constant() -> None:
    assert constant(float("nan")) is constant(float("nan"))


def test_pickling_and_copying_return_the_same_object() -> None:
    expr = apply("where", apply("lt", I, J), FLOAT, constant(-0.0))
    assert pickle.loads(pickle.dumps(expr)) is expr
    assert copy.deepcopy(expr) is expr


def test_unused_expressions_are_garbage_collected() -> None:
    gc.collect()
    before = len(ir._pool)
    exprs = [apply("add", I, constant(123_456 + n)) for n in range(50)]
    assert len(ir._pool) >= before + 50
    del exprs
    gc.collect()
    assert len(ir._pool) <= before


def test_threads_that_build_the_same_expression_get_one_object() -> None:
    results: list[Expr] = []
    ready = threading.Barrier(8)

    def build() -> None:
        ready.wait()
        expr = apply("lt", apply("mul", I, constant(987_654)), J)
        for n in range(200):
            expr = apply("or", expr, apply("eq", I, constant(n)))
        results.append(expr)

    threads = [threading.Thread(target=build) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 8 and len({id(t) for t in results}) == 1


@pytest.mark.parametrize("op, args, kind", [
    ("add", (I, J), "int"), ("add", (I, FLOAT), "float"), ("add", (BOOLEAN, BOOLEAN), "int"),
    ("div", (I, J), "float"), ("floordiv", (I, J), "int"), ("floordiv", (FLOAT, J), "float"),
    ("mod", (I, INTEGER), "int"), ("pow", (I, FLOAT), "float"), ("exp", (I,), "float"), ("sqrt", (INTEGER,), "float"),
    ("neg", (I,), "int"), ("abs", (FLOAT,), "float"), ("sign", (BOOLEAN,), "int"), ("floor", (FLOAT,), "float"),
    ("to_int", (FLOAT,), "int"), ("to_float", (I,), "float"), ("lt", (I, FLOAT), "bool"), ("and", (I, J), "bool"),
    ("where", (BOOLEAN, I, FLOAT), "float"), ("where", (BOOLEAN, BOOLEAN, TRUE), "bool"),
    ("minimum", (BOOLEAN, BOOLEAN), "bool"), ("maximum", (I, FLOAT), "float"), ("bitand", (I, J), "int"),
    ("shift_left", (I, J), "int"),
])  # fmt: skip
def test_kind_of_a_result_follows_torch(op: str, args: tuple[Expr, ...], kind: str) -> None:
    assert apply(op, *args).kind == kind


@pytest.mark.parametrize("op", ["floor", "ceil", "round", "trunc"])
def test_rounding_an_integer_is_the_identity(op: str) -> None:
    assert apply(op, I) is I and apply(op, FLOAT) is not FLOAT


def test_casting_to_the_same_kind_is_the_identity() -> None:
    assert apply("to_float", FLOAT) is FLOAT and apply("to_int", I) is I
    assert apply("to_float", I) is not I and apply("to_int", FLOAT) is not FLOAT


def test_logic_is_simplified() -> None:
    condition = apply("lt", I, J)
    assert apply("and", condition, TRUE) is condition and apply("and", FALSE, condition) is FALSE
    assert apply("or", FALSE, condition) is condition and apply("or", condition, TRUE) is TRUE
    assert apply("and", condition, condition) is condition and apply("or", condition, condition) is condition
    assert apply("not", apply("not", condition)) is condition
    assert apply("not", TRUE) is FALSE and apply("not", FALSE) is TRUE
    assert apply("and", TRUE, TRUE) is TRUE and apply("or", FALSE, FALSE) is FALSE


def test_where_with_a_constant_condition_or_equal_branches_is_simplified() -> None:
    assert apply("where", TRUE, I, J) is I and apply("where", FALSE, I, J) is J
    assert apply("where", apply("lt", I, J), I, I) is I


def test_where_has_the_promoted_kind_of_both_branches() -> None:
    assert apply("where", TRUE, I, FLOAT).kind == "float"
    assert apply("where", FALSE, FLOAT, I).kind == "float"


def test_adding_integer_zero_is_the_identity() -> None:
    zero = constant(0)
    assert apply("add", I, zero) is I and apply("add", zero, FLOAT) is FLOAT and apply("sub", FLOAT, zero) is FLOAT
    assert apply("add", BOOLEAN, zero).kind == "int"  # a boolean becomes a number
    assert apply("sub", zero, I) is not I
    assert apply("add", I, constant(0.0)).kind == "float"  # 0.0 converts to float


def test_integer_constants_are_folded() -> None:
    assert apply("add", constant(3), constant(4)) is constant(7)
    assert apply("sub", constant(3), constant(True)) is constant(2)
    assert apply("mul", constant(-3), constant(4)) is constant(-12)
    assert apply("neg", constant(3)) is constant(-3)
    for op, expected in {"eq": False, "ne": True, "lt": True, "le": True, "gt": False, "ge": False}.items():
        assert apply(op, constant(3), constant(4)) is constant(expected)


def test_float_constants_are_not_folded() -> None:
    assert apply("add", constant(0.1), constant(0.2)).op == "add"


def test_number_is_true_if_it_is_not_zero() -> None:
    assert as_condition(I) is apply("ne", I, constant(0))
    assert as_condition(BOOLEAN) is BOOLEAN
    assert apply("and", I, BOOLEAN) is apply("and", as_condition(I), BOOLEAN)
    assert apply("where", I, J, INTEGER) is apply("where", as_condition(I), J, INTEGER)


def test_expression_lists_its_free_variables() -> None:
    expr = apply("where", apply("lt", I, variable("n_k")), FLOAT, S)
    assert expr.free_variables == {"i", "n_k", "s"} and constant(3).free_variables == frozenset()


def test_walk_visits_every_node_once_and_arguments_first() -> None:
    shared = apply("sub", I, J)
    expr = apply("mul", apply("abs", shared), apply("add", shared, I))
    nodes = list(walk(expr))
    assert len(nodes) == len(set(nodes)) == 6 and nodes[-1] is expr
    for n, node in enumerate(nodes):
        assert all(a in nodes[:n] for a in node.args)


def test_walk_of_a_very_deep_expression_does_not_overflow() -> None:
    expr = I
    for n in range(5000):
        expr = apply("add", expr, constant(n + 1))
    assert len(list(walk(expr))) == 10_001
    assert substitute(expr, {I: J}).free_variables == {"j"}


def test_substitution_replaces_every_occurrence_and_simplifies() -> None:
    expr = apply("add", apply("mul", S, S), lookup(0, (I,), "float"))
    doubled = apply("mul", S, constant(2.0))
    assert substitute(expr, {S: doubled}) is apply("add", apply("mul", doubled, doubled), lookup(0, (I,), "float"))
    assert substitute(expr, {I: J}) is apply("add", apply("mul", S, S), lookup(0, (J,), "float"))
    assert substitute(apply("and", apply("lt", I, J), BOOLEAN), {BOOLEAN: TRUE}) is apply("lt", I, J)
    assert substitute(expr, {}) is expr


def test_substitution_is_simultaneous() -> None:
    assert substitute(apply("add", I, J), {I: J, J: I}) is apply("add", J, I)


def test_renumbering_changes_only_the_slots() -> None:
    expr = apply("eq", lookup(0, (I,), "int"), lookup(1, (lookup(0, (J,), "int"),), "int"))
    renumbered = renumber_slots(expr, {0: 5, 1: 0})
    assert renumbered is apply("eq", lookup(5, (I,), "int"), lookup(0, (lookup(5, (J,), "int"),), "int"))
    assert [slot_of(n) for n in walk(renumbered) if n.op == "lookup"] == [5, 5, 0]
    assert renumber_slots(expr, {0: 0, 1: 1}) is expr


@pytest.mark.parametrize("seed", range(3))
def test_kind_of_random_expressions_matches_their_values(seed: int) -> None:
    context = random_context(seed)
    generator = ExprGenerator(context, seed)
    kinds = {torch.bool: "bool", torch.int64: "int", torch.float32: "float", torch.float64: "float"}
    for n in range(120):
        expr = (generator.boolean, generator.integer, generator.floating)[n % 3](3)
        values = context.values_or_none(expr)
        if values is None:
            continue
        values = torch.from_numpy(values.copy())
        assert kinds[values.dtype] == expr.kind, repr(expr)
