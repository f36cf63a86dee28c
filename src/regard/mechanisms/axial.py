"""Axial attention over the positions of a grid, along one axis at a time.

    o[x, y] = sum over y' of softmax(q[x, y]·k[x, y'] / √d) v[x, y']      along the last of two axes

A grid of n positions and D axes of equal length takes n^(1 + 1/D) pairs instead of n². D passes connect every pair of
positions. Ho et al. (2019) stack such passes, each with its own projections.
"""

from torch import Tensor

from regard.argument_types import check_types
from regard.attention import attention
from regard.errors import ArgumentError
from regard.mask import MaskLike
from regard.score import ScoreLike


@check_types
def axial_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    axis: int,
    num_axes: int = 2,
    score: ScoreLike | None = None,
    mask: MaskLike | None = None,
) -> Tensor:
    """Compute attention along one axis of a grid; every line along that axis is a separate sequence.

    q, k and v are (..., num_heads, *grid, head_dim), and the grid has `num_axes` axes. `axis` counts from 0; negative
    numbers count from the last axis. k and v may have a different length along the axis, and fewer heads. `score` and
    `mask` are those of `attention`: i and j are positions along the axis, and b is the index of the sequence.

    >>> import torch
    >>> x = torch.randn(2, 4, 6, 8, 16)
    >>> axial_attention(x, x, x, axis=0, mask=lambda b, h, i, j: j <= i).shape
    torch.Size([2, 4, 6, 8, 16])
    """
    if not -num_axes <= axis < num_axes:
        raise ArgumentError(
            f"axis must lie between {-num_axes} and {num_axes - 1} for a grid of {num_axes} axes; got {axis}."
        )
    shapes = ", ".join(f"{name}={tuple(x.shape)}" for name, x in (("q", q), ("k", k), ("v", v)))
    if not q.dim() == k.dim() == v.dim() or q.dim() < num_axes + 2:
        raise ArgumentError(f"q, k and v must all be (..., num_heads, {num_axes} grid axes, head_dim); got {shapes}.")
    head_dimension = q.dim() - 2 - num_axes
    dims = (head_dimension, head_dimension + 1 + axis % num_axes)
    other_sizes = [tuple(size for i, size in enumerate(x.shape[:-1]) if i not in dims) for x in (q, k, v)]
    if not other_sizes[0] == other_sizes[1] == other_sizes[2]:
        raise ArgumentError(
            f"q, k and v must have the same batch and the same grid except along axis {axis}; got {shapes}."
        )
    # the extra leading dimension makes `attention` read a 3-D input as heads, not as a batch
    lines = [x.movedim(dims, (-3, -2)).unsqueeze(0) for x in (q, k, v)]
    output: Tensor = attention(*lines, score=score, mask=mask)
    return output.squeeze(0).movedim((-3, -2), dims)


@check_types
def axial_attention_sum(
    q: Tensor, k: Tensor, v: Tensor, *, num_axes: int = 2, score: ScoreLike | None = None, mask: MaskLike | None = None
) -> Tensor:
    """Return the sum of `axial_attention` along every axis of the grid, with the same q, k and v.

    q, k and v are (..., num_heads, *grid, head_dim), and the grid has `num_axes` axes (default 2). `score` and `mask`
    apply along every axis; see `axial_attention`.

    >>> import torch
    >>> x = torch.ones(1, 3, 5, 4)
    >>> float(axial_attention_sum(x, x, x).mean())
    2.0
    """
    if num_axes < 1:
        raise ArgumentError(f"num_axes must be at least 1; got {num_axes}.")
    output = axial_attention(q, k, v, axis=0, num_axes=num_axes, score=score, mask=mask)
    for axis in range(1, num_axes):
        output = output + axial_attention(q, k, v, axis=axis, num_axes=num_axes, score=score, mask=mask)
    return output
