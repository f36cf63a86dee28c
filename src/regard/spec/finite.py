"""Keeping what is not finite where it belongs: NaN and inf reach only what is computed from them.

A hidden key gets gradient zero, but zero times NaN is NaN: a weight that is shared by all keys would catch it.
"""

from collections.abc import Callable

import torch
from torch import Tensor


def all_finite(*tensors: Tensor) -> bool:
    """Whether no tensor holds NaN or inf. May say no of finite numbers whose sum overflows, and says no inside vmap,
    and while a graph is made, where nothing can be known: that only costs care."""
    if torch.compiler.is_compiling():
        return False
    try:
        return all(bool(torch.isfinite(t.sum(dtype=torch.promote_types(t.dtype, torch.float32)))) for t in tensors)
    except RuntimeError:
        return False


def wild_rows(x: Tensor) -> Tensor:
    """Which rows hold NaN or inf: booleans with a last dimension of 1."""
    return ~torch.isfinite(x).all(-1, keepdim=True)


def shielded(function: Callable[..., tuple[Tensor, ...]], *rows: Tensor) -> tuple[Tensor, ...]:
    """function(*rows), where result number n has row by row what row tensor number n became.

    The value is always that of the function. But a row that is not finite passes a gradient only to itself, and only
    one that is not zero; nothing else the function used can be reached through it.
    """
    if not torch.is_grad_enabled() or all_finite(*rows):
        return function(*rows)
    wild = [wild_rows(x) for x in rows]
    tame = function(*(torch.where(w, 0.0, x) for w, x in zip(wild, rows, strict=True)))
    with torch.no_grad():
        raw = function(*rows)
    # zero, but a NaN that comes back through it stays one
    marks = [(torch.nan_to_num(x, 0.0, 0.0, 0.0) * 0.0).sum(-1, keepdim=True) for x in rows]
    found = zip(wild, raw, marks, tame, strict=True)
    return tuple(torch.where(w, r.detach() + m, t) for w, r, m, t in found)
