"""Small tensors and functions that the valid calls share; the same numbers every time."""

from typing import Any

import torch
from torch import Tensor

from regard import attention, attention_with_weights

BATCH, HEADS, LENGTH, HEAD_DIM = 1, 2, 6, 8


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def qkv() -> tuple[Tensor, Tensor, Tensor]:
    """q, k, v of shape (1, 2, 6, 8)."""
    q, k, v = (numbers(BATCH, HEADS, LENGTH, HEAD_DIM, seed=seed) for seed in range(3))
    return q, k, v


def in_attention(name: str) -> Any:
    """A use of a mask, score, normalizer or value: `attention` with it as the option of this name."""

    def use(option: Any) -> Tensor:
        output: Tensor = attention(*qkv(), **{name: option})
        return output

    return use


def in_weights(*measures: Any) -> Any:
    return attention_with_weights(*qkv()).weights.measure(*measures)
