"""The benchmark calls for FlexAttention: a score_mod and a mask_mod."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks.cases import SLOPES, SOFTCAP, dense_bias, dense_mask, distance_bias, document_ids, t5_distance_bias

Mod = Callable[..., Any]


def causal(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return i >= j


def flex_mods(call_name: str, n: int) -> tuple[Mod | None, Mod | None]:
    """Return the score_mod and the mask_mod of a call; None for none."""
    factories: dict[str, Callable[[int], tuple[Mod | None, Mod | None]]] = {
        "full": lambda n: (None, None),
        "causal": lambda n: (None, causal),
        "tensor": _tensor,
        "window": lambda n: (None, lambda b, h, i, j: (i >= j) & (i - j < 256)),
        "documents": _documents,
        "bigbird": _bigbird,
        "longformer": lambda n: (None, lambda b, h, i, j: ((i - j).abs() <= 256) | (i < 2) | (j < 2)),
        "alibi": lambda n: (lambda s, b, h, i, j: s - SLOPES[h] * (i - j).abs(), causal),
        "softcap": lambda n: (lambda s, b, h, i, j: SOFTCAP * torch.tanh(s / SOFTCAP), None),
        "bias": _bias,
        "table": lambda n: _by_distance(distance_bias(n), n),
        "t5": lambda n: _by_distance(t5_distance_bias(n), n),
    }
    return factories[call_name](n)


def _tensor(n: int) -> tuple[None, Mod]:
    visible = dense_mask("causal", n)
    return None, lambda b, h, i, j: visible[i, j]


def _documents(n: int) -> tuple[None, Mod]:
    ids = document_ids(n)
    return None, lambda b, h, i, j: ids[i] == ids[j]


def _bigbird(n: int) -> tuple[None, Mod]:
    blocks = dense_mask("bigbird", n)[::64, ::64].contiguous()  # the mask is constant within blocks
    return None, lambda b, h, i, j: blocks[i // 64, j // 64]


def _bias(n: int) -> tuple[Mod, Mod]:
    values = dense_bias(n)
    return lambda s, b, h, i, j: s + values[h, i, j], causal


def _by_distance(values: Tensor, n: int) -> tuple[Mod, Mod]:
    return lambda s, b, h, i, j: s + values[h, i - j + n], causal
