"""Attention with the additive score u·tanh(W_q q + W_k k) of one head, in eager torch operations."""

import torch
from torch import Tensor

HIDDEN_DIM = 64
CHUNK_QUERIES = 8  # the fastest of 4 to 128

_generator = torch.Generator().manual_seed(5)
W_Q, W_K = torch.randn(2, 64, HIDDEN_DIM, generator=_generator) / 8
U = torch.randn(HIDDEN_DIM, generator=_generator)


def eager_additive(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Compute all pairs at once, with n x n x hidden_dim numbers in memory."""
    return _additive_attention(q @ W_Q, k @ W_K, v)


def chunked_additive(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Compute a few queries at a time.

    The backward pass stores all pairs, 4 GB at n 4096; checkpointing is slower.
    """
    a, b = q @ W_Q, k @ W_K
    return torch.cat([_additive_attention(part, b, v) for part in a.split(CHUNK_QUERIES, -2)], -2)


def _additive_attention(a: Tensor, b: Tensor, v: Tensor) -> Tensor:
    return (torch.tanh(a.unsqueeze(-2) + b.unsqueeze(-3)) @ U).softmax(-1) @ v
