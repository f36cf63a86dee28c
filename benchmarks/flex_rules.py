"""The questions as FlexAttention takes them: a rule for scores, and a mask."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks.questions import CAP, SLOPES, by_distance, dense_bias, dense_mask, document_ids, t5_by_distance

Mod = Callable[..., Any]


def causal(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return i >= j


def rules(kind: str, n: int) -> tuple[Mod | None, Mod | None]:
    """The score_mod and the mask_mod of a question."""
    made: dict[str, Callable[[int], tuple[Mod | None, Mod | None]]] = {
        "full": lambda n: (None, None),
        "causal": lambda n: (None, causal),
        "tensor": _tensor,
        "window": lambda n: (None, lambda b, h, i, j: (i >= j) & (i - j < 256)),
        "documents": _documents,
        "bigbird": _bigbird,
        "longformer": lambda n: (None, lambda b, h, i, j: ((i - j).abs() <= 256) | (i < 2) | (j < 2)),
        "alibi": lambda n: (lambda s, b, h, i, j: s - SLOPES[h] * (i - j).abs(), causal),
        "softcap": lambda n: (lambda s, b, h, i, j: CAP * torch.tanh(s / CAP), None),
        "bias": _bias,
        "table": lambda n: _by_distance(by_distance(n), n),
        "t5": lambda n: _by_distance(t5_by_distance(n), n),
    }
    return made[kind](n)


def _tensor(n: int) -> tuple[None, Mod]:
    seen = dense_mask("causal", n)
    return None, lambda b, h, i, j: seen[i, j]


def _documents(n: int) -> tuple[None, Mod]:
    ids = document_ids(n)
    return None, lambda b, h, i, j: ids[i] == ids[j]


def _bigbird(n: int) -> tuple[None, Mod]:
    blocks = dense_mask("bigbird", n)[::64, ::64].contiguous()  # it sees whole blocks
    return None, lambda b, h, i, j: blocks[i // 64, j // 64]


def _bias(n: int) -> tuple[Mod, Mod]:
    values = dense_bias(n)
    return lambda s, b, h, i, j: s + values[h, i, j], causal


def _by_distance(values: Tensor, n: int) -> tuple[Mod, Mod]:
    return lambda s, b, h, i, j: s + values[h, i - j + n], causal
