"""Derivatives of expressions, against torch's autograd and finite differences."""

import random

import pytest
import torch
from torch import Tensor

from regard.expr.derivative import derivatives
from regard.expr.evaluate import Evaluator, IndexGrid
from regard.expr.ir import Expr, apply, constant, lookup, slot_of, variable
from regard.expr.printing import to_text

S = variable("s")
B, H, I, J, P = (variable(name) for name in "bhijp")
SHAPE = (2, 2, 5, 6)

# derivatives of a dozen nested operations in float64: about a hundred roundings of numbers up to 1e3
CLOSE = dict(rtol=1e-9, atol=1e-9)


def index_grid() -> IndexGrid:
    return IndexGrid(*(range(n) for n in SHAPE), query_offset=1, n_q=SHAPE[2], n_k=SHAPE[3], device=torch.device("cpu"))


def captured() -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(3)

    def floats(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()

    return floats(2), floats(11), floats(5, 6), floats(2, 2, 5, 6), floats(), floats(4, 3)


def scores() -> Tensor:
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(4), dtype=torch.float64).requires_grad_()


SMOOTH_OPS = (
    *("add", "sub", "mul", "mul", "div", "minimum", "maximum", "where", "abs", "neg", "mod", "mixed", "floor"),
    *("tanh", "sigmoid", "sin", "cos", "exp", "exp2", "expm1", "log", "log1p", "log2", "sqrt", "pow", "learned pow"),
)


