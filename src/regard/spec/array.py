"""Arrays of any kind as tensors."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.errors import SpecError
from regard.spec.storage import check_storage


def as_tensor(values: Any, name: str) -> Tensor:
    """A tensor from a tensor, an array or numbers; an array that torch cannot share memory with is copied."""
    if isinstance(values, Tensor):
        return check_storage(values, name)
    if isinstance(values, np.ndarray) and (not values.flags.writeable or any(s < 0 for s in values.strides)):
        values = values.copy()
    try:
        return torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError) as error:
        got = f"{type(values).__name__} ({error})"
        raise SpecError(f"{name} must be a tensor or an array of numbers; got {got}.") from None


def over_pairs(values: Tensor, leading: tuple[int, ...]) -> Tensor:
    """A tensor that broadcasts over (*leading, n_q, n_k), with as many dimensions, as (batch, heads, n_q, n_k).

    The last of two or more leading dimensions is heads; only what must be is expanded.
    """
    if len(leading) < 2:
        return values.unsqueeze(-3) if leading else values
    if len(leading) == 2:
        return values
    if all(size == 1 for size in values.shape[:-3]):
        return values.reshape(1, *values.shape[-3:])
    return values.expand(*leading[:-1], *values.shape[-3:]).flatten(0, -4)
