"""Interval arithmetic: the bounds of an operation from the bounds of its arguments.

Integers are int64, booleans are 0 and 1, floats keep the precision they are computed in. If a value is unknown or may
be NaN, its bounds are infinite; a comparison with an infinite bound is undecided.
"""

from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from regard.expr.ir import WRAP_RANGES, Expr

Array = NDArray[Any]
Interval = tuple[Array, Array]

MAX_TRACKED_INT = 2**62  # larger integers count as unknown


def point_interval(value: Array) -> Interval:
    """Return the interval that holds exactly this value."""
    value = value.astype(np.int8) if value.dtype == np.bool_ else value
    return value, value


def op_interval(node: Expr, args: list[Interval]) -> Interval:
    """Return the bounds of `node`, given the bounds of its arguments."""
    values = [n for n, a in enumerate(node.args) if not (node.op == "where" and n == 0)]
    if node.kind == "float" or any(node.args[n].kind == "float" for n in values):
        args = _promote_floats(args, values)
    with np.errstate(all="ignore"):
        if node.op in ("mul", "sub") and node.args[0] is node.args[1]:
            low, high = _square(args[0]) if node.op == "mul" else _from_corners(np.subtract)(args[0], args[0])
        elif node.op in _INTERVAL_OPS:
            low, high = _INTERVAL_OPS[node.op](*args)
        else:
            low, high = np.asarray(-np.inf), np.asarray(np.inf)
        if node.kind == "bool":
            return low, high
        if node.op != "where":
            unknown = reduce(np.logical_or, (_is_unknown(args[n]) for n in values))
            low, high = np.where(unknown, -np.inf, low), np.where(unknown, np.inf, high)
        return int_interval(low, high) if node.kind == "int" else _replace_nan_bounds(low, high)


def _promote_floats(args: list[Interval], value_args: list[int]) -> list[Interval]:
    """Promote the arguments as torch does: float64 if a tensor has it, else the default dtype. Scalars adapt."""
    is_double = any(x.dtype == np.float64 and x.ndim for n in value_args for x in args[n])
    is_double = is_double or torch.get_default_dtype() == torch.float64
    dtype = np.float64 if is_double else np.float32
    return [(a[0].astype(dtype), a[1].astype(dtype)) if n in value_args else a for n, a in enumerate(args)]


def _is_unknown(interval: Interval) -> Array:
    """Return where the value is unknown: it may be NaN, which every operation propagates."""
    if interval[0].dtype.kind != "f":
        return np.asarray(False)
    return np.isneginf(interval[0]) & np.isposinf(interval[1])


def int_interval(low: Array, high: Array) -> Interval:
    """Return the bounds as int64; values that may overflow become unknown."""
    if low.dtype.kind == "f" or high.dtype.kind == "f":
        finite = np.isfinite(low) & np.isfinite(high)
        low, high = np.where(finite, low, -MAX_TRACKED_INT), np.where(finite, high, MAX_TRACKED_INT)
    low, high = low.astype(np.int64), high.astype(np.int64)
    unknown = (low < -MAX_TRACKED_INT) | (high > MAX_TRACKED_INT) | (low > high)
    return np.where(unknown, -MAX_TRACKED_INT, low), np.where(unknown, MAX_TRACKED_INT, high)


def _replace_nan_bounds(low: Array, high: Array) -> Interval:
    """Replace bounds that are NaN by infinities."""
    return np.where(np.isnan(low), -np.inf, low), np.where(np.isnan(high), np.inf, high)


def _from_corners(function: Callable[[Array, Array], Array]) -> Callable[[Interval, Interval], Interval]:
    def bounded(x: Interval, y: Interval) -> Interval:
        values = [function(a, b) for a in x for b in y]
        unknown = reduce(np.logical_or, (np.isnan(v) for v in values)) if values[0].dtype.kind == "f" else False
        low, high = reduce(np.minimum, values), reduce(np.maximum, values)
        if np.any(unknown):
            low, high = np.where(unknown, -np.inf, low), np.where(unknown, np.inf, high)
        return low, high

    return bounded


