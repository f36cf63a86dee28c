"""Reading a score rule: which pairs it hides whatever the score, because it adds -inf.

A float mask hides with -inf. The sum alone would not do: a hidden key that holds NaN or inf gives NaN, not -inf.
"""

import math
from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from regard.spec.term import FALSE, TRUE, Term, apply, constant, walk


def visible(mask: Term, rule: Term | None, tensors: Sequence[Tensor]) -> Term:
    """The condition under which a pair counts: the mask, less what the rule hides by adding -inf."""
    hidden = hiding(rule, tensors)
    return mask if hidden is FALSE else apply("and", mask, apply("not", hidden))


def hiding(rule: Term | None, tensors: Sequence[Tensor]) -> Term:
    """The condition under which the rule is -inf by position alone; FALSE where nothing in it is infinite."""
    if rule is None or not (_names_infinity(rule) or any(_holds_infinity(tensors[n]) for n in rule.reads)):
        return FALSE
    return _hides(rule, tensors)


def _hides(node: Term, tensors: Sequence[Tensor]) -> Term:
    if "s" not in node.depends:
        return _equals(node, -math.inf, tensors)
    if node.op == "add":
        return apply("or", _hides(node.args[0], tensors), _hides(node.args[1], tensors))
    if node.op == "sub":
        left, right = node.args
        taken = _equals(right, math.inf, tensors) if "s" not in right.depends else FALSE
        return apply("or", _hides(left, tensors), taken)
    if node.op == "where" and "s" not in node.args[0].depends:
        condition, x, y = node.args
        return apply(
            "or",
            apply("and", condition, _hides(x, tensors)),
            apply("and", apply("not", condition), _hides(y, tensors)),
        )
    return FALSE


def _equals(node: Term, level: float, tensors: Sequence[Tensor]) -> Term:
    if node.op == "constant":
        return TRUE if node.value == level else FALSE
    if not (_names_infinity(node) or any(_holds_infinity(tensors[n]) for n in node.reads)):
        return FALSE
    return apply("eq", node, constant(level))


@lru_cache(maxsize=512)
def _names_infinity(term: Term) -> bool:
    return any(isinstance(node.value, float) and math.isinf(node.value) for node in walk(term))


def _holds_infinity(captured: Tensor) -> bool:
    captured = captured.detach()
    if not captured.is_floating_point() or not captured.numel():
        return False
    least, most = captured.aminmax()  # much faster than looking for each; a NaN makes both NaN
    return bool(torch.isinf(captured).any()) if least.isnan() else bool(least.isinf() | most.isinf())
