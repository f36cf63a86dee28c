"""Pairs that a score modifier hides at every score, because it adds -inf.

A float mask hides pairs with -inf. Adding it is not enough: if the score of a hidden pair is NaN or inf,
the sum is NaN.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from regard.cache import memoize
from regard.expr.ir import FALSE, TRUE, Expr, apply, constant, postorder, walk

MAX_FULL_SCAN_NUMEL = 2**16  # scanning a tensor of this size takes negligible time


def effective_mask(mask: Expr, score_mod: Expr | None, tensors: Sequence[Tensor], sample_only: bool = False) -> Expr:
    """Return the mask without the pairs that the score modifier hides by adding -inf.

    With `sample_only`, only a sample of a large tensor is scanned. Pairs that the sample misses are still hidden if
    their scores are finite, since a finite score plus -inf is -inf.
    """
    hidden = hidden_condition(score_mod, tensors, sample_only)
    return mask if hidden is FALSE else apply("and", mask, apply("not", hidden))


def hidden_condition(score_mod: Expr | None, tensors: Sequence[Tensor], sample_only: bool = False) -> Expr:
    """Return the condition under which the score modifier is -inf at every score; FALSE if it has no infinities."""
    if score_mod is None:
        return FALSE
    infinite = frozenset(
        n
        for n in score_mod.captured_slots
        if _contains_infinity(_strided_sample(tensors[n]) if sample_only else tensors[n])
    )
    return _hidden_where(score_mod, infinite) if infinite or _has_infinite_constant(score_mod) else FALSE


def _hidden_where(score_mod: Expr, infinite_slots: frozenset[int]) -> Expr:
    hidden: dict[Expr, Expr] = {}
    for node in postorder((score_mod,), lambda n: n.args if "s" in n.free_variables else ()):
        if "s" not in node.free_variables:
            hidden[node] = _equals_infinity(node, -math.inf, infinite_slots)
        else:
            hidden[node] = _node_hidden_where(node, hidden, infinite_slots)
    return hidden[score_mod]


def _node_hidden_where(node: Expr, hidden: dict[Expr, Expr], infinite_slots: frozenset[int]) -> Expr:
    """Return the condition under which a node that depends on the score is -inf, given those of its arguments."""
    if node.op == "add":
        return apply("or", hidden[node.args[0]], hidden[node.args[1]])
    if node.op == "sub":
        left, right = node.args
        right_is_inf = _equals_infinity(right, math.inf, infinite_slots) if "s" not in right.free_variables else FALSE
        return apply("or", hidden[left], right_is_inf)
    if node.op in ("mul", "div"):
        left, right = node.args
        if "s" not in right.free_variables:
            return apply("and", hidden[left], _positive_condition(right))
        if node.op == "mul" and "s" not in left.free_variables:
            return apply("and", hidden[right], _positive_condition(left))
    if node.op == "where" and "s" not in node.args[0].free_variables:
        condition, x, y = node.args
        return apply("or", apply("and", condition, hidden[x]), apply("and", apply("not", condition), hidden[y]))
    return FALSE


def _positive_condition(node: Expr) -> Expr:
    if node.op == "constant":
        return TRUE if isinstance(node.value, (int, float)) and node.value > 0 else FALSE
    return apply("gt", node, constant(0.0))


def _equals_infinity(node: Expr, infinity: float, infinite_slots: frozenset[int]) -> Expr:
    if node.op == "constant":
        return TRUE if node.value == infinity else FALSE
    if not (_has_infinite_constant(node) or node.captured_slots & infinite_slots):
        return FALSE
    return apply("eq", node, constant(infinity))


@memoize(512)
def _has_infinite_constant(expr: Expr) -> bool:
    return any(isinstance(node.value, float) and math.isinf(node.value) for node in walk(expr))


def _strided_sample(tensor: Tensor) -> Tensor:
    """Return a strided sample of a large tensor over its last two dimensions; a small tensor is returned whole."""
    while tensor.numel() > MAX_FULL_SCAN_NUMEL and max(tensor.shape[-2:]) > 1:
        tensor = tensor[..., ::7] if tensor.dim() < 2 else tensor[..., ::7, ::7]
    return tensor


def _contains_infinity(tensor: Tensor) -> bool:
    tensor = tensor.detach()
    if not tensor.is_floating_point() or not tensor.numel():
        return False
    low, high = tensor.aminmax()  # much faster than isinf; a NaN makes both NaN
    return bool(torch.isinf(tensor).any()) if low.isnan() else bool(low.isinf() | high.isinf())
