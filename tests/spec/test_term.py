"""Terms: equal formulas are one object, kinds follow torch's, what is evident is simplified and nothing else."""

import copy
import gc
import pickle
import threading

import pytest
import torch

from regard.spec import term as terms
from regard.spec.term import (
    FALSE,
    TRUE,
    Term,
    apply,
    constant,
    lookup,
    renumber,
    slot_of,
    substitute,
    truth,
    variable,
    walk,
)

from .worlds import Writer, world

I, J, S = variable("i"), variable("j"), variable("s")
FLOAT, WHOLE, CONDITION = lookup(0, (I,), "float"), lookup(1, (I,), "int"), lookup(2, (I,), "bool")


def test_equal_formulas_are_the_same_object() -> None:
    assert apply("le", J, apply("add", I, constant(3))) is apply(
        "le", variable("j"), apply("add", variable("i"), constant(3))
    )
    assert apply("sub", I, J) is not apply("sub", J, I)
    assert lookup(0, (I,), "float") is not lookup(1, (I,), "float")


@pytest.mark.parametrize("one, other", [(0.0, -0.0), (1, True), (0, False), (1, 1.0), (0.0, 0), (2.0, 2)])
def test_numbers_that_python_calls_equal_are_different_constants(one: object, other: object) -> None:
    assert one == other and constant(one) is not constant(other)  # type: ignore[arg-type]


def test_a_nan_is_the_same_constant_each_time() -> None:
    assert constant(float("nan")) is constant(float("nan"))


def test_terms_survive_pickling_and_copying_as_the_same_object() -> None:
    term = apply("where", apply("lt", I, J), FLOAT, constant(-0.0))
    assert pickle.loads(pickle.dumps(term)) is term
    assert copy.deepcopy(term) is term


def test_terms_nobody_holds_are_forgotten() -> None:
    gc.collect()
    before = len(terms._pool)
    kept = [apply("add", I, constant(123_456 + n)) for n in range(50)]
    assert len(terms._pool) >= before + 50
    del kept
    gc.collect()
    assert len(terms._pool) <= before


