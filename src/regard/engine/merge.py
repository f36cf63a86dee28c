"""Joining attention over parts of the keys: (output, lse) pairs are a monoid."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.checks import describe, finite_number, tensor
from regard.errors import SpecError
from regard.spec.array import as_tensor


def merge(*parts: tuple[Any, Any], sink: float | Tensor | None = None) -> tuple[Any, Any]:
    """Attention over all keys from attention over disjoint parts of them.

    Each part is (output (..., n_q, width), lse (..., n_q)) of the same queries. The result is such a pair again, so
    merging may be repeated and regrouped at will: o = sum exp(lse_r - lse) o_r, lse = log sum exp(lse_r). For parts
    made with `weigh.sink(logit)` give the same `sink=logit`.

    >>> q, k, v = (torch.randn(5, 4) for _ in range(3))
    >>> import regard
    >>> parts = [regard.attend(q, k[s], v[s]) for s in (slice(0, 2), slice(2, 5))]
    >>> whole, lse = merge(*((p.output, p.lse) for p in parts))
    >>> torch.allclose(whole, regard.attention(q, k, v), atol=1e-6)
    True
    """
    if not parts:
        raise SpecError("merge needs at least one (output, lse) pair; got none.")
    for part in parts:
        if not isinstance(part, (tuple, list)) or len(part) != 2:
            raise SpecError(f"each part must be a pair (output, lse); got {describe(part)}.")
    is_numpy = isinstance(parts[0][0], np.ndarray)
    pairs = [(as_tensor(output, "output"), as_tensor(lse, "lse")) for output, lse in parts]
    for output, lse in pairs:
        for name, x in (("output", output), ("lse", lse)):
            tensor(x, name, dtype="floats")
        wanted = tuple(output.shape[:-1])
        if output.dim() < 1 or wanted != tuple(lse.shape):
            raise SpecError(f"lse must have the shape of output but for its width, {wanted}; got {tuple(lse.shape)}.")
        if output.shape != pairs[0][0].shape:
            got = f"{tuple(pairs[0][0].shape)} and {tuple(output.shape)}"
            raise SpecError(f"parts must be of the same queries, so of one shape; got {got}.")
    stacked = torch.stack([lse for _, lse in pairs])
    blind = (stacked == -torch.inf).all(0)  # a sum of nothing has no derivative
    lse = torch.where(blind, -torch.inf, torch.logsumexp(torch.where(blind, 0.0, stacked), dim=0))
    level, levels = lse, stacked
    if sink is not None:  # each part was divided by exp(lse_r) + exp(sink)
        extra = _sink(sink, lse)
        extra = extra.unsqueeze(-1) if extra.dim() == 1 else extra
        level, levels = torch.logaddexp(lse, extra), torch.logaddexp(stacked, extra)
    # parts that saw nothing weigh nothing, also where no part saw anything
    nothing = levels == -torch.inf
    share = torch.where(nothing, 0.0, torch.exp(torch.where(nothing, 0.0, levels - torch.where(nothing, 0.0, level))))
    outputs = torch.stack([output for output, _ in pairs])
    exact = share.unsqueeze(-1) * outputs.to(share.dtype)
    merged = exact.sum(0).to(outputs.dtype)
    return (merged.numpy(), lse.numpy()) if is_numpy else (merged, lse)


def _sink(sink: float | Tensor, lse: Tensor) -> Tensor:
    if not isinstance(sink, Tensor):
        return lse.new_tensor(finite_number(sink, "sink"))
    heads = lse.shape[-2] if lse.dim() > 1 else 1
    if sink.dim() > 1 or sink.numel() not in (1, heads) or not sink.is_floating_point():
        raise SpecError(f"sink must be one number, or one for each of {heads} heads; got {describe(sink)}.")
    return sink.to(lse)
