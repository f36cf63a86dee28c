"""Rotary positions: q and k are turned, so that their product knows the distance between them."""

from typing import Any

import torch
from torch import Tensor

from regard.argument_types import check_types
from regard.checks import describe
from regard.errors import SpecError
from regard.spec.array import as_tensor


@check_types
def rotary(
    q: Tensor,
    k: Tensor,
    positions: Any = None,
    *,
    layout: str = "half",
    base: float = 10000.0,
    width: int | None = None,
) -> tuple[Tensor, Tensor]:
    """q and k turned by their positions, so that their product depends on the distance alone.

    `positions` is one tensor (n,) or (batch, n) for both, or a pair of them; None counts keys from 0 and stands the
    queries at the end. `layout` "half" pairs feature m with m + width/2 (Llama), "interleaved" with m + 1.
    `width` turns only the first features.
    """
    if layout not in ("half", "interleaved"):
        raise SpecError(f"layout must be 'half' or 'interleaved'; got {layout!r}.")
    for name, x in (("q", q), ("k", k)):
        if x.dim() < 2 or not x.is_floating_point():
            raise SpecError(f"{name} must be (..., length, width) in floats; got {describe(x)}.")
    if not base > 0.0:
        raise SpecError(f"base must be above 0; got {base}.")
    n_q, n_k = q.shape[-2], k.shape[-2]
    if positions is None:
        positions = (torch.arange(n_k - n_q, n_k, device=q.device), torch.arange(n_k, device=k.device))
    is_pair = isinstance(positions, (tuple, list)) and len(positions) == 2 and not isinstance(positions[0], int)
    at_q, at_k = positions if is_pair else (positions, positions)
    turned_q, turned_k = (_turned(x, _places(at, x), layout, base, width) for x, at in ((q, at_q), (k, at_k)))
    return turned_q, turned_k


def _places(at: Any, x: Tensor) -> Tensor:
    places = as_tensor(at, "positions")
    fits = places.dim() == 1 or (places.dim() == 2 and x.dim() > 2 and len(places) in (1, x.shape[0]))
    if not fits or places.dtype == torch.bool or places.is_complex() or places.shape[-1] != x.shape[-2]:
        raise SpecError(
            f"positions must be (n,) or (batch, n), a number for each of {x.shape[-2]} vectors; got {describe(places)}."
        )
    return places


def _turned(x: Tensor, at: Tensor, layout: str, base: float, width: int | None) -> Tensor:
    width = x.shape[-1] if width is None else width
    if width % 2 or not 0 < width <= x.shape[-1]:
        raise SpecError(f"rotary needs an even width of at most {x.shape[-1]}; got {width}.")
    # float64 angles: at position 100,000 a float32 angle is already off by 0.004
    speed = base ** (-torch.arange(0, width, 2, dtype=torch.float64, device=x.device) / width)
    angle = at.to(x.device, torch.float64).unsqueeze(-1) * speed
    if at.dim() == 2 and x.dim() == 4:
        angle = angle.unsqueeze(1)
    return rotate(x, angle.cos(), angle.sin(), layout)


def rotate(x: Tensor, cosine: Tensor, sine: Tensor, layout: str = "half") -> Tensor:
    """x with its leading pairs of features turned by angles whose cosine and sine are given, (..., n, pairs)."""
    exact = torch.float64 if x.dtype == torch.float64 else torch.float32
    cosine, sine = cosine.to(exact), sine.to(exact)
    pairs = cosine.shape[-1]
    if 2 * pairs > x.shape[-1]:
        raise SpecError(f"rotary must be no wider than what it turns; got a width of {2 * pairs} for {x.shape[-1]}.")
    turned, rest = x[..., : 2 * pairs].to(exact), x[..., 2 * pairs :]
    if layout == "half":
        one, other = turned[..., :pairs], turned[..., pairs:]
    else:
        one, other = turned[..., 0::2], turned[..., 1::2]
    new = one * cosine - other * sine, one * sine + other * cosine
    joined = torch.cat(new, dim=-1) if layout == "half" else torch.stack(new, dim=-1).flatten(-2)
    return torch.cat([joined.to(x.dtype), rest], dim=-1)
