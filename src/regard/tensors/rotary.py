"""Rotary position embeddings (RoPE): rotate q and k so that their product depends on their relative position."""

from typing import Any

import torch
from torch import Tensor

from regard.argument_types import check_types
from regard.checks import describe
from regard.errors import ArgumentError
from regard.tensors.convert import ArrayLike, as_tensor


@check_types
def rotary(
    q: Tensor,
    k: Tensor,
    positions: ArrayLike | tuple[ArrayLike, ArrayLike] | None = None,
    *,
    layout: str = "half",
    base: float = 10000.0,
    rope_dim: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Rotate q and k by angles proportional to their positions, so that q·k depends only on the distance.

    Args:
        q, k: queries and keys, (..., n, head_dim).
        positions: a tensor of shape (n,) or (batch, n) for both q and k, or a pair of such tensors. None numbers the
            keys from 0 and aligns the last query with the last key.
        layout: "half" pairs feature m with m + rope_dim/2 (Llama), "interleaved" pairs 2m with 2m + 1.
        base: pair m rotates by the frequency base^(-2m/rope_dim).
        rope_dim: the number of leading features that are rotated; None means all.

    >>> q, k = torch.randn(2, 4, 8, 16), torch.randn(2, 4, 8, 16)
    >>> q, k = rotary(q, k)
    >>> q.shape
    torch.Size([2, 4, 8, 16])
    """
    if layout not in ("half", "interleaved"):
        raise ArgumentError(f"layout must be 'half' or 'interleaved'; got {layout!r}.")
    for name, x in (("q", q), ("k", k)):
        if x.dim() < 2 or not x.is_floating_point():
            raise ArgumentError(f"{name} must be a float tensor of shape (..., n, head_dim); got {describe(x)}.")
    if not base > 0.0:
        raise ArgumentError(f"base must be above 0; got {base}.")
    n_q, n_k = q.shape[-2], k.shape[-2]
    if positions is None:
        positions = (torch.arange(n_k - n_q, n_k, device=q.device), torch.arange(n_k, device=k.device))
    is_pair = isinstance(positions, (tuple, list)) and len(positions) == 2 and not isinstance(positions[0], int)
    q_positions, k_positions = positions if is_pair else (positions, positions)
    return (
        _rotate_at(q, _check_positions(q_positions, q), layout, base, rope_dim),
        _rotate_at(k, _check_positions(k_positions, k), layout, base, rope_dim),
    )


def _check_positions(positions: Any, x: Tensor) -> Tensor:
    values = as_tensor(positions, "positions")
    is_valid = values.dim() == 1 or (values.dim() == 2 and x.dim() > 2 and len(values) in (1, x.shape[0]))
    if not is_valid or values.dtype == torch.bool or values.is_complex() or values.shape[-1] != x.shape[-2]:
        raise ArgumentError(
            f"positions must be a tensor of shape (n,) or (batch, n) with n={x.shape[-2]}; got {describe(values)}."
        )
    return values


def _rotate_at(x: Tensor, positions: Tensor, layout: str, base: float, rope_dim: int | None) -> Tensor:
    rope_dim = x.shape[-1] if rope_dim is None else rope_dim
    if rope_dim % 2 or not 0 < rope_dim <= x.shape[-1]:
        raise ArgumentError(f"rope_dim must be even and from 2 to the head dimension {x.shape[-1]}; got {rope_dim}.")
    # float64 angles: at position 100,000 a float32 angle is already off by 0.004
    frequency = base ** (-torch.arange(0, rope_dim, 2, dtype=torch.float64, device=x.device) / rope_dim)
    angle = positions.to(x.device, torch.float64).unsqueeze(-1) * frequency
    if positions.dim() == 2 and x.dim() == 4:
        angle = angle.unsqueeze(1)
    return apply_rotary(x, angle.cos(), angle.sin(), layout)


def apply_rotary(x: Tensor, cos: Tensor, sin: Tensor, layout: str = "half") -> Tensor:
    """Rotate the leading feature pairs of x by the angles with these cosines and sines, of shape (..., n, pairs)."""
    dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
    cos, sin = cos.to(dtype), sin.to(dtype)
    pairs = cos.shape[-1]
    if 2 * pairs > x.shape[-1]:
        raise ArgumentError(
            f"cos and sin must have at most head_dim / 2 entries per position; got {pairs} for head_dim={x.shape[-1]}."
        )
    features, rest = x[..., : 2 * pairs].to(dtype), x[..., 2 * pairs :]
    if layout == "half":
        a, b = features[..., :pairs], features[..., pairs:]
    else:
        a, b = features[..., 0::2], features[..., 1::2]
    rotated_pairs = a * cos - b * sin, a * sin + b * cos
    rotated = torch.cat(rotated_pairs, dim=-1) if layout == "half" else torch.stack(rotated_pairs, dim=-1).flatten(-2)
    return torch.cat([rotated.to(x.dtype), rest], dim=-1)