def _product(x: Interval, y: Interval) -> Interval:
    low, high = _from_corners(np.multiply)(x, y)
    if low.dtype.kind == "i":  # overflow shows in the magnitudes of the factors, not in the wrapped product
        size = np.maximum(*np.abs([np.float64(v) for v in x])) * np.maximum(*np.abs([np.float64(v) for v in y]))
        return np.where(size < MAX_TRACKED_INT, low, -MAX_TRACKED_INT - 1), np.where(
            size < MAX_TRACKED_INT, high, MAX_TRACKED_INT + 1
        )
    return low, high


def _square(x: Interval) -> Interval:
    low, high = _magnitude(x)
    return _product((low, low), (low, low))[0], _product((high, high), (high, high))[1]


def _division(function: Callable[[Array, Array], Array]) -> Callable[[Interval, Interval], Interval]:
    def bounded(x: Interval, y: Interval) -> Interval:
        has_zero = (y[0] <= 0) & (y[1] >= 0)
        nonzero = (np.where(has_zero, 1, y[0]).astype(y[0].dtype), np.where(has_zero, 1, y[1]).astype(y[1].dtype))
        low, high = _from_corners(function)(x, nonzero)
        if not np.any(has_zero):
            return low, high
        return np.where(has_zero, -np.inf, low), np.where(has_zero, np.inf, high)

    return bounded


def _remainder(x: Interval, y: Interval) -> Interval:
    (low, high), (min_divisor, max_divisor) = x, y
    is_integer = low.dtype.kind == "i"
    is_constant = (min_divisor == max_divisor) & (min_divisor > 0)
    divisor = np.where(is_constant, min_divisor, 1)
    same_period = is_constant & (low // divisor == high // divisor) & (is_integer | (low == high))
    negative = np.where(min_divisor <= 0, np.minimum(min_divisor + 1 if is_integer else min_divisor, 0), 0)
    any_low = np.where(min_divisor > 0, 0, negative)
    any_high = np.where(max_divisor > 0, max_divisor - 1 if is_integer else max_divisor, 0)
    # 1 % 0 and inf % 1 are NaN
    unknown = ((min_divisor <= 0) & (max_divisor >= 0)) | ~np.isfinite(low) | ~np.isfinite(high)
    smallest = np.where(unknown, 1, np.minimum(np.abs(min_divisor), np.abs(max_divisor)))
    unknown = unknown | ~np.isfinite(low / smallest) | ~np.isfinite(high / smallest)  # the quotient may overflow
    low_bound = np.where(same_period, low % divisor, any_low)
    high_bound = np.where(same_period, high % divisor, any_high)
    return np.where(unknown, -np.inf, low_bound), np.where(unknown, np.inf, high_bound)


def _magnitude(x: Interval) -> Interval:
    low, high = x
    sizes = np.abs(low), np.abs(high)
    has_zero = (low <= 0) & (high >= 0)
    return np.where(has_zero, 0, np.minimum(*sizes)).astype(sizes[0].dtype), np.maximum(*sizes)


def _less(strict: bool) -> Callable[[Interval, Interval], Interval]:
    def bounded(x: Interval, y: Interval) -> Interval:
        always = x[1] < y[0] if strict else x[1] <= y[0]
        never = x[0] >= y[1] if strict else x[0] > y[1]
        # a value with infinite bounds may be NaN, and every comparison with NaN is false
        finite = np.isfinite(x[0]) & np.isfinite(x[1]) & np.isfinite(y[0]) & np.isfinite(y[1])
        return (always & finite).astype(np.int8), (~(never & finite)).astype(np.int8)

    return bounded


def _equal(x: Interval, y: Interval) -> Interval:
    always = (x[0] == x[1]) & (y[0] == y[1]) & (x[0] == y[0])  # a point at -inf is not NaN: -inf equals -inf
    never = (x[1] < y[0]) | (x[0] > y[1])
    return always.astype(np.int8), (~never).astype(np.int8)


def _negation(comparison: Callable[[Interval, Interval], Interval]) -> Callable[[Interval, Interval], Interval]:
    def bounded(x: Interval, y: Interval) -> Interval:
        low, high = comparison(x, y)
        return 1 - high, 1 - low

    return bounded


def _xor(x: Interval, y: Interval) -> Interval:
    decided = (x[0] == x[1]) & (y[0] == y[1])
    value = x[0] ^ y[0]
    return np.where(decided, value, 0), np.where(decided, value, 1)


def _where(condition: Interval, x: Interval, y: Interval) -> Interval:
    always, sometimes = condition[0] == 1, condition[1] == 1
    low = np.where(always, x[0], np.where(sometimes, np.minimum(x[0], y[0]), y[0]))
    high = np.where(always, x[1], np.where(sometimes, np.maximum(x[1], y[1]), y[1]))
    return low, high


def _increasing(function: Callable[[Array], Array], domain_min: float = -np.inf) -> Callable[[Interval], Interval]:
    """Bounds of an increasing function, widened by a few ulps because libraries round it differently."""

    def bounded(x: Interval) -> Interval:
        low, high = function(x[0]), function(x[1])
        out_of_domain = x[0] < domain_min
        low, high = (
            np.where(out_of_domain | np.isnan(low), -np.inf, low),
            np.where(out_of_domain | np.isnan(high), np.inf, high),
        )
        dtype = x[0].dtype
        slack, tiny = 8 * np.finfo(dtype).eps, np.finfo(dtype).tiny
        low, high = low - np.abs(low) * slack - tiny, high + np.abs(high) * slack + tiny
        return low.astype(dtype), high.astype(dtype)

    return bounded


def _wraparound(min_value: int, max_value: int) -> Callable[[Interval], Interval]:
    """Bounds of a cast to a narrow integer dtype: unchanged if the value fits, else the full range."""

    def bounded(x: Interval) -> Interval:
        fits = (x[0] >= min_value) & (x[1] <= max_value)
        return np.where(fits, x[0], min_value), np.where(fits, x[1], max_value)

    return bounded


def _monotone(function: Callable[[Array], Array]) -> Callable[[Interval], Interval]:
    return lambda x: (function(x[0]), function(x[1]))


def _sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x.astype(np.float64))))


