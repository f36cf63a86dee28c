"""Formulas: terms with what they capture, joined so that a tensor is counted once and has one name."""

import pytest
import torch

from regard.errors import SpecError
from regard.spec.formula import Formula, FromLengths, FromQueries, gather, written
from regard.spec.term import TRUE, apply, constant, lookup, variable
from regard.spec.text import text

I, J = variable("i"), variable("j")


def test_a_formula_is_what_its_function_writes() -> None:
    table = torch.arange(4)
    made = written(lambda i, j: table[i] <= j, "i", "j")
    assert made.term is apply("le", lookup(0, (I,), "int"), J)
    assert len(made.tensors) == 1 and made.tensors[0] is table
    assert made.names == ("table",) and made.checks == ()


def test_names_given_are_used_instead_of_the_functions_own() -> None:
    table = torch.arange(4)
    made = written(lambda i: table[i] > 0, "i", names=("documents",))
    assert text(made.term, made.names) == "documents[i] > 0"


def test_a_tensor_that_comes_later_takes_the_place_of_its_stand_in() -> None:
    stand_in, fixed = torch.zeros(1), torch.arange(5)
    later = FromLengths(lambda lengths: torch.full((lengths[1],), float(lengths[3])))
    made = written(lambda h, j: stand_in[h] * fixed[j], "h", "j", later=(stand_in, later))
    assert made.tensors[0] is later and made.tensors[1] is fixed
    found = made.resolved((2, 3, 4, 5), 0)
    assert found[0].tolist() == [5.0, 5.0, 5.0] and found[1] is fixed


def test_a_tensor_made_from_the_queries_sees_them_and_keeps_their_gradient() -> None:
    stand_in = torch.zeros(1, 1, 1)
    made = written(
        lambda b, h, i: stand_in[b, h, i] + 0, "b", "h", "i", later=(stand_in, FromQueries(lambda q: q.sum(-1)))
    )
    queries = torch.ones(2, 3, 4, 5, requires_grad=True)
    (found,) = made.resolved((2, 3, 4, 4), 0, queries)
    assert found.shape == (2, 3, 4) and found.requires_grad and (found == 5).all()


def test_lengths_are_checked_before_tensors_are_made() -> None:
    asked = []

    def refuse(lengths, start):  # type: ignore[no-untyped-def]
        asked.append((lengths, start))
        raise SpecError("no")

    def make(lengths):  # type: ignore[no-untyped-def]
        raise AssertionError("made although the lengths are refused")

    formula = Formula(TRUE, (FromLengths(make),), ("t",), (refuse,))
    with pytest.raises(SpecError, match="no"):
        formula.resolved((1, 2, 3, 4), 7)
    assert asked == [((1, 2, 3, 4), 7)]


def test_formulas_gathered_count_a_shared_tensor_once() -> None:
    shared, own = torch.arange(3), torch.arange(4)
    one = written(lambda i: shared[i] > 0, "i")
    other = written(lambda i, j: own[i] > shared[j], "i", "j")
    terms, tensors, names, _ = gather([one, other])
    assert [id(t) for t in tensors] == [id(shared), id(own)] and names == ("shared", "own")
    assert terms[0] is apply("gt", lookup(0, (I,), "int"), constant(0))
    assert terms[1] is apply("gt", lookup(1, (I,), "int"), lookup(0, (J,), "int"))


def test_equal_tensors_that_are_not_the_same_stay_apart() -> None:
    one, other = torch.arange(3), torch.arange(3)
    _, tensors, _, _ = gather([written(lambda i: one[i] > 0, "i"), written(lambda i: other[i] > 0, "i")])
    assert len(tensors) == 2


def test_different_tensors_of_one_name_get_names_that_differ() -> None:
    def by_name(number: int) -> Formula:
        table = torch.full((3,), number)
        return written(lambda i: table[i] > 0, "i")

    terms, _, names, _ = gather([by_name(n) for n in range(4)])
    assert names == ("table", "table2", "table3", "table4")
    assert [text(t, names) for t in terms] == [f"{n}[i] > 0" for n in names]


def test_the_checks_of_all_formulas_are_kept() -> None:
    calls = []
    formulas = [Formula(TRUE, checks=(lambda lengths, start, n=n: calls.append(n),)) for n in range(3)]
    _, _, _, checks = gather(formulas)
    for check in checks:
        check((1, 1, 1, 1), 0)
    assert calls == [0, 1, 2]


def test_nothing_gathered_is_nothing() -> None:
    assert gather([]) == ([], (), (), ())
