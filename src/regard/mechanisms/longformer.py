"""Longformer: most tokens attend to a local window, and a few global tokens attend to all, with separate projections.

    o_i = softmax_j(q_i·k_j / √d) v_j       over |i - j| <= attention_window / 2 and j in G     for i not in G
    o_i = softmax_j(q'_i·k'_j / √d) v'_j    over all j                                          for i in G

G is the set of global tokens, and primes mark the global projections (Beltagy, Peters and Cohan, 2020). A local query
uses the local key of a global token. `mask.longformer` is the same pattern with one set of projections.
"""

import math
from typing import Any

import torch
from torch import Tensor

from regard import mask
from regard.argument_types import check_types
from regard.attention import attention
from regard.errors import ArgumentError
from regard.tensors.convert import ArrayLike, as_tensor


@check_types
def longformer_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    global_q: Tensor,
    global_k: Tensor,
    global_v: Tensor,
    *,
    attention_window: int,
    global_tokens: ArrayLike,
    attention_mask: ArrayLike | None = None,
) -> Tensor:
    """Compute attention over a local window and the global tokens; global tokens attend to all tokens.

    q is (..., num_heads, n, head_dim), k and v (..., num_kv_heads, n, head_dim), and `global_q`, `global_k` and
    `global_v` have the same shapes. `attention_window` is the number of neighbors on both sides together.
    `global_tokens` are indices (g,) or (batch, g), or booleans (n,) or (batch, n). `attention_mask` is boolean, (n,) or
    (batch, n), True for real tokens: padding is hidden from all queries, is never global, and its output is 0. The cost
    is n (attention_window + g) pairs per head if global tokens are adjacent; an isolated one costs a tile of keys.

    >>> q, k, v, global_q, global_k, global_v = torch.randn(6, 1, 2, 100, 8)
    >>> longformer_attention(q, k, v, global_q, global_k, global_v, attention_window=16, global_tokens=[0, 50]).shape
    torch.Size([1, 2, 100, 8])
    """
    batch = _check((q, k, v), (global_q, global_k, global_v), attention_window)
    n = q.shape[-2]
    is_real = _as_boolean_mask(
        torch.ones(n, dtype=torch.bool) if attention_mask is None else attention_mask, "attention_mask", batch, n
    ).to(q.device)
    is_global = _indices_to_mask(global_tokens, "global_tokens", batch, n).to(q.device) & is_real
    visible = mask.sliding_window(attention_window // 2 + 1) | _key_mask(is_global)
    local_output: Tensor = attention(q, k, v, mask=visible & _key_mask(is_real) & _query_mask(is_real & ~is_global))
    if not is_global.any():
        return local_output
    positions, is_valid = _global_positions(is_global)
    rows = _broadcast_positions(positions, q, batch)
    queries = torch.take_along_dim(global_q, rows, -2)
    global_output: Tensor = attention(queries, global_k, global_v, mask=_query_mask(is_valid) & _key_mask(is_real))
    # every query is fully masked in one of the two calls, and its output there is 0
    return local_output.scatter_add(-2, rows.expand_as(global_output), global_output)


def _check(local_qkv: tuple[Tensor, ...], global_qkv: tuple[Tensor, ...], attention_window: int) -> tuple[int, ...]:
    """Check the arguments and return the batch dimensions."""
    if any(x.shape != y.shape for x, y in zip(local_qkv, global_qkv, strict=True)):
        shapes = "; ".join(", ".join(str(tuple(x.shape)) for x in xs) for xs in (local_qkv, global_qkv))
        raise ArgumentError(f"global_q, global_k and global_v must have the shapes of q, k and v; got {shapes}.")
    q = local_qkv[0]
    batch = q.shape[:-3] if q.dim() >= 4 else q.shape[:-2]
    if any(x.dim() != q.dim() or x.shape[: len(batch)] != batch or x.shape[-2] != q.shape[-2] for x in local_qkv):
        shapes = ", ".join(f"{name}={tuple(x.shape)}" for name, x in zip("qkv", local_qkv, strict=True))
        raise ArgumentError(f"q, k and v must have the same batch and the same length; got {shapes}.")
    if attention_window < 1:
        raise ArgumentError(f"attention_window must be at least 1; got {attention_window}.")
    return tuple(batch)


def _as_boolean_mask(selected: Any, name: str, batch: tuple[int, ...], n: int) -> Tensor:
    """Return booleans (1, n), or (batch, n) if batch elements may differ."""
    values = as_tensor(selected, name)
    if values.dtype != torch.bool:
        raise ArgumentError(f"{name} must be boolean, True for a real token; got {values.dtype}.")
    if tuple(values.shape) not in ((n,), (*batch, n)):
        raise ArgumentError(f"{name} as booleans must be {(n,)} or {(*batch, n)}; got {tuple(values.shape)}.")
    return values.reshape(math.prod(values.shape[:-1]), n)


def _indices_to_mask(selected: Any, name: str, batch: tuple[int, ...], n: int) -> Tensor:
    """Return booleans (1, n) or (batch, n) from indices or booleans."""
    values = as_tensor(selected, name)
    if values.dtype == torch.bool:
        return _as_boolean_mask(values, name, batch, n)
    if values.numel() and values.is_floating_point():
        raise ArgumentError(f"{name} must be indices or booleans; got {values.dtype}.")
    if values.dim() == 0 or tuple(values.shape[:-1]) not in ((), batch):
        got = tuple(values.shape)
        raise ArgumentError(f"{name} as indices must be (g,) or (batch, g) with batch {batch}; got shape {got}.")
    if values.numel() and not 0 <= int(values.min()) <= int(values.max()) < n:
        raise ArgumentError(f"{name} must lie between 0 and {n - 1}; got {int(values.min())} to {int(values.max())}.")
    rows = math.prod(values.shape[:-1])
    mask_values = torch.zeros(rows, n, dtype=torch.bool, device=values.device)
    return mask_values.scatter(1, values.reshape(rows, values.shape[-1]).long(), True)


def _key_mask(visible: Tensor) -> mask.Mask:
    return mask.tensor(visible[:, None, None, :])


def _query_mask(visible: Tensor) -> mask.Mask:
    return mask.tensor(visible[:, None, :, None])


def _global_positions(is_global: Tensor) -> tuple[Tensor, Tensor]:
    """Return the positions of the global tokens of each row, padded to the longest row, and which ones are valid."""
    counts = is_global.sum(-1, keepdim=True)
    max_count = int(counts.max())
    positions = is_global.byte().argsort(dim=-1, descending=True, stable=True)[:, :max_count]
    return positions, torch.arange(max_count, device=is_global.device) < counts


def _broadcast_positions(positions: Tensor, q: Tensor, batch: tuple[int, ...]) -> Tensor:
    """Reshape positions (rows, count) so that they broadcast over the heads and channels of q."""
    outer = batch if len(positions) > 1 else (1,) * len(batch)
    return positions.view(*outer, *(1,) * (q.dim() - 2 - len(batch)), -1, 1)
