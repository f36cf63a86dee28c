"""Reading a score rule: which pairs it hides whatever the score, because it adds -inf.

A float mask hides with -inf. The sum alone would not do: a hidden key that holds NaN or inf gives NaN, not -inf.
"""

import math
from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from regard.spec.term import FALSE, TRUE, Term, apply, constant, postorder, walk

GLANCE = 2**16  # numbers: tensors no larger are looked through in no time


def visible(mask: Term, rule: Term | None, tensors: Sequence[Tensor], glance: bool = False) -> Term:
    """The condition under which a pair counts: the mask, less what the rule hides by adding -inf.

    With `glance`, a large tensor is only glanced at. What it hides unnoticed is still hidden where scores are finite,
    since a finite score plus -inf is -inf.
    """
    hidden = hiding(rule, tensors, glance)
    return mask if hidden is FALSE else apply("and", mask, apply("not", hidden))


def hiding(rule: Term | None, tensors: Sequence[Tensor], glance: bool = False) -> Term:
    """The condition under which the rule is -inf by position alone; FALSE where nothing in it is infinite."""
    if rule is None:
        return FALSE
    infinite = frozenset(n for n in rule.reads if _holds_infinity(_glimpse(tensors[n]) if glance else tensors[n]))
    return _hides(rule, infinite) if infinite or _names_infinity(rule) else FALSE


def _hides(rule: Term, infinite: frozenset[int]) -> Term:
    hidden: dict[Term, Term] = {}
    for node in postorder((rule,), lambda n: n.args if "s" in n.depends else ()):
        if "s" not in node.depends:
            hidden[node] = _equals(node, -math.inf, infinite)
        else:
            hidden[node] = _hidden_by(node, hidden, infinite)
    return hidden[rule]


def _hidden_by(node: Term, hidden: dict[Term, Term], infinite: frozenset[int]) -> Term:
    """When a part that depends on the score is -inf, given when its arguments are."""
    if node.op == "add":
        return apply("or", hidden[node.args[0]], hidden[node.args[1]])
    if node.op == "sub":
        left, right = node.args
        subtracts = _equals(right, math.inf, infinite) if "s" not in right.depends else FALSE
        return apply("or", hidden[left], subtracts)
    if node.op in ("mul", "div"):
        left, right = node.args
        if "s" not in right.depends:
            return apply("and", hidden[left], _is_positive(right))
        if node.op == "mul" and "s" not in left.depends:
            return apply("and", hidden[right], _is_positive(left))
    if node.op == "where" and "s" not in node.args[0].depends:
        condition, x, y = node.args
        otherwise = apply("and", apply("not", condition), hidden[y])
        return apply("or", apply("and", condition, hidden[x]), otherwise)
    return FALSE


def _is_positive(node: Term) -> Term:
    if node.op == "constant":
        return TRUE if isinstance(node.value, (int, float)) and node.value > 0 else FALSE
    return apply("gt", node, constant(0.0))


def _equals(node: Term, level: float, infinite: frozenset[int]) -> Term:
    if node.op == "constant":
        return TRUE if node.value == level else FALSE
    if not (_names_infinity(node) or node.reads & infinite):
        return FALSE
    return apply("eq", node, constant(level))


@lru_cache(maxsize=512)
def _names_infinity(term: Term) -> bool:
    return any(isinstance(node.value, float) and math.isinf(node.value) for node in walk(term))


def _glimpse(captured: Tensor) -> Tensor:
    """Some numbers of a large tensor, from all over its last two dimensions."""
    while captured.numel() > GLANCE and max(captured.shape[-2:]) > 1:
        captured = captured[..., ::7] if captured.dim() < 2 else captured[..., ::7, ::7]
    return captured


def _holds_infinity(captured: Tensor) -> bool:
    captured = captured.detach()
    if not captured.is_floating_point() or not captured.numel():
        return False
    least, most = captured.aminmax()  # much faster than looking for each; a NaN makes both NaN
    return bool(torch.isinf(captured).any()) if least.isnan() else bool(least.isinf() | most.isinf())
