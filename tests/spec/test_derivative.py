"""Derivatives of terms, against torch's own and against differences."""

import random

import pytest
import torch
from torch import Tensor

from regard.spec.derivative import derivatives
from regard.spec.evaluate import Evaluation, Positions
from regard.spec.term import Term, apply, constant, lookup, slot_of, variable
from regard.spec.text import text

S = variable("s")
B, H, I, J, P = (variable(name) for name in "bhijp")
SHAPE = (2, 2, 5, 6)

# Derivatives of a dozen operations in a row, in float64: some hundred roundings of numbers up to 1e3.
CLOSE = dict(rtol=1e-9, atol=1e-9)


def positions() -> Positions:
    return Positions(*(range(n) for n in SHAPE), start=1, n_q=SHAPE[2], n_k=SHAPE[3], device=torch.device("cpu"))


def captured() -> tuple[Tensor, ...]:
    noise = torch.Generator().manual_seed(3)

    def real(*shape: int) -> Tensor:
        return torch.randn(shape, generator=noise, dtype=torch.float64).requires_grad_()

    return real(2), real(11), real(5, 6), real(2, 2, 5, 6), real(), real(4, 3)


def scores() -> Tensor:
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(4), dtype=torch.float64).requires_grad_()


SMOOTH_OPERATIONS = (
    *("add", "sub", "mul", "mul", "div", "minimum", "maximum", "where", "abs", "neg", "mod", "mixed", "floor"),
    *("tanh", "sigmoid", "sin", "cos", "exp", "exp2", "expm1", "log", "log1p", "log2", "sqrt", "pow", "learned pow"),
)


