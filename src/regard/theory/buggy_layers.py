"""Layers with one common bug each, which the checks must detect. All take x (batch, n, embed_dim)."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from regard import mask
from regard.attention import attention
from regard.nn.position_encoding import SinusoidalPositionalEmbedding

BuggyLayer = Callable[[Tensor], Tensor]


def causal_leaks(leaking_length: int) -> dict[str, BuggyLayer]:
    """Return layers whose outputs depend on later inputs; at `leaking_length` all of them leak."""
    middle = leaking_length // 2

    def one_pair(b: Any, h: Any, i: Any, j: Any) -> Any:
        return (j <= i) | ((i == middle) & (j == middle + 1))

    def some_lengths(x: Tensor) -> Tensor:
        return _masked_attention(x, None if x.shape[1] == leaking_length else mask.causal())

    return {
        "off by one": lambda x: _masked_attention(x, lambda b, h, i, j: j <= i + 1),
        "one pair": lambda x: (
            _masked_attention(x, one_pair) if x.shape[1] > middle + 1 else _masked_attention(x, mask.causal())
        ),
        "only at one length": some_lengths,
        "reversed": lambda x: _masked_attention(x, lambda b, h, i, j: j >= i),
        "scores times a mask of 1 and -∞": _multiplicative_mask_attention,
    }


def order_dependent_layers() -> dict[str, BuggyLayer]:
    """Return layers and poolings that depend on the order of their inputs."""
    return {
        "positions added": lambda x: _masked_attention(
            SinusoidalPositionalEmbedding(x.shape[-1]).apply_to_embeddings(x, torch.arange(x.shape[1])), None
        ),
        "pools by the last token": lambda x: _masked_attention(x, None)[:, -1] + x[:, -1],
        "pools by a running mean": _running_mean,
        "attends only to its neighbors": lambda x: _masked_attention(x, mask.sliding_window(2)),
    }


def batch_mixing_layers() -> dict[str, BuggyLayer]:
    """Return layers in which a batch element affects another."""
    return {
        "normalized over the batch": lambda x: (x - x.mean((0, 1))) / (x.std((0, 1)) + 1e-5),
        "batch merged to one text": lambda x: _masked_attention(x.flatten(0, 1)[None], None).view(x.shape),
    }


def unnormalized_weights(scores: Tensor) -> dict[str, Tensor]:
    """Return incorrectly normalized weights of scores (n, n), by the name of the bug."""
    softmax = scores.softmax(-1)
    zeroed = softmax.clone()
    zeroed[len(scores) // 2, 0] = 0  # after the normalization
    return {
        "softmax over queries": scores.softmax(-2),
        "hidden after softmax": softmax.tril(),
        "one weight lost": zeroed,
        "scores over their sum": scores / scores.sum(-1, keepdim=True),
    }


def _masked_attention(x: Tensor, mask: Any) -> Tensor:
    output: Tensor = attention(x, x, x, mask=mask)
    return output


def _multiplicative_mask_attention(x: Tensor) -> Tensor:
    n = x.shape[1]
    factors = torch.ones(n, n).masked_fill(torch.ones(n, n).triu(1) > 0, -torch.inf).to(x)
    return (x @ x.mT * factors).softmax(-1) @ x


def _running_mean(x: Tensor) -> Tensor:
    """Return an exponential moving average with factor 1/2."""
    average = x[:, 0]
    for i in range(1, x.shape[1]):
        average = (average + x[:, i]) / 2
    return average
