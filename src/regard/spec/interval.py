"""Interval arithmetic: the bounds of one operation from the bounds of its arguments.

Whole numbers are int64, conditions are 0 and 1, floats keep the precision they are computed in. Where nothing is
known, or a NaN is possible, the bounds are infinite; a comparison with an infinite bound decides nothing.
"""

from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from regard.spec.term import WRAPS, Term

Array = NDArray[Any]
Interval = tuple[Array, Array]

FAR = 2**62  # whole numbers beyond this are not followed


def exactly(value: Array) -> Interval:
    value = value.astype(np.int8) if value.dtype == np.bool_ else value
    return value, value


def combine(node: Term, args: list[Interval]) -> Interval:
    """Bounds of `node` from those of its arguments."""
    values = [n for n, a in enumerate(node.args) if not (node.op == "where" and n == 0)]
    if node.kind == "float" or any(node.args[n].kind == "float" for n in values):
        args = _alike(args, values)
    with np.errstate(all="ignore"):
        if node.op in ("mul", "sub") and node.args[0] is node.args[1]:
            low, high = _square(args[0]) if node.op == "mul" else _corners(np.subtract)(args[0], args[0])
        elif node.op in _RULES:
            low, high = _RULES[node.op](*args)
        else:
            low, high = np.asarray(-np.inf), np.asarray(np.inf)
        if node.kind == "bool":
            return low, high
        if node.op != "where":
            unknown = reduce(np.logical_or, (_is_unknown(args[n]) for n in values))
            low, high = np.where(unknown, -np.inf, low), np.where(unknown, np.inf, high)
        return whole(low, high) if node.kind == "int" else _sound(low, high)


def _alike(args: list[Interval], values: list[int]) -> list[Interval]:
    """Numbers meet as in torch: float64 if a tensor has it, else torch's default; constants and positions adapt."""
    fine = any(x.dtype == np.float64 and x.ndim for n in values for x in args[n])
    fine = fine or torch.get_default_dtype() == torch.float64
    exact = np.float64 if fine else np.float32
    return [(a[0].astype(exact), a[1].astype(exact)) if n in values else a for n, a in enumerate(args)]


def _is_unknown(interval: Interval) -> Array:
    """Nothing is known, so it might be a NaN, and stays one through every operation."""
    if interval[0].dtype.kind != "f":
        return np.asarray(False)
    return np.isneginf(interval[0]) & np.isposinf(interval[1])


def whole(low: Array, high: Array) -> Interval:
    """What may have overflowed is unknown."""
    if low.dtype.kind == "f" or high.dtype.kind == "f":
        known = np.isfinite(low) & np.isfinite(high)
        low, high = np.where(known, low, -FAR), np.where(known, high, FAR)
    low, high = low.astype(np.int64), high.astype(np.int64)
    lost = (low < -FAR) | (high > FAR) | (low > high)
    return np.where(lost, -FAR, low), np.where(lost, FAR, high)


def _sound(low: Array, high: Array) -> Interval:
    """A bound that came out as NaN is no bound."""
    return np.where(np.isnan(low), -np.inf, low), np.where(np.isnan(high), np.inf, high)


def _corners(function: Callable[[Array, Array], Array]) -> Callable[[Interval, Interval], Interval]:
    def bounded(x: Interval, y: Interval) -> Interval:
        values = [function(a, b) for a in x for b in y]
        unknown = reduce(np.logical_or, (np.isnan(v) for v in values)) if values[0].dtype.kind == "f" else False
        low, high = reduce(np.minimum, values), reduce(np.maximum, values)
        if np.any(unknown):
            low, high = np.where(unknown, -np.inf, low), np.where(unknown, np.inf, high)
        return low, high

    return bounded


def _product(x: Interval, y: Interval) -> Interval:
    low, high = _corners(np.multiply)(x, y)
    if low.dtype.kind == "i":  # a product that wraps around looks innocent; the size of the factors tells
        size = np.maximum(*np.abs([np.float64(v) for v in x])) * np.maximum(*np.abs([np.float64(v) for v in y]))
        return np.where(size < FAR, low, -FAR - 1), np.where(size < FAR, high, FAR + 1)
    return low, high


def _square(x: Interval) -> Interval:
    least, most = _magnitude(x)
    return _product((least, least), (least, least))[0], _product((most, most), (most, most))[1]


def _divided(function: Callable[[Array, Array], Array]) -> Callable[[Interval, Interval], Interval]:
    def bounded(x: Interval, y: Interval) -> Interval:
        crosses = (y[0] <= 0) & (y[1] >= 0)
        safe = (np.where(crosses, 1, y[0]).astype(y[0].dtype), np.where(crosses, 1, y[1]).astype(y[1].dtype))
        low, high = _corners(function)(x, safe)
        if not np.any(crosses):
            return low, high
        return np.where(crosses, -np.inf, low), np.where(crosses, np.inf, high)

    return bounded


