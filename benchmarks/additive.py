"""The additive score u·tanh(W_q q + W_k k) of one head, written out with torch's operations."""

import torch
from torch import Tensor

HIDDEN = 64
QUERIES = 8  # at a time

_source = torch.Generator().manual_seed(5)
W_Q, W_K = torch.randn(2, 64, HIDDEN, generator=_source) / 8
U = torch.randn(HIDDEN, generator=_source)


def eager(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """All pairs at once: n x n x hidden numbers in memory."""
    return _attend(q @ W_Q, k @ W_K, v)


def chunked(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Some queries at a time: of 4 to 128 these were the fastest.

    For the backward pass everything is kept, 4 GB at n 4096; computing it again, with checkpoints, was slower.
    """
    a, b = q @ W_Q, k @ W_K
    return torch.cat([_attend(part, b, v) for part in a.split(QUERIES, -2)], -2)


def _attend(a: Tensor, b: Tensor, v: Tensor) -> Tensor:
    return (torch.tanh(a.unsqueeze(-2) + b.unsqueeze(-3)) @ U).softmax(-1) @ v
