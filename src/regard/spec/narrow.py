"""Whole numbers of fewer than 64 bits: which operations torch computes in them, and where they wrap around.

A formula computes with 64 bits. Where torch has fewer, a formula wraps the result, as `to_uint8` and its like do.
"""

from typing import Any

import numpy as np
import torch

from regard.errors import TraceError
from regard.spec.term import LOGIC, WRAPS, Term, apply

NARROW: dict[torch.dtype, str] = {getattr(torch, op.removeprefix("to_")): op for op in WRAPS}

_STAYS_INSIDE = frozenset({"mod", "minimum", "maximum", "where", "sign", "bitand", "bitor", "bitxor", "shift_right"})
_MODULAR = frozenset({"add", "sub", "mul"})  # the result is the same whether a number wraps before or after


def narrow_dtype(op: str, args: tuple[Any, ...]) -> torch.dtype | None:
    """The dtype in which torch computes an operation, where that has whole numbers of fewer than 64 bits.

    Python numbers adapt to tensors, unless torch would wrap one around before it computes: that is refused.
    """
    if op in LOGIC:
        return None
    values = args[1:] if op == "where" else args
    dtypes: list[torch.dtype] = [v.dtype for v in values if isinstance(getattr(v, "dtype", None), torch.dtype)]
    if not any(dtype in NARROW for dtype in dtypes) or any(isinstance(v, float) for v in values):
        return None
    widest = dtypes[0]
    for dtype in dtypes[1:]:
        widest = torch.promote_types(widest, dtype)
    if widest not in NARROW:
        return None
    if op not in _MODULAR:
        _check_numbers(op, values, widest)
    return widest


def _check_numbers(op: str, values: tuple[Any, ...], dtype: torch.dtype) -> None:
    least, greatest = WRAPS[NARROW[dtype]]
    for value in values:
        if isinstance(value, (int, np.integer)) and not least <= value <= greatest:
            raise TraceError(
                f"{op} of {dtype} and {value}: the number does not fit, and torch would wrap it around. Convert the "
                "captured tensor with .long()"
            )


def wrapped(op: str, term: Term, dtype: torch.dtype) -> Term:
    """The result of an operation that torch computes in a narrow dtype."""
    return term if term.kind != "int" or op in _STAYS_INSIDE else apply(NARROW[dtype], term)