_INTERVAL_OPS: dict[str, Callable[..., Interval]] = {
    "add": lambda x, y: (x[0] + y[0], x[1] + y[1]),
    "sub": lambda x, y: (x[0] - y[1], x[1] - y[0]),
    "mul": _product,
    "div": _division(np.true_divide),
    "floordiv": _division(np.floor_divide),
    "mod": _remainder,
    "neg": lambda x: (-x[1], -x[0]),
    "abs": _magnitude,
    "sign": _monotone(np.sign),
    "minimum": lambda x, y: (np.minimum(x[0], y[0]), np.minimum(x[1], y[1])),
    "maximum": lambda x, y: (np.maximum(x[0], y[0]), np.maximum(x[1], y[1])),
    "and": lambda x, y: (x[0] & y[0], x[1] & y[1]),
    "or": lambda x, y: (x[0] | y[0], x[1] | y[1]),
    "xor": _xor,
    "not": lambda x: (1 - x[1], 1 - x[0]),
    "lt": _less(True),
    "le": _less(False),
    "gt": lambda x, y: _less(True)(y, x),
    "ge": lambda x, y: _less(False)(y, x),
    "eq": _equal,
    "ne": _negation(_equal),
    "where": _where,
    "to_float": lambda x: x,
    "exact": lambda x: x,
    "to_int": _monotone(np.trunc),
    **{op: _wraparound(*limits) for op, limits in WRAP_RANGES.items()},
    "floor": _monotone(np.floor),
    "ceil": _monotone(np.ceil),
    "round": _monotone(np.round),
    "trunc": _monotone(np.trunc),
    "exp": _increasing(np.exp),
    "exp2": _increasing(np.exp2),
    "expm1": _increasing(np.expm1),
    "log1p": _increasing(np.log1p, domain_min=-1.0),
    "log": _increasing(np.log, domain_min=0.0),
    "log2": _increasing(np.log2, domain_min=0.0),
    "sqrt": _increasing(np.sqrt, domain_min=0.0),
    "tanh": _increasing(np.tanh),
    "sigmoid": _increasing(_sigmoid),
}
