"""Wraparound of integers of fewer than 64 bits.

Expressions compute in int64. Where torch computes in a narrower dtype, the result is wrapped by `to_uint8`, `to_int8`,
`to_int16` or `to_int32`.
"""

from typing import Any

import numpy as np
import torch

from regard.errors import TraceError
from regard.expr.ir import LOGIC, WRAP_RANGES, Expr, apply

WRAP_OPS: dict[torch.dtype, str] = {getattr(torch, op.removeprefix("to_")): op for op in WRAP_RANGES}

_NEVER_OVERFLOWS = frozenset({"mod", "minimum", "maximum", "where", "sign", "bitand", "bitor", "bitxor", "shift_right"})
_MODULAR = frozenset({"add", "sub", "mul"})  # wrapping the operands first does not change the result


def wrapping_dtype(op: str, args: tuple[Any, ...]) -> torch.dtype | None:
    """Return the dtype in which torch computes an operation if it is a narrow integer dtype, else None.

    Python numbers adapt to tensors. A number that torch would wrap around before the operation raises an error.
    """
    if op in LOGIC:
        return None
    values = args[1:] if op == "where" else args
    dtypes: list[torch.dtype] = [v.dtype for v in values if isinstance(getattr(v, "dtype", None), torch.dtype)]
    if not any(dtype in WRAP_OPS for dtype in dtypes) or any(isinstance(v, float) for v in values):
        return None
    result = dtypes[0]
    for dtype in dtypes[1:]:
        result = torch.promote_types(result, dtype)
    if result not in WRAP_OPS:
        return None
    if op not in _MODULAR:
        _check_constants_fit(op, values, result)
    return result


def _check_constants_fit(op: str, values: tuple[Any, ...], dtype: torch.dtype) -> None:
    min_value, max_value = WRAP_RANGES[WRAP_OPS[dtype]]
    for value in values:
        if isinstance(value, (int, np.integer)) and not min_value <= value <= max_value:
            raise TraceError(
                f"{op} of {dtype} and {value} would wrap {value} around, because it does not fit into {dtype}. Convert "
                "the captured tensor with .long()"
            )


def wrap_result(op: str, expr: Expr, dtype: torch.dtype) -> Expr:
    """Wrap the result of an operation that torch computes in a narrow dtype."""
    return expr if expr.kind != "int" or op in _NEVER_OVERFLOWS else apply(WRAP_OPS[dtype], expr)
