"""Derivatives of an expression with respect to the score and to captured tensors, as expressions."""

import math
from collections.abc import Callable

from regard.expr.ir import Expr, apply, constant, variable, walk


def _to_score_dtype(x: Expr) -> Expr:
    return apply("exact", x)


def _score_constant(x: float) -> Expr:
    return _to_score_dtype(constant(x))


ONE, ZERO = _score_constant(1.0), _score_constant(0.0)


def derivatives(expr: Expr) -> dict[Expr, Expr]:
    """Return the derivatives of `expr` with respect to the score `s` and to each float lookup.

    The keys are `variable("s")` and the lookup nodes; the derivative of a missing node is zero everywhere. The gradient
    of a captured tensor is the sum of each pair's derivative at the indices of the lookup.

    >>> from regard.expr.printing import to_text
    >>> s = variable("s")
    >>> to_text(derivatives(apply("mul", apply("tanh", s), constant(2.0)))[s])
    '2.0 * (1.0 - tanh(s) ** 2)'
    """
    adjoint: dict[Expr, Expr] = {expr: ONE}
    for node in reversed(list(walk(expr))):
        upstream = adjoint.get(node)
        if upstream is None:
            continue
        for arg, partial in _partials(node):
            if arg.kind != "float":
                continue
            term = _multiply(upstream, partial) if not isinstance(partial, _Branch) else partial.select(upstream)
            adjoint[arg] = term if arg not in adjoint else apply("add", adjoint[arg], term)
    leaves = (node for node in adjoint if node is variable("s") or node.op == "lookup")
    return {leaf: adjoint[leaf] for leaf in leaves}


class _Branch:
    """The partial derivative of `where` in one branch: zero where the branch is not taken, even if it is not finite."""

    def __init__(self, condition: Expr, is_true_branch: bool) -> None:
        self.condition, self.is_true_branch = condition, is_true_branch

    def select(self, upstream: Expr) -> Expr:
        return apply("where", self.condition, *((upstream, ZERO) if self.is_true_branch else (ZERO, upstream)))


def _multiply(x: Expr, y: Expr) -> Expr:
    return y if x is ONE else x if y is ONE else apply("mul", x, y)


def _partials(node: Expr) -> list[tuple[Expr, Expr | _Branch]]:
    if node.op in _BINARY:
        x, y = node.args
        return list(zip(node.args, _BINARY[node.op](x, y, node), strict=True))
    if node.op in _UNARY:
        return [(node.args[0], _UNARY[node.op](node.args[0], node))]
    if node.op == "where":
        condition, x, y = node.args
        return [(x, _Branch(condition, True)), (y, _Branch(condition, False))]
    return []  # comparisons, rounding and lookups have derivative zero


def _min_max_partials(comparison: str) -> Callable[[Expr, Expr, Expr], tuple[Expr, Expr]]:
    # equal arguments share the gradient, as in torch
    def partials(x: Expr, y: Expr, _: Expr) -> tuple[Expr, Expr]:
        half = apply("where", apply("eq", x, y), _score_constant(0.5), ZERO)
        return (
            apply("where", apply(comparison, x, y), ONE, half),
            apply("where", apply(comparison, y, x), ONE, half),
        )

    return partials


_BINARY: dict[str, Callable[[Expr, Expr, Expr], tuple[Expr, Expr]]] = {
    "add": lambda x, y, _: (ONE, ONE),
    "sub": lambda x, y, _: (ONE, _score_constant(-1.0)),
    "mul": lambda x, y, _: (_to_score_dtype(y), _to_score_dtype(x)),
    "div": lambda x, y, z: (
        apply("div", ONE, _to_score_dtype(y)),
        apply("neg", apply("div", _to_score_dtype(z), _to_score_dtype(y))),
    ),
    "pow": lambda x, y, z: (
        apply(
            "mul", _to_score_dtype(y), apply("pow", _to_score_dtype(x), _to_score_dtype(apply("sub", y, constant(1))))
        ),
        apply(
            "where",
            apply("eq", x, constant(0)),
            ZERO,
            apply("mul", _to_score_dtype(z), apply("log", _to_score_dtype(x))),
        ),
    ),
    "mod": lambda x, y, _: (ONE, apply("neg", _to_score_dtype(apply("floor", apply("div", x, y))))),
    "minimum": _min_max_partials("lt"),
    "maximum": _min_max_partials("gt"),
}

_UNARY: dict[str, Callable[[Expr, Expr], Expr]] = {
    "neg": lambda x, _: _score_constant(-1.0),
    "abs": lambda x, _: _to_score_dtype(apply("sign", x)),
    "to_float": lambda x, _: ONE,
    "exp": lambda x, y: _to_score_dtype(y),
    "exp2": lambda x, y: apply("mul", _to_score_dtype(y), _score_constant(math.log(2.0))),
    "expm1": lambda x, y: apply("add", _to_score_dtype(y), ONE),
    "log": lambda x, _: apply("div", ONE, _to_score_dtype(x)),
    "log1p": lambda x, _: apply("div", ONE, apply("add", ONE, _to_score_dtype(x))),
    "log2": lambda x, _: apply("div", _score_constant(1.0 / math.log(2.0)), _to_score_dtype(x)),
    "sqrt": lambda x, y: apply("div", _score_constant(0.5), _to_score_dtype(y)),
    "tanh": lambda x, y: apply("sub", ONE, apply("pow", _to_score_dtype(y), constant(2))),
    "sigmoid": lambda x, y: apply("mul", _to_score_dtype(y), apply("sub", ONE, _to_score_dtype(y))),
    "sin": lambda x, _: apply("cos", _to_score_dtype(x)),
    "cos": lambda x, _: apply("neg", apply("sin", _to_score_dtype(x))),
}
