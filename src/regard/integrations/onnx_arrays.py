"""What ONNX's nodes are given and give back: tensors or NumPy arrays, with heads beside each other or apart."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from regard.errors import SpecError

Array = TypeVar("Array", Tensor, np.ndarray[Any, Any])


def as_tensor(array: Tensor | np.ndarray[Any, Any]) -> Tensor:
    """An array as a tensor, with its own numbers where torch can read them."""
    if isinstance(array, Tensor):
        return array
    array = np.ascontiguousarray(array)
    if not array.flags.writeable:
        array = array.copy()  # torch has no read-only tensors and would warn
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def like(model: Array, result: Tensor) -> Array:
    """The result as the same kind and dtype as the input it answers."""
    if isinstance(model, Tensor):
        return result.to(model.dtype)
    result = result.detach().contiguous()
    if model.dtype.name == "bfloat16":
        return result.to(torch.bfloat16).view(torch.int16).numpy().view(model.dtype)
    return result.numpy().astype(model.dtype, copy=False)


def cut_heads(x: Tensor, heads: int | None, name: str, attribute: str) -> Tensor:
    """(batch, length, heads * width) as (batch, heads, length, width)."""
    if x.dim() != 3:
        raise SpecError(f"{name} must have 3 dimensions, (batch, length, heads * width); got shape {tuple(x.shape)}.")
    if heads is None or heads < 1 or x.shape[2] % heads:
        raise SpecError(
            f"{attribute} must divide the last dimension of a 3-D {name}; got {heads} and {x.shape[2]}. "
            f"Give {attribute}, or {name} with 4 dimensions."
        )
    apart: Tensor = x.unflatten(2, (heads, -1)).transpose(1, 2)
    return apart
