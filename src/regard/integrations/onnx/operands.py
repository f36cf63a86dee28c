"""Inputs and outputs of ONNX operators: tensors or NumPy arrays, with heads in a separate dimension or not."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.errors import ArgumentError
from regard.tensors.convert import Array


def array_to_tensor(array: Tensor | np.ndarray[Any, Any]) -> Tensor:
    """Return an array as a tensor, which shares its memory if possible."""
    if isinstance(array, Tensor):
        return array
    array = np.ascontiguousarray(array)
    if not array.flags.writeable:
        array = array.copy()  # torch has no read-only tensors and would warn
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def as_input_type(reference: Array, result: Tensor) -> Array:
    """Return `result` with the array type and dtype of the input `reference`."""
    if isinstance(reference, Tensor):
        return result.to(reference.dtype)
    result = result.detach().contiguous()
    if reference.dtype.name == "bfloat16":
        return result.to(torch.bfloat16).view(torch.int16).numpy().view(reference.dtype)
    return result.numpy().astype(reference.dtype, copy=False)


def split_heads(x: Tensor, num_heads: int | None, name: str, attribute: str) -> Tensor:
    """Reshape (batch, length, heads * head_dim) to (batch, heads, length, head_dim)."""
    if x.dim() != 3:
        raise ArgumentError(
            f"{name} must have 3 dimensions, (batch, length, heads * head_dim); got shape {tuple(x.shape)}."
        )
    if num_heads is None or num_heads < 1 or x.shape[2] % num_heads:
        raise ArgumentError(
            f"{attribute} must divide the last dimension of a 3-D {name}; got {num_heads} and {x.shape[2]}. "
            f"Pass {attribute}, or {name} with 4 dimensions."
        )
    split: Tensor = x.unflatten(2, (num_heads, -1)).transpose(1, 2)
    return split