class SmoothExprGenerator:
    """Generates expressions without poles, whose derivatives are finite."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def leaf(self) -> Expr:
        choices = (
            S,
            S,
            lookup(0, (H,), "float"),
            lookup(1, (apply("add", apply("sub", I, J), constant(5)),), "float"),
            lookup(1, (apply("sub", J, I),), "float"),  # includes negative indices
            lookup(2, (I, J), "float"),
            lookup(3, (B, H, I, J), "float"),
            lookup(4, (), "float"),
            lookup(5, (apply("mod", I, constant(4)), apply("floordiv", J, constant(2))), "float"),
            constant(0.7),
            apply("to_float", apply("sub", P, J)),
            apply("div", J, constant(4)),
        )
        return self.rng.choice(choices)

    def integer(self) -> Expr:
        return self.rng.choice((apply("sub", P, J), I, apply("abs", apply("sub", P, J)), constant(2)))

    def boolean(self, depth: int) -> Expr:
        op = self.rng.choice(("lt", "ge"))
        if self.rng.random() < 0.5:
            return apply(op, apply("sub", P, J), self.integer())
        return apply(op, apply("add", S, self.expr(depth)), self.expr(depth))

    def positive(self, depth: int) -> Expr:
        return apply("add", apply("abs", self.expr(depth)), constant(0.5))

    def expr(self, depth: int) -> Expr:
        if depth <= 0 or self.rng.random() < 0.1:
            return self.leaf()
        child_depth = depth - 1
        op = self.rng.choice(SMOOTH_OPS)
        if op in ("tanh", "sigmoid", "sin", "cos", "abs", "neg"):
            return apply(op, self.expr(child_depth))
        if op in ("exp", "exp2", "expm1"):
            return apply(op, apply("tanh", self.expr(child_depth)))
        if op in ("log", "log1p", "log2", "sqrt"):
            return apply(op, self.positive(child_depth))
        if op == "div":
            return apply(op, self.expr(child_depth), self.positive(child_depth))
        if op == "pow":
            return apply(op, self.positive(child_depth), self.rng.choice((constant(2), constant(-1), constant(0.5))))
        if op == "learned pow":
            return apply("pow", self.positive(child_depth), apply("tanh", self.expr(child_depth)))
        if op == "mod":
            return apply(op, apply("add", S, self.expr(child_depth)), self.positive(child_depth))
        if op == "where":
            return apply(op, self.boolean(child_depth), self.expr(child_depth), self.expr(child_depth))
        if op == "mixed":
            return apply(self.rng.choice(("add", "mul", "minimum")), self.expr(child_depth), self.integer())
        if op == "floor":
            return apply("sub", self.expr(child_depth), apply("floor", self.expr(child_depth)))
        if op in ("minimum", "maximum"):
            return apply(op, apply("neg", self.expr(child_depth)), self.expr(child_depth))
        return apply(op, self.expr(child_depth), self.expr(child_depth))


def torch_gradients(expr: Expr, score: Tensor, tensors: tuple[Tensor, ...], upstream: Tensor) -> list[Tensor]:
    value = Evaluator(tensors, index_grid(), score, torch.float64).score_value(expr).expand(SHAPE)
    leaves = [score, *tensors]
    if not value.requires_grad:
        return [torch.zeros_like(x) for x in leaves]
    gradients = torch.autograd.grad((value * upstream).sum(), leaves, allow_unused=True)
    return [torch.zeros_like(x) if g is None else g for x, g in zip(leaves, gradients, strict=True)]


def symbolic_gradients(expr: Expr, score: Tensor, tensors: tuple[Tensor, ...], upstream: Tensor) -> list[Tensor]:
    gradients = [torch.zeros_like(x) for x in (score, *tensors)]
    with torch.no_grad():
        evaluator = Evaluator(tensors, index_grid(), score, torch.float64)
        for leaf, derivative in derivatives(expr).items():
            gradient = upstream * evaluator.score_value(derivative).expand(SHAPE)
            if leaf is S:
                gradients[0] += gradient
            else:
                flat_index = evaluator.flat_indices(leaf).expand(SHAPE)
                gradients[1 + slot_of(leaf)].view(-1).index_add_(0, flat_index.flatten(), gradient.flatten())
    return gradients


def check_derivatives(expr: Expr) -> None:
    score, tensors = scores(), captured()
    upstream = torch.randn(SHAPE, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    expected, actual = (f(expr, score, tensors, upstream) for f in (torch_gradients, symbolic_gradients))
    for gradient, reference in zip(actual, expected, strict=True):
        torch.testing.assert_close(gradient, reference, **CLOSE, msg=lambda m: f"{to_text(expr)}: {m}")


@pytest.mark.parametrize("seed", range(8))
def test_derivatives_of_random_expressions_agree_with_torch(seed: int) -> None:
    generator = SmoothExprGenerator(seed)
    for _ in range(40):
        check_derivatives(apply("to_float", generator.expr(4)))


UNARY = ("neg", "abs", "exp", "exp2", "expm1", "tanh", "sigmoid", "sin", "cos")
POSITIVE_ONLY = ("log", "log1p", "log2", "sqrt")


@pytest.mark.parametrize("op", UNARY + POSITIVE_ONLY)
def test_derivative_of_each_unary_operation_agrees_with_torch(op: str) -> None:
    x = apply("add", S, lookup(0, (H,), "float"))
    check_derivatives(apply(op, apply("add", apply("mul", x, x), constant(0.1)) if op in POSITIVE_ONLY else x))


@pytest.mark.parametrize("op", ["add", "sub", "mul", "div", "minimum", "maximum"])
@pytest.mark.parametrize(
    "other", [lookup(2, (I, J), "float"), constant(0.3), apply("add", J, constant(1))], ids=to_text
)
def test_derivative_of_each_binary_operation_agrees_with_torch(op: str, other: Expr) -> None:
    check_derivatives(apply(op, S, other))
    check_derivatives(apply(op, other, S))


def test_equal_arguments_of_maximum_share_the_derivative_as_in_torch() -> None:
    equal = apply("mul", S, constant(1.0))
    for op in ("minimum", "maximum"):
        check_derivatives(apply(op, S, equal))


@pytest.mark.parametrize(
    "expr",
    [
        apply("mul", constant(5.0), apply("tanh", apply("div", S, constant(5.0)))),
        apply("sub", S, apply("mul", lookup(0, (H,), "float"), apply("abs", apply("sub", P, J)))),
        apply("where", apply("lt", J, P), apply("mul", S, S), apply("exp", S)),
        apply("div", S, apply("add", apply("mul", lookup(4, (), "float"), lookup(4, (), "float")), constant(1.0))),
    ],
    ids=to_text,
)
def test_derivatives_agree_with_finite_differences(expr: Expr) -> None:
    score, tensors, step = scores().detach(), [t.detach() for t in captured()], 1e-6
    upstream = torch.randn(SHAPE, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    gradients = symbolic_gradients(expr, score, tuple(tensors), upstream)

    def total() -> Tensor:
        return (Evaluator(tensors, index_grid(), score, torch.float64).score_value(expr).expand(SHAPE) * upstream).sum()

    for tensor, gradient in zip((score, *tensors), gradients, strict=True):
        flat = tensor.view(-1)
        for n in range(0, len(flat), 7):
            original = flat[n].clone()
            flat[n] = original + step
            up = total()
            flat[n] = original - step
            down = total()
            flat[n] = original
            # the error of a central difference is about step**2 + 1e-16 / step
            assert ((up - down) / (2 * step)).item() == pytest.approx(gradient.view(-1)[n].item(), abs=1e-7)


def test_expression_without_the_score_has_no_derivatives() -> None:
    assert derivatives(apply("to_float", apply("sub", P, J))) == {}
    assert derivatives(apply("lt", S, constant(0.0))) == {}
    assert derivatives(apply("floor", S)) == {}


def test_derivative_of_the_score_is_one() -> None:
    gradients = derivatives(S)
    assert list(gradients) == [S] and to_text(gradients[S]) == "1.0"
    shifted = derivatives(apply("add", S, lookup(0, (I,), "float")))
    assert {to_text(x) for x in shifted.values()} == {"1.0"} and len(shifted) == 2


def test_integer_tensor_has_no_derivative() -> None:
    integer = lookup(0, (I,), "int")
    assert set(derivatives(apply("add", S, apply("mul", integer, lookup(1, (I,), "float"))))) == {
        S,
        lookup(1, (I,), "float"),
    }


def test_untaken_branch_gets_no_gradient_from_an_infinite_slope() -> None:
    expr = apply("sqrt", apply("where", apply("lt", J, P), apply("mul", S, constant(0.0)), lookup(2, (I, J), "float")))
    table = torch.full((5, 6), 4.0, dtype=torch.float64)
    gradients = symbolic_gradients(expr, scores(), (table, table, table), torch.ones(SHAPE, dtype=torch.float64))
    branch = torch.ones(5, 6, dtype=torch.float64).triu(1)
    assert torch.equal(gradients[3], branch * 0.25 * SHAPE[0] * SHAPE[1])
    assert (gradients[0][0, 0][branch == 1] == 0).all()


def test_branch_of_minus_infinity_passes_no_gradient() -> None:
    expr = apply("where", apply("le", J, P), S, constant(float("-inf")))
    gradients = symbolic_gradients(expr, scores(), (), torch.ones(SHAPE, dtype=torch.float64))[0]
    assert torch.equal(gradients[0, 0], torch.ones(5, 6, dtype=torch.float64).tril(1))


def test_derivative_of_a_learned_exponent_at_distance_zero() -> None:
    """0**t is 0 for every t > 0, so its derivative in t is 0, not 0 * log(0)."""
    distance = apply("to_float", apply("abs", apply("sub", P, J)))
    exponent = apply("add", apply("abs", lookup(0, (H,), "float")), constant(0.5))
    check_derivatives(apply("sub", S, apply("pow", distance, exponent)))


def test_float64_derivatives_of_positions_keep_full_precision() -> None:
    """Functions of positions in a float64 derivative are computed in float64."""
    check_derivatives(apply("mul", S, apply("pow", apply("add", J, constant(2)), lookup(0, (H,), "float"))))
    check_derivatives(apply("mul", apply("div", lookup(0, (H,), "float"), apply("add", J, constant(3))), S))
