"""Terms as functions of one pair: the numbers of `evaluate`, whatever the formula and wherever the call begins."""

import pytest
import torch
from torch import Tensor

from regard.spec.closure import Closures, may_leave, rounding_that_decides
from regard.spec.evaluate import Evaluation
from regard.spec.term import FALSE, TRUE, Term, apply, constant, lookup, variable
from regard.spec.text import text

from .worlds import World, Writer, world

B, H, I, J, P, S = (variable(name) for name in "bhijps")
CPU = torch.device("cpu")
LENGTHS = (2, 3, 4, 5)


def closures(where: World) -> Closures:
    return Closures(where.tensors, where.lengths, where.start, CPU)


def indices(where: World) -> list[Tensor]:
    """b, h, i, j as FlexAttention counts them: with 32 bits."""
    return [torch.as_tensor(where.positions()[name]).int() for name in "bhij"]


@pytest.mark.parametrize("seed", range(60))
def test_a_mask_is_the_same_as_a_function_of_one_pair(seed: int) -> None:
    where = world(seed, scalars=True, narrow=True)
    writer = Writer(where, seed, inside=True)
    for _ in range(4):
        term = writer.condition(3)
        found = closures(where).mask(term)(*indices(where))
        assert torch.equal(found.expand(where.lengths), torch.as_tensor(where.values(term))), text(term)


@pytest.mark.parametrize("seed", range(60))
def test_a_rule_is_the_same_as_a_function_of_one_pair(seed: int) -> None:
    where = world(seed, scalars=True, narrow=True)
    writer = Writer(where, 500 + seed, inside=True)
    scores = torch.randn(where.lengths)
    for op in ("add", "mul", "minimum"):
        term = apply(op, apply("tanh", S), writer.real(3))
        found = closures(where).score(term, torch.float32)(scores, *indices(where))
        expected = Evaluation(where.tensors, where.positions(), scores, torch.float32).number(term)
        torch.testing.assert_close(
            found, expected.expand(where.lengths), rtol=0, atol=0, equal_nan=True, msg=text(term)
        )


def test_a_score_in_half_precision_is_changed_in_full() -> None:
    scores = torch.full((1,), 3.0, dtype=torch.bfloat16)
    function = Closures((), (1, 1, 1, 1), 0, CPU).score(apply("div", S, constant(7.0)), torch.float32)
    assert torch.equal(function(scores, *[torch.zeros(1, dtype=torch.int32)] * 4), torch.tensor([3.0]) / 7.0)


@pytest.mark.parametrize("term", [TRUE, FALSE])
def test_a_mask_without_a_variable_is_a_tensor_too(term: Term) -> None:
    found = Closures((), LENGTHS, 0, CPU).mask(term)(*torch.zeros(4, dtype=torch.int32))
    assert found.dtype == torch.bool and found.shape == () and bool(found) == (term is TRUE)


def test_products_of_positions_do_not_wrap_around() -> None:
    far = torch.tensor(100_000, dtype=torch.int32)
    function = Closures((), LENGTHS, 0, CPU).mask(apply("gt", apply("mul", I, J), constant(2**32)))
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
    ids=lambda x: text(x) if isinstance(x, Term) else "",
)
def test_a_look_up_that_might_leave_its_tensor_is_noticed(index: Term, leaves: bool) -> None:
    table = torch.zeros(LENGTHS[2])
    assert may_leave([TRUE, apply("add", S, lookup(0, (index,), "float"))], [table], LENGTHS, 2) == leaves


def test_a_look_up_may_depend_on_where_each_batch_element_begins() -> None:
    table, term = torch.zeros(9), lookup(0, (P,), "float")
    assert not may_leave([term], [table], LENGTHS, torch.tensor([5, -9]))
    assert may_leave([term], [table], LENGTHS, torch.tensor([6, 0]))


@pytest.mark.parametrize(
    "term, ops",
    [
        (apply("le", J, P), []),
        (apply("lt", lookup(0, (J,), "float"), constant(0.5)), []),
        (apply("lt", apply("abs", lookup(0, (J,), "float")), apply("to_float", I)), []),
        (apply("lt", apply("div", I, constant(3)), constant(0.5)), ["div"]),
        (apply("to_int", apply("log", apply("to_float", I))), ["log"]),
        (apply("add", S, apply("div", I, constant(3))), []),  # it flows into the score, and decides nothing
        (apply("lt", apply("mul", S, constant(2.0)), constant(0.5)), []),  # a score is each engine's own
    ],
    ids=lambda x: text(x) if isinstance(x, Term) else "",
)
def test_floats_that_are_computed_and_then_decide_are_named(term: Term, ops: list[str]) -> None:
    assert list(rounding_that_decides([TRUE, term])) == ops
