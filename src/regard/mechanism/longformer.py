"""Longformer: most tokens look around themselves, a few look at everything, with projections of their own.

    o_i = softmax_j(q_i·k_j / √d) v_j       over j with |i - j| <= window / 2, and over j in G      for i not in G
    o_i = softmax_j(q'_i·k'_j / √d) v'_j    over all j                                              for i in G

G are the global tokens and a dash marks their projections (Beltagy, Peters and Cohan, 2020). A local query meets a
global token by that token's local key. `mask.longformer` is the same with one set of projections.
"""

import math
from typing import Any

import torch
from torch import Tensor

from regard.argument_types import check_types
from regard.attention import attention
from regard.errors import SpecError
from regard.spec import mask
from regard.spec.array import as_tensor


@check_types
def longformer(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    global_q: Tensor,
    global_k: Tensor,
    global_v: Tensor,
    *,
    window: int,
    tokens: Any,
    real: Any = None,
) -> Tensor:
    """Attention to the neighbours and to the global tokens, which attend to everything.

    q is (..., heads, n, width), k and v (..., key heads, n, width), and the global ones have the same shapes. `window`
    counts the neighbours on both sides together. `tokens` are the global ones: indices (g,) or (batch, g), or booleans
    (n,) or (batch, n). `real` are such booleans too: tokens that are not real are seen by nobody, are never global, and
    get 0. It takes n (window + g) pairs a head where global tokens stand side by side; one that stands alone brings
    the tile of keys around it along.

    >>> q, k, v, global_q, global_k, global_v = torch.randn(6, 1, 2, 100, 8)
    >>> longformer(q, k, v, global_q, global_k, global_v, window=16, tokens=[0, 50]).shape
    torch.Size([1, 2, 100, 8])
    """
    batch = _check((q, k, v), (global_q, global_k, global_v), window)
    n = q.shape[-2]
    is_real = _marked(torch.ones(n, dtype=torch.bool) if real is None else real, "real", batch, n).to(q.device)
    is_global = _indexed(tokens, "tokens", batch, n).to(q.device) & is_real
    near = mask.window(window // 2 + 1) | _of_keys(is_global)
    local: Tensor = attention(q, k, v, mask=near & _of_keys(is_real) & _of_queries(is_real & ~is_global))
    if not is_global.any():
        return local
    at, is_taken = _places(is_global)
    rows = _beside(at, q, batch)
    chosen = torch.take_along_dim(global_q, rows, -2)
    found: Tensor = attention(chosen, global_k, global_v, mask=_of_queries(is_taken) & _of_keys(is_real))
    # every query sees nothing in one of the two, and so has 0 there
    return local.scatter_add(-2, rows.expand_as(found), found)


def _check(near: tuple[Tensor, ...], far: tuple[Tensor, ...], window: int) -> tuple[int, ...]:
    """The batch dimensions."""
    if any(x.shape != y.shape for x, y in zip(near, far, strict=True)):
        shapes = "; ".join(", ".join(str(tuple(x.shape)) for x in xs) for xs in (near, far))
        raise SpecError(f"the global q, k and v must have the shapes of q, k and v; got {shapes}.")
    q = near[0]
    batch = q.shape[:-3] if q.dim() >= 4 else q.shape[:-2]
    if any(x.dim() != q.dim() or x.shape[: len(batch)] != batch or x.shape[-2] != q.shape[-2] for x in near):
        shapes = ", ".join(f"{name}={tuple(x.shape)}" for name, x in zip("qkv", near, strict=True))
        raise SpecError(f"q, k and v must be of the same tokens, so of one batch and one length; got {shapes}.")
    if window < 1:
        raise SpecError(f"window must be a whole number of at least 1; got {window}.")
    return tuple(batch)


def _marked(chosen: Any, what: str, batch: tuple[int, ...], n: int) -> Tensor:
    """Booleans (1, n) or, where batch elements may differ, (batch, n)."""
    values = as_tensor(chosen, what)
    if values.dtype != torch.bool:
        raise SpecError(f"{what} must be booleans, True for a token that is meant; got {values.dtype}.")
    if tuple(values.shape) not in ((n,), (*batch, n)):
        raise SpecError(f"{what} as booleans must be {(n,)} or {(*batch, n)}; got {tuple(values.shape)}.")
    return values.reshape(math.prod(values.shape[:-1]), n)


def _indexed(chosen: Any, what: str, batch: tuple[int, ...], n: int) -> Tensor:
    """The same from indices or booleans."""
    values = as_tensor(chosen, what)
    if values.dtype == torch.bool:
        return _marked(values, what, batch, n)
    if values.numel() and values.is_floating_point():
        raise SpecError(f"{what} must be indices or booleans; got {values.dtype}.")
    if values.dim() == 0 or tuple(values.shape[:-1]) not in ((), batch):
        got = tuple(values.shape)
        raise SpecError(f"{what} as indices must be one row, or one for each of batch {batch}; got shape {got}.")
    if values.numel() and not 0 <= int(values.min()) <= int(values.max()) < n:
        raise SpecError(f"{what} must lie between 0 and {n - 1}; got {int(values.min())} to {int(values.max())}.")
    rows = math.prod(values.shape[:-1])
    nowhere = torch.zeros(rows, n, dtype=torch.bool, device=values.device)
    return nowhere.scatter(1, values.reshape(rows, values.shape[-1]).long(), True)


def _of_keys(chosen: Tensor) -> mask.Mask:
    return mask.tensor(chosen[:, None, None, :])


def _of_queries(chosen: Tensor) -> mask.Mask:
    return mask.tensor(chosen[:, None, :, None])


def _places(is_global: Tensor) -> tuple[Tensor, Tensor]:
    """Where the global tokens of each row stand, filled up to the longest row, and which of these are meant."""
    counts = is_global.sum(-1, keepdim=True)
    most = int(counts.max())
    first = is_global.byte().argsort(dim=-1, descending=True, stable=True)[:, :most]
    return first, torch.arange(most, device=is_global.device) < counts


def _beside(at: Tensor, q: Tensor, batch: tuple[int, ...]) -> Tensor:
    """Places (rows, count) with the dimensions of q, for every head and channel."""
    outer = batch if len(at) > 1 else (1,) * len(batch)
    return at.view(*outer, *(1,) * (q.dim() - 2 - len(batch)), -1, 1)
