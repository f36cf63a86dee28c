"""Isolation of NaN and inf: they reach only the results that are computed from them.

A masked key gets gradient zero, but zero times NaN is NaN: without isolation, NaN would reach the gradient of every
parameter that the keys share.
"""

from collections.abc import Callable

import torch
from torch import Tensor


def all_finite(*tensors: Tensor) -> bool:
    """Return whether no tensor holds NaN or inf.

    The result may be False for finite values whose sum overflows. It is always False inside vmap and while a graph is
    traced, where values are not available.
    """
    if torch.compiler.is_compiling():
        return False
    try:
        return all(bool(torch.isfinite(t.sum(dtype=torch.promote_types(t.dtype, torch.float32)))) for t in tensors)
    except RuntimeError:
        return False


def nonfinite_rows(x: Tensor) -> Tensor:
    """Return which rows hold NaN or inf, as booleans with a last dimension of 1."""
    return ~torch.isfinite(x).all(-1, keepdim=True)


def isolate_nonfinite(function: Callable[..., tuple[Tensor, ...]], *rows: Tensor) -> tuple[Tensor, ...]:
    """Return function(*rows) such that nonfinite rows do not spoil the gradients of shared parameters.

    Result n of the function must correspond row by row to argument n. The values are those of the function. A nonfinite
    row passes gradients only to itself: the gradient is zero, or NaN if the incoming gradient is NaN.
    """
    if not torch.is_grad_enabled() or all_finite(*rows):
        return function(*rows)
    masks = [nonfinite_rows(x) for x in rows]
    finite_values = function(*(torch.where(m, 0.0, x) for m, x in zip(masks, rows, strict=True)))
    with torch.no_grad():
        values = function(*rows)
    # zero, but a NaN gradient stays NaN on its way back
    zeros = [(torch.nan_to_num(x, 0.0, 0.0, 0.0) * 0.0).sum(-1, keepdim=True) for x in rows]
    results = zip(masks, values, zeros, finite_values, strict=True)
    return tuple(torch.where(m, value.detach() + zero, finite) for m, value, zero, finite in results)
