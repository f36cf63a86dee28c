"""Heads of what a mechanism is given: (..., heads, length, width), and one head with fewer than four dimensions."""

from torch import Tensor

from regard.errors import SpecError


def heads_of(x: Tensor) -> int:
    return x.shape[-3] if x.dim() >= 4 else 1


def by_head(x: Tensor) -> Tensor:
    """(batch, heads, length, width), all dimensions before the heads as one."""
    x = x if x.dim() >= 4 else x.unsqueeze(-3)
    return x.reshape(x.shape[:-3].numel(), *x.shape[-3:])


def sharing(q: Tensor, k: Tensor) -> int:
    """How many heads of queries share a head of keys."""
    heads, key_heads = heads_of(q), heads_of(k)
    if key_heads == 0 or heads % key_heads:
        raise SpecError(f"the number of key heads must divide that of q; got {key_heads} and {heads}.")
    return heads // key_heads
