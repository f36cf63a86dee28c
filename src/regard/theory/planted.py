"""Layers with a bug each, of kinds that happen: what the checks must find. All take x (batch, n, width)."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from regard.attention import attention
from regard.nn.position import Sinusoidal
from regard.spec import mask

Bug = Callable[[Tensor], Tensor]


def leaks(tokens: int) -> dict[str, Bug]:
    """Masks that let something of the future through; `tokens` is a length at which the last one does."""
    at = tokens // 2

    def one_pair(b: Any, h: Any, i: Any, j: Any) -> Any:
        return (j <= i) | ((i == at) & (j == at + 1))

    def some_lengths(x: Tensor) -> Tensor:
        return _masked(x, None if x.shape[1] == tokens else mask.causal())

    return {
        "off by one": lambda x: _masked(x, lambda b, h, i, j: j <= i + 1),
        "one pair": lambda x: _masked(x, one_pair) if x.shape[1] > at + 1 else _masked(x, mask.causal()),
        "only at one length": some_lengths,
        "turned round": lambda x: _masked(x, lambda b, h, i, j: j >= i),
        "scores times a mask of 1 and -∞": _multiplied,
    }


def order_dependent() -> dict[str, Bug]:
    """Layers and poolings whose answer depends on the order of what they read."""
    return {
        "positions added": lambda x: _masked(Sinusoidal(x.shape[-1]).added(x, torch.arange(x.shape[1])), None),
        "pools by the last token": lambda x: _masked(x, None)[:, -1] + x[:, -1],
        "pools by a running mean": _running_mean,
        "sees only its neighbours": lambda x: _masked(x, mask.window(2)),
    }


def mixing() -> dict[str, Bug]:
    """Layers in which one text of a batch reaches another."""
    return {
        "normalised over the batch": lambda x: (x - x.mean((0, 1))) / (x.std((0, 1)) + 1e-5),
        "batch joined to one text": lambda x: _masked(x.flatten(0, 1)[None], None).view(x.shape),
    }


def unnormalised(s: Tensor) -> dict[str, Tensor]:
    """Weights made of scores (n, n), each wrongly."""
    softmax = s.softmax(-1)
    dropped = softmax.clone()
    dropped[len(s) // 2, 0] = 0  # a weight is lost after the sum was taken
    return {
        "softmax over queries": s.softmax(-2),
        "hidden after softmax": softmax.tril(),
        "one weight lost": dropped,
        "scores over their sum": s / s.sum(-1, keepdim=True),
    }


def _masked(x: Tensor, seen: Any) -> Tensor:
    found: Tensor = attention(x, x, x, mask=seen)
    return found


def _multiplied(x: Tensor) -> Tensor:
    n = x.shape[1]
    factors = torch.ones(n, n).masked_fill(torch.ones(n, n).triu(1) > 0, -torch.inf).to(x)
    return (x @ x.mT * factors).softmax(-1) @ x


def _running_mean(x: Tensor) -> Tensor:
    """What an average becomes that is updated by a half for each token."""
    found = x[:, 0]
    for at in range(1, x.shape[1]):
        found = (found + x[:, at]) / 2
    return found
