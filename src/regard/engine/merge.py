"""Joining attention over parts of the keys: (output, lse) pairs are a monoid."""

import torch
from torch import Tensor

from regard.errors import SpecError


def merge(*parts: tuple[Tensor, Tensor], sink: float | Tensor | None = None) -> tuple[Tensor, Tensor]:
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
    for output, lse in parts:
        if output.shape[:-1] != lse.shape:
            wanted = tuple(output.shape[:-1])
            raise SpecError(f"lse must have the shape of output but for its width, {wanted}; got {tuple(lse.shape)}.")
    stacked = torch.stack([lse for _, lse in parts])
    lse = torch.logsumexp(stacked, dim=0)
    level, levels = lse, stacked
    if sink is not None:  # each part was divided by exp(lse_r) + exp(sink)
        extra = torch.as_tensor(sink, dtype=lse.dtype, device=lse.device)
        extra = extra.unsqueeze(-1) if extra.dim() == 1 else extra
        level, levels = torch.logaddexp(lse, extra), torch.logaddexp(stacked, extra)
    # parts that saw nothing weigh nothing, also where no part saw anything
    nothing = levels == -torch.inf
    share = torch.where(nothing, 0.0, torch.exp(torch.where(nothing, 0.0, levels - torch.where(nothing, 0.0, level))))
    outputs = torch.stack([output for output, _ in parts])
    exact = share.unsqueeze(-1) * outputs.to(share.dtype)
    return exact.sum(0).to(outputs.dtype), lse
