"""Reading a term: its derivatives in the score and in every captured number, as terms again."""

import math
from collections.abc import Callable

from regard.spec.term import Term, apply, constant, variable, walk

ONE, ZERO = constant(1.0), constant(0.0)


def derivatives(term: Term) -> dict[Term, Term]:
    """How the value of `term` changes with the score `s` and with each look-up of a float.

    The keys are `variable("s")` and the look-up nodes; one that is missing has derivative zero everywhere.
    The derivative in a captured tensor follows by adding each pair's number at the look-up's indices.

    >>> from regard.spec.text import text
    >>> s = variable("s")
    >>> text(derivatives(apply("mul", apply("tanh", s), constant(2.0)))[s])
    '2.0 * (1.0 - tanh(s) ** 2)'
    """
    adjoint: dict[Term, Term] = {term: ONE}
    for node in reversed(list(walk(term))):
        outer = adjoint.get(node)
        if outer is None:
            continue
        for arg, partial in _partials(node):
            if arg.kind != "float":
                continue
            share = _times(outer, partial) if not isinstance(partial, _Branch) else partial.of(outer)
            adjoint[arg] = share if arg not in adjoint else apply("add", adjoint[arg], share)
    leaves = (node for node in adjoint if node is variable("s") or node.op == "lookup")
    return {leaf: adjoint[leaf] for leaf in leaves}


class _Branch:
    """A factor that is a choice: what is not taken contributes nothing, even if it is not finite."""

    def __init__(self, condition: Term, taken: bool) -> None:
        self.condition, self.taken = condition, taken

    def of(self, outer: Term) -> Term:
        return apply("where", self.condition, *((outer, ZERO) if self.taken else (ZERO, outer)))


def _times(x: Term, y: Term) -> Term:
    return y if x is ONE else x if y is ONE else apply("mul", x, y)


def _square(x: Term) -> Term:
    return apply("pow", x, constant(2))


def _partials(node: Term) -> list[tuple[Term, Term | _Branch]]:
    if node.op in _BINARY:
        x, y = node.args
        return list(zip(node.args, _BINARY[node.op](x, y, node), strict=True))
    if node.op in _UNARY:
        return [(node.args[0], _UNARY[node.op](node.args[0], node))]
    if node.op == "where":
        condition, x, y = node.args
        return [(x, _Branch(condition, True)), (y, _Branch(condition, False))]
    return []  # comparisons, roundings and look-ups are flat


def _extreme_share(wins: str) -> Callable[[Term, Term, Term], tuple[Term, Term]]:
    # where both are equal each takes half, as in torch
    def shares(x: Term, y: Term, _: Term) -> tuple[Term, Term]:
        half = apply("where", apply("eq", x, y), constant(0.5), ZERO)
        return (
            apply("where", apply(wins, x, y), ONE, half),
            apply("where", apply(wins, y, x), ONE, half),
        )

    return shares


_BINARY: dict[str, Callable[[Term, Term, Term], tuple[Term, Term]]] = {
    "add": lambda x, y, _: (ONE, ONE),
    "sub": lambda x, y, _: (ONE, constant(-1.0)),
    "mul": lambda x, y, _: (y, x),
    "div": lambda x, y, z: (apply("div", ONE, y), apply("neg", apply("div", z, y))),
    "pow": lambda x, y, z: (
        apply("mul", y, apply("pow", x, apply("sub", y, constant(1)))),
        apply("mul", z, apply("log", x)),
    ),
    "mod": lambda x, y, _: (ONE, apply("neg", apply("floor", apply("div", x, y)))),
    "minimum": _extreme_share("lt"),
    "maximum": _extreme_share("gt"),
}

_UNARY: dict[str, Callable[[Term, Term], Term]] = {
    "neg": lambda x, _: constant(-1.0),
    "abs": lambda x, _: apply("sign", x),
    "to_float": lambda x, _: ONE,
    "exp": lambda x, y: y,
    "exp2": lambda x, y: apply("mul", y, constant(math.log(2.0))),
    "log": lambda x, _: apply("div", ONE, x),
    "log2": lambda x, _: apply("div", constant(1.0 / math.log(2.0)), x),
    "sqrt": lambda x, y: apply("div", constant(0.5), y),
    "tanh": lambda x, y: apply("sub", ONE, _square(y)),
    "sigmoid": lambda x, y: apply("mul", y, apply("sub", ONE, y)),
    "sin": lambda x, _: apply("cos", x),
    "cos": lambda x, _: apply("neg", apply("sin", x)),
}