def test_threads_that_build_the_same_formula_get_one_object() -> None:
    found: list[Term] = []
    ready = threading.Barrier(8)

    def build() -> None:
        ready.wait()
        term = apply("lt", apply("mul", I, constant(987_654)), J)
        for n in range(200):
            term = apply("or", term, apply("eq", I, constant(n)))
        found.append(term)

    threads = [threading.Thread(target=build) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8 and len({id(t) for t in found}) == 1


@pytest.mark.parametrize("op, args, kind", [
    ("add", (I, J), "int"), ("add", (I, FLOAT), "float"), ("add", (CONDITION, CONDITION), "int"),
    ("div", (I, J), "float"), ("floordiv", (I, J), "int"), ("floordiv", (FLOAT, J), "float"),
    ("mod", (I, WHOLE), "int"), ("pow", (I, FLOAT), "float"), ("exp", (I,), "float"), ("sqrt", (WHOLE,), "float"),
    ("neg", (I,), "int"), ("abs", (FLOAT,), "float"), ("sign", (CONDITION,), "int"), ("floor", (FLOAT,), "float"),
    ("to_int", (FLOAT,), "int"), ("to_float", (I,), "float"), ("lt", (I, FLOAT), "bool"), ("and", (I, J), "bool"),
    ("where", (CONDITION, I, FLOAT), "float"), ("where", (CONDITION, CONDITION, TRUE), "bool"),
    ("minimum", (CONDITION, CONDITION), "bool"), ("maximum", (I, FLOAT), "float"), ("bitand", (I, J), "int"),
    ("shift_left", (I, J), "int"),
])  # fmt: skip
def test_the_kind_of_a_result_is_what_torch_would_give(op: str, args: tuple[Term, ...], kind: str) -> None:
    assert apply(op, *args).kind == kind


@pytest.mark.parametrize("op", ["floor", "ceil", "round", "trunc"])
def test_rounding_a_whole_number_leaves_it(op: str) -> None:
    assert apply(op, I) is I and apply(op, FLOAT) is not FLOAT


def test_casting_to_what_it_is_already_leaves_it() -> None:
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


def test_a_choice_that_is_no_choice_is_simplified() -> None:
    assert apply("where", TRUE, I, J) is I and apply("where", FALSE, I, J) is J
    assert apply("where", apply("lt", I, J), I, I) is I


def test_a_choice_keeps_the_kind_that_both_branches_decide() -> None:
    assert apply("where", TRUE, I, FLOAT).kind == "float"
    assert apply("where", FALSE, FLOAT, I).kind == "float"


def test_adding_a_whole_zero_changes_nothing() -> None:
    zero = constant(0)
    assert apply("add", I, zero) is I and apply("add", zero, FLOAT) is FLOAT and apply("sub", FLOAT, zero) is FLOAT
    assert apply("add", CONDITION, zero).kind == "int"  # a condition becomes a number
    assert apply("sub", zero, I) is not I
    assert apply("add", I, constant(0.0)).kind == "float"  # 0.0 makes a float of it


def test_whole_constants_are_computed_at_once() -> None:
    assert apply("add", constant(3), constant(4)) is constant(7)
    assert apply("sub", constant(3), constant(True)) is constant(2)
    assert apply("mul", constant(-3), constant(4)) is constant(-12)
    assert apply("neg", constant(3)) is constant(-3)
    for op, expected in {"eq": False, "ne": True, "lt": True, "le": True, "gt": False, "ge": False}.items():
        assert apply(op, constant(3), constant(4)) is constant(expected)


def test_float_constants_keep_the_rounding_of_the_engine() -> None:
    assert apply("add", constant(0.1), constant(0.2)).op == "add"


def test_a_number_is_true_where_it_is_not_zero() -> None:
    assert truth(I) is apply("ne", I, constant(0))
    assert truth(CONDITION) is CONDITION
    assert apply("and", I, CONDITION) is apply("and", truth(I), CONDITION)
    assert apply("where", I, J, WHOLE) is apply("where", truth(I), J, WHOLE)


def test_a_term_knows_which_variables_are_below_it() -> None:
    term = apply("where", apply("lt", I, variable("n_k")), FLOAT, S)
    assert term.depends == {"i", "n_k", "s"} and constant(3).depends == frozenset()


def test_a_walk_meets_every_node_once_and_arguments_first() -> None:
    shared = apply("sub", I, J)
    term = apply("mul", apply("abs", shared), apply("add", shared, I))
    nodes = list(walk(term))
    assert len(nodes) == len(set(nodes)) == 6 and nodes[-1] is term
    for n, node in enumerate(nodes):
        assert all(a in nodes[:n] for a in node.args)


def test_a_walk_through_a_very_deep_formula_does_not_overflow() -> None:
    term = I
    for n in range(5000):
        term = apply("add", term, constant(n + 1))
    assert len(list(walk(term))) == 10_001
    assert substitute(term, {I: J}).depends == {"j"}


def test_substitution_replaces_every_occurrence_and_simplifies() -> None:
    term = apply("add", apply("mul", S, S), lookup(0, (I,), "float"))
    doubled = apply("mul", S, constant(2.0))
    assert substitute(term, {S: doubled}) is apply("add", apply("mul", doubled, doubled), lookup(0, (I,), "float"))
    assert substitute(term, {I: J}) is apply("add", apply("mul", S, S), lookup(0, (J,), "float"))
    assert substitute(apply("and", apply("lt", I, J), CONDITION), {CONDITION: TRUE}) is apply("lt", I, J)
    assert substitute(term, {}) is term


def test_substitution_does_not_enter_what_it_has_put_in() -> None:
    assert substitute(apply("add", I, J), {I: J, J: I}) is apply("add", J, I)


def test_renumbering_changes_only_which_tensors_are_read() -> None:
    term = apply("eq", lookup(0, (I,), "int"), lookup(1, (lookup(0, (J,), "int"),), "int"))
    moved = renumber(term, {0: 5, 1: 0})
    assert moved is apply("eq", lookup(5, (I,), "int"), lookup(0, (lookup(5, (J,), "int"),), "int"))
    assert [slot_of(n) for n in walk(moved) if n.op == "lookup"] == [5, 5, 0]
    assert renumber(term, {0: 0, 1: 1}) is term


@pytest.mark.parametrize("seed", range(3))
def test_random_formulas_have_the_kind_of_their_values(seed: int) -> None:
    where = world(seed)
    writer = Writer(where, seed)
    kinds = {torch.bool: "bool", torch.int64: "int", torch.float32: "float", torch.float64: "float"}
    for n in range(120):
        term = (writer.condition, writer.whole, writer.real)[n % 3](3)
        values = where.values_or_none(term)
        if values is None:
            continue
        values = torch.from_numpy(values.copy())
        assert kinds[values.dtype] == term.kind, repr(term)
