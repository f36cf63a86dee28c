"""Axial attention: over the positions of a grid, along one axis at a time.

    o[x, y] = sum over y' of softmax(q[x, y]·k[x, y'] / √d) v[x, y']      along the last of two axes

A grid of n positions with d axes of the same length takes n^(1 + 1/d) pairs instead of n², and d passes reach every
position from every other (Ho and others, 2019, who stack passes with projections of their own for each).
"""

from typing import Any

from torch import Tensor

from regard.argument_types import check_types
from regard.attention import attention
from regard.errors import SpecError


@check_types
def axial_attention(
    q: Tensor, k: Tensor, v: Tensor, *, axis: int, dims: int = 2, score: Any = None, mask: Any = None
) -> Tensor:
    """Attention along one axis of a grid; all other positions are as many separate sequences.

    q, k and v are (..., heads, *grid, width) with `dims` axes of the grid, of which `axis` is counted from 0, or from
    the end with -1 for the last. k and v may have another length along the axis, and fewer heads. `score` and `mask`
    are as for `attention`: i and j are places along the axis, and b counts the separate sequences.

    >>> import torch
    >>> x = torch.randn(2, 4, 6, 8, 16)
    >>> axial_attention(x, x, x, axis=0, mask=lambda b, h, i, j: j <= i).shape
    torch.Size([2, 4, 6, 8, 16])
    """
    if not -dims <= axis < dims:
        raise SpecError(f"axis must lie between {-dims} and {dims - 1} for a grid of {dims} axes; got {axis}.")
    shapes = ", ".join(f"{name}={tuple(x.shape)}" for name, x in (("q", q), ("k", k), ("v", v)))
    if not q.dim() == k.dim() == v.dim() or q.dim() < dims + 2:
        raise SpecError(f"q, k and v must be (..., heads, {dims} axes of a grid, width) alike; got {shapes}.")
    heads = q.dim() - 2 - dims
    along = heads + 1 + axis % dims
    apart = [tuple(size for at, size in enumerate(x.shape[:-1]) if at not in (heads, along)) for x in (q, k, v)]
    if not apart[0] == apart[1] == apart[2]:
        raise SpecError(f"q, k and v must have one batch and one grid but for axis {axis}; got {shapes}.")
    # with a dimension more there are always heads, also for (heads, length, width)
    rows = [x.movedim((heads, along), (-3, -2)).unsqueeze(0) for x in (q, k, v)]
    output: Tensor = attention(*rows, score=score, mask=mask)
    return output.squeeze(0).movedim((-3, -2), (heads, along))


@check_types
def axial(q: Tensor, k: Tensor, v: Tensor, *, dims: int = 2, score: Any = None, mask: Any = None) -> Tensor:
    """The sum of `axial_attention` along every axis of the grid, with one set of queries, keys and values.

    >>> import torch
    >>> x = torch.ones(1, 3, 5, 4)
    >>> float(axial(x, x, x).mean())
    2.0
    """
    if dims < 1:
        raise SpecError(f"a grid must have at least 1 axis; got dims={dims}.")
    output = axial_attention(q, k, v, axis=0, dims=dims, score=score, mask=mask)
    for axis in range(1, dims):
        output = output + axial_attention(q, k, v, axis=axis, dims=dims, score=score, mask=mask)
    return output