def _remainder(x: Interval, y: Interval) -> Interval:
    (low, high), (least, most) = x, y
    whole = low.dtype.kind == "i"
    divisor = np.where((least == most) & (least > 0), least, 1)
    together = (least == most) & (least > 0) & (low // divisor == high // divisor) & (whole | (low == high))
    beyond = most - 1 if whole else most
    negative = np.where(least <= 0, np.minimum(least + 1 if whole else least, 0), 0)
    free_low = np.where(least > 0, 0, negative)
    free_high = np.where(most > 0, beyond, 0)
    unknown = ((least <= 0) & (most >= 0)) | ~np.isfinite(low) | ~np.isfinite(high)  # 1 % 0 and inf % 1 are NaN
    smallest = np.where(unknown, 1, np.minimum(np.abs(least), np.abs(most)))
    unknown = unknown | ~np.isfinite(low / smallest) | ~np.isfinite(high / smallest)  # a quotient that overflows
    low_bound = np.where(together, low % divisor, free_low)
    high_bound = np.where(together, high % divisor, free_high)
    return np.where(unknown, -np.inf, low_bound), np.where(unknown, np.inf, high_bound)


def _magnitude(x: Interval) -> Interval:
    low, high = x
    sizes = np.abs(low), np.abs(high)
    crosses = (low <= 0) & (high >= 0)
    return np.where(crosses, 0, np.minimum(*sizes)).astype(sizes[0].dtype), np.maximum(*sizes)


def _less(strict: bool) -> Callable[[Interval, Interval], Interval]:
    def bounded(x: Interval, y: Interval) -> Interval:
        surely = x[1] < y[0] if strict else x[1] <= y[0]
        never = x[0] >= y[1] if strict else x[0] > y[1]
        # infinite bounds may hide a NaN, with which no comparison holds
        known = np.isfinite(x[0]) & np.isfinite(x[1]) & np.isfinite(y[0]) & np.isfinite(y[1])
        return (surely & known).astype(np.int8), (~(never & known)).astype(np.int8)

    return bounded


def _equal(x: Interval, y: Interval) -> Interval:
    same = (x[0] == x[1]) & (y[0] == y[1]) & (x[0] == y[0])  # exactly infinite is no NaN: -inf equals -inf
    apart = (x[1] < y[0]) | (x[0] > y[1])
    return same.astype(np.int8), (~apart).astype(np.int8)


def _opposite(rule: Callable[[Interval, Interval], Interval]) -> Callable[[Interval, Interval], Interval]:
    def bounded(x: Interval, y: Interval) -> Interval:
        low, high = rule(x, y)
        return 1 - high, 1 - low

    return bounded


def _exclusive(x: Interval, y: Interval) -> Interval:
    known = (x[0] == x[1]) & (y[0] == y[1])
    value = x[0] ^ y[0]
    return np.where(known, value, 0), np.where(known, value, 1)


def _chosen(condition: Interval, x: Interval, y: Interval) -> Interval:
    surely, possibly = condition[0] == 1, condition[1] == 1
    low = np.where(surely, x[0], np.where(possibly, np.minimum(x[0], y[0]), y[0]))
    high = np.where(surely, x[1], np.where(possibly, np.maximum(x[1], y[1]), y[1]))
    return low, high


def _rising(function: Callable[[Array], Array], least: float = -np.inf) -> Callable[[Interval], Interval]:
    """A growing function. Libraries round it differently, so the bounds give way by a few units."""

    def bounded(x: Interval) -> Interval:
        low, high = function(x[0]), function(x[1])
        outside = x[0] < least
        low, high = (
            np.where(outside | np.isnan(low), -np.inf, low),
            np.where(outside | np.isnan(high), np.inf, high),
        )
        exact = x[0].dtype
        slack, tiny = 8 * np.finfo(exact).eps, np.finfo(exact).tiny
        low, high = low - np.abs(low) * slack - tiny, high + np.abs(high) * slack + tiny
        return low.astype(exact), high.astype(exact)

    return bounded


def _wrapping(least: int, greatest: int) -> Callable[[Interval], Interval]:
    """A whole number in fewer bits: itself where it surely fits, else anything."""

    def bounded(x: Interval) -> Interval:
        fits = (x[0] >= least) & (x[1] <= greatest)
        return np.where(fits, x[0], least), np.where(fits, x[1], greatest)

    return bounded


def _stepping(function: Callable[[Array], Array]) -> Callable[[Interval], Interval]:
    return lambda x: (function(x[0]), function(x[1]))


def _sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x.astype(np.float64))))


_RULES: dict[str, Callable[..., Interval]] = {
    "add": lambda x, y: (x[0] + y[0], x[1] + y[1]),
    "sub": lambda x, y: (x[0] - y[1], x[1] - y[0]),
    "mul": _product,
    "div": _divided(np.true_divide),
    "floordiv": _divided(np.floor_divide),
    "mod": _remainder,
    "neg": lambda x: (-x[1], -x[0]),
    "abs": _magnitude,
    "sign": _stepping(np.sign),
    "minimum": lambda x, y: (np.minimum(x[0], y[0]), np.minimum(x[1], y[1])),
    "maximum": lambda x, y: (np.maximum(x[0], y[0]), np.maximum(x[1], y[1])),
    "and": lambda x, y: (x[0] & y[0], x[1] & y[1]),
    "or": lambda x, y: (x[0] | y[0], x[1] | y[1]),
    "xor": _exclusive,
    "not": lambda x: (1 - x[1], 1 - x[0]),
    "lt": _less(True),
    "le": _less(False),
    "gt": lambda x, y: _less(True)(y, x),
    "ge": lambda x, y: _less(False)(y, x),
    "eq": _equal,
    "ne": _opposite(_equal),
    "where": _chosen,
    "to_float": lambda x: x,
    "exact": lambda x: x,
    "to_int": _stepping(np.trunc),
    **{op: _wrapping(*limits) for op, limits in WRAPS.items()},
    "floor": _stepping(np.floor),
    "ceil": _stepping(np.ceil),
    "round": _stepping(np.round),
    "trunc": _stepping(np.trunc),
    "exp": _rising(np.exp),
    "exp2": _rising(np.exp2),
    "expm1": _rising(np.expm1),
    "log1p": _rising(np.log1p, least=-1.0),
    "log": _rising(np.log, least=0.0),
    "log2": _rising(np.log2, least=0.0),
    "sqrt": _rising(np.sqrt, least=0.0),
    "tanh": _rising(np.tanh),
    "sigmoid": _rising(_sigmoid),
}
