"""Random q, k and v in float64 for the tests of several mechanisms, from the generator of torch."""

import torch
from torch import Tensor

HEAD_DIM = 6


def random_inputs(n_q: int, n_k: int, leading: tuple[int, ...]) -> list[Tensor]:
    """Return q (*leading, n_q, HEAD_DIM), k (*leading, n_k, HEAD_DIM) and v (*leading, n_k, 5)."""
    sizes = ((n_q, HEAD_DIM), (n_k, HEAD_DIM), (n_k, 5))
    return [torch.randn(*leading, *size, dtype=torch.float64) for size in sizes]


def random_grouped_inputs(n_q: int, n_k: int, num_heads: int = 4, num_kv_heads: int = 4) -> list[Tensor]:
    """Return q (2, num_heads, n_q, 8), k (2, num_kv_heads, n_k, 8) and v (2, num_kv_heads, n_k, 5)."""
    sizes = ((num_heads, n_q, 8), (num_kv_heads, n_k, 8), (num_kv_heads, n_k, 5))
    return [torch.randn(2, *size, dtype=torch.float64) for size in sizes]
