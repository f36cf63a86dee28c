"""The layout of the inputs, (..., num_heads, length, head_dim): the number of heads, 4-D views and rows by index."""

from torch import Tensor

from regard.errors import ArgumentError


def num_heads(x: Tensor) -> int:
    """Return the number of heads: 1 with fewer than four dimensions."""
    return x.shape[-3] if x.dim() >= 4 else 1


def as_4d(x: Tensor) -> Tensor:
    """Return x as (batch, num_heads, length, head_dim), with all dimensions before the heads flattened."""
    x = x if x.dim() >= 4 else x.unsqueeze(-3)
    return x.reshape(x.shape[:-3].numel(), *x.shape[-3:])


def num_key_value_groups(q: Tensor, k: Tensor) -> int:
    """Return the number of query heads per key head."""
    heads, kv_heads = num_heads(q), num_heads(k)
    if kv_heads == 0 or heads % kv_heads:
        raise ArgumentError(f"num_kv_heads must divide num_heads; got num_kv_heads={kv_heads} and num_heads={heads}.")
    return heads // kv_heads


def gather_rows(x: Tensor, indices: Tensor) -> Tensor:
    """Return the rows of x (..., n, d) at indices (..., clusters, cluster_size): (..., clusters, cluster_size, d)."""
    flat = indices.flatten(-2).unsqueeze(-1)
    return x.gather(-2, flat.expand(*flat.shape[:-1], x.shape[-1])).reshape(*indices.shape, x.shape[-1])