class SmoothWriter:
    """Formulas without poles: torch's derivatives of them are finite, and so must these be."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)

    def leaf(self) -> Term:
        choices = (
            S,
            S,
            lookup(0, (H,), "float"),
            lookup(1, (apply("add", apply("sub", I, J), constant(5)),), "float"),
            lookup(1, (apply("sub", J, I),), "float"),  # below zero, too
            lookup(2, (I, J), "float"),
            lookup(3, (B, H, I, J), "float"),
            lookup(4, (), "float"),
            lookup(5, (apply("mod", I, constant(4)), apply("floordiv", J, constant(2))), "float"),
            constant(0.7),
            apply("to_float", apply("sub", P, J)),
            apply("div", J, constant(4)),
        )
        return self.draw.choice(choices)

    def whole(self) -> Term:
        return self.draw.choice((apply("sub", P, J), I, apply("abs", apply("sub", P, J)), constant(2)))

    def condition(self, depth: int) -> Term:
        op = self.draw.choice(("lt", "ge"))
        if self.draw.random() < 0.5:
            return apply(op, apply("sub", P, J), self.whole())
        return apply(op, apply("add", S, self.term(depth)), self.term(depth))

    def positive(self, depth: int) -> Term:
        return apply("add", apply("abs", self.term(depth)), constant(0.5))

    def term(self, depth: int) -> Term:
        if depth <= 0 or self.draw.random() < 0.1:
            return self.leaf()
        below = depth - 1
        op = self.draw.choice(SMOOTH_OPERATIONS)
        if op in ("tanh", "sigmoid", "sin", "cos", "abs", "neg"):
            return apply(op, self.term(below))
        if op in ("exp", "exp2", "expm1"):
            return apply(op, apply("tanh", self.term(below)))
        if op in ("log", "log1p", "log2", "sqrt"):
            return apply(op, self.positive(below))
        if op == "div":
            return apply(op, self.term(below), self.positive(below))
        if op == "pow":
            return apply(op, self.positive(below), self.draw.choice((constant(2), constant(-1), constant(0.5))))
        if op == "learned pow":
            return apply("pow", self.positive(below), apply("tanh", self.term(below)))
        if op == "mod":
            return apply(op, apply("add", S, self.term(below)), self.positive(below))
        if op == "where":
            return apply(op, self.condition(below), self.term(below), self.term(below))
        if op == "mixed":
            return apply(self.draw.choice(("add", "mul", "minimum")), self.term(below), self.whole())
        if op == "floor":
            return apply("sub", self.term(below), apply("floor", self.term(below)))
        if op in ("minimum", "maximum"):
            return apply(op, apply("neg", self.term(below)), self.term(below))
        return apply(op, self.term(below), self.term(below))


def by_torch(term: Term, score: Tensor, tensors: tuple[Tensor, ...], outer: Tensor) -> list[Tensor]:
    value = Evaluation(tensors, positions(), score, torch.float64).number(term).expand(SHAPE)
    leaves = [score, *tensors]
    if not value.requires_grad:
        return [torch.zeros_like(x) for x in leaves]
    found = torch.autograd.grad((value * outer).sum(), leaves, allow_unused=True)
    return [torch.zeros_like(x) if g is None else g for x, g in zip(leaves, found, strict=True)]


def by_terms(term: Term, score: Tensor, tensors: tuple[Tensor, ...], outer: Tensor) -> list[Tensor]:
    found = [torch.zeros_like(x) for x in (score, *tensors)]
    with torch.no_grad():
        looking = Evaluation(tensors, positions(), score, torch.float64)
        for leaf, change in derivatives(term).items():
            share = outer * looking.number(change).expand(SHAPE)
            if leaf is S:
                found[0] += share
            else:
                place = looking.places(leaf).expand(SHAPE)
                found[1 + slot_of(leaf)].view(-1).index_add_(0, place.flatten(), share.flatten())
    return found


def agrees(term: Term) -> None:
    score, tensors = scores(), captured()
    outer = torch.randn(SHAPE, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    expected, actual = (by(term, score, tensors, outer) for by in (by_torch, by_terms))
    for one, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(one, other, **CLOSE, msg=lambda m: f"{text(term)}: {m}")


@pytest.mark.parametrize("seed", range(8))
def test_the_derivatives_of_random_formulas_are_those_of_torch(seed: int) -> None:
    writer = SmoothWriter(seed)
    for _ in range(40):
        agrees(apply("to_float", writer.term(4)))


UNARY = ("neg", "abs", "exp", "exp2", "expm1", "tanh", "sigmoid", "sin", "cos")
ON_POSITIVE = ("log", "log1p", "log2", "sqrt")


@pytest.mark.parametrize("op", UNARY + ON_POSITIVE)
def test_the_derivative_of_each_function_is_that_of_torch(op: str) -> None:
    x = apply("add", S, lookup(0, (H,), "float"))
    agrees(apply(op, apply("add", apply("mul", x, x), constant(0.1)) if op in ON_POSITIVE else x))


@pytest.mark.parametrize("op", ["add", "sub", "mul", "div", "minimum", "maximum"])
@pytest.mark.parametrize("other", [lookup(2, (I, J), "float"), constant(0.3), apply("add", J, constant(1))], ids=text)
def test_the_derivative_of_each_operation_is_that_of_torch(op: str, other: Term) -> None:
    agrees(apply(op, S, other))
    agrees(apply(op, other, S))


def test_where_two_are_equal_the_greater_shares_its_derivative_as_in_torch() -> None:
    equal = apply("mul", S, constant(1.0))
    for op in ("minimum", "maximum"):
        agrees(apply(op, S, equal))


@pytest.mark.parametrize(
    "term",
    [
        apply("mul", constant(5.0), apply("tanh", apply("div", S, constant(5.0)))),
        apply("sub", S, apply("mul", lookup(0, (H,), "float"), apply("abs", apply("sub", P, J)))),
        apply("where", apply("lt", J, P), apply("mul", S, S), apply("exp", S)),
        apply("div", S, apply("add", apply("mul", lookup(4, (), "float"), lookup(4, (), "float")), constant(1.0))),
    ],
    ids=text,
)
def test_derivatives_are_what_differences_say(term: Term) -> None:
    score, tensors, step = scores().detach(), [t.detach() for t in captured()], 1e-6
    outer = torch.randn(SHAPE, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    found = by_terms(term, score, tuple(tensors), outer)

    def total() -> Tensor:
        return (Evaluation(tensors, positions(), score, torch.float64).number(term).expand(SHAPE) * outer).sum()

    for tensor, gradient in zip((score, *tensors), found, strict=True):
        flat = tensor.view(-1)
        for n in range(0, len(flat), 7):
            kept = flat[n].clone()
            flat[n] = kept + step
            up = total()
            flat[n] = kept - step
            down = total()
            flat[n] = kept
            # a central difference of step 1e-6 is good to its square and to 1e-16 / 1e-6
            assert ((up - down) / (2 * step)).item() == pytest.approx(gradient.view(-1)[n].item(), abs=1e-7)


def test_a_constant_has_no_derivatives() -> None:
    assert derivatives(apply("to_float", apply("sub", P, J))) == {}
    assert derivatives(apply("lt", S, constant(0.0))) == {}
    assert derivatives(apply("floor", S)) == {}


def test_the_derivative_of_the_score_itself_is_one() -> None:
    found = derivatives(S)
    assert list(found) == [S] and text(found[S]) == "1.0"
    shifted = derivatives(apply("add", S, lookup(0, (I,), "float")))
    assert {text(x) for x in shifted.values()} == {"1.0"} and len(shifted) == 2


def test_a_table_of_whole_numbers_has_no_derivative() -> None:
    whole = lookup(0, (I,), "int")
    assert set(derivatives(apply("add", S, apply("mul", whole, lookup(1, (I,), "float"))))) == {
        S,
        lookup(1, (I,), "float"),
    }


def test_what_is_not_chosen_gets_nothing_of_an_infinite_slope() -> None:
    term = apply("sqrt", apply("where", apply("lt", J, P), apply("mul", S, constant(0.0)), lookup(2, (I, J), "float")))
    table = torch.full((5, 6), 4.0, dtype=torch.float64)
    found = by_terms(term, scores(), (table, table, table), torch.ones(SHAPE, dtype=torch.float64))
    chosen = torch.ones(5, 6, dtype=torch.float64).triu(1)
    assert torch.equal(found[3], chosen * 0.25 * SHAPE[0] * SHAPE[1])
    assert (found[0][0, 0][chosen == 1] == 0).all()


def test_a_choice_of_minus_infinity_passes_no_gradient() -> None:
    term = apply("where", apply("le", J, P), S, constant(float("-inf")))
    found = by_terms(term, scores(), (), torch.ones(SHAPE, dtype=torch.float64))[0]
    assert torch.equal(found[0, 0], torch.ones(5, 6, dtype=torch.float64).tril(1))


def test_a_learned_exponent_of_the_distance_has_torchs_derivative_at_distance_zero() -> None:
    """0 to the power of t is 0 for every t > 0, so its slope there is 0, not 0 times log 0."""
    distance = apply("to_float", apply("abs", apply("sub", P, J)))
    exponent = apply("add", apply("abs", lookup(0, (H,), "float")), constant(0.5))
    agrees(apply("sub", S, apply("pow", distance, exponent)))


def test_derivatives_in_float64_do_not_lose_digits_to_positions() -> None:
    """A position has no precision of its own: its logarithm belongs to a float64 derivative."""
    agrees(apply("mul", S, apply("pow", apply("add", J, constant(2)), lookup(0, (H,), "float"))))
    agrees(apply("mul", apply("div", lookup(0, (H,), "float"), apply("add", J, constant(3))), S))
