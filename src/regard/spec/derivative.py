"""Reading a term: its derivatives in the score and in every captured number, as terms again."""

import math
from collections.abc import Callable

from regard.spec.term import Term, apply, constant, variable, walk


def _exact(x: Term) -> Term:
    return apply("exact", x)


def _number(x: float) -> Term:
    return _exact(constant(x))


ONE, ZERO = _number(1.0), _number(0.0)


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
        half = apply("where", apply("eq", x, y), _number(0.5), ZERO)
        return (
            apply("where", apply(wins, x, y), ONE, half),
            apply("where", apply(wins, y, x), ONE, half),
        )

    return shares


_BINARY: dict[str, Callable[[Term, Term, Term], tuple[Term, Term]]] = {
    "add": lambda x, y, _: (ONE, ONE),
    "sub": lambda x, y, _: (ONE, _number(-1.0)),
    "mul": lambda x, y, _: (_exact(y), _exact(x)),
    "div": lambda x, y, z: (apply("div", ONE, _exact(y)), apply("neg", apply("div", _exact(z), _exact(y)))),
    "pow": lambda x, y, z: (
        apply("mul", _exact(y), apply("pow", _exact(x), _exact(apply("sub", y, constant(1))))),
        apply("where", apply("eq", x, constant(0)), ZERO, apply("mul", _exact(z), apply("log", _exact(x)))),
    ),
    "mod": lambda x, y, _: (ONE, apply("neg", _exact(apply("floor", apply("div", x, y))))),
    "minimum": _extreme_share("lt"),
    "maximum": _extreme_share("gt"),
}

_UNARY: dict[str, Callable[[Term, Term], Term]] = {
    "neg": lambda x, _: _number(-1.0),
    "abs": lambda x, _: _exact(apply("sign", x)),
    "to_float": lambda x, _: ONE,
    "exp": lambda x, y: _exact(y),
    "exp2": lambda x, y: apply("mul", _exact(y), _number(math.log(2.0))),
    "expm1": lambda x, y: apply("add", _exact(y), ONE),
    "log": lambda x, _: apply("div", ONE, _exact(x)),
    "log1p": lambda x, _: apply("div", ONE, apply("add", ONE, _exact(x))),
    "log2": lambda x, _: apply("div", _number(1.0 / math.log(2.0)), _exact(x)),
    "sqrt": lambda x, y: apply("div", _number(0.5), _exact(y)),
    "tanh": lambda x, y: apply("sub", ONE, apply("pow", _exact(y), constant(2))),
    "sigmoid": lambda x, y: apply("mul", _exact(y), apply("sub", ONE, _exact(y))),
    "sin": lambda x, _: apply("cos", _exact(x)),
    "cos": lambda x, _: apply("neg", apply("sin", _exact(x))),
}
