"""Conversion of arrays and numbers to tensors, and of batch dimensions to a standard form."""

from collections.abc import Sequence
from typing import Annotated, Any, TypeAlias, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.argument_types import UNCHECKED
from regard.errors import ArgumentError
from regard.tensors.storage import check_storage

Array = TypeVar("Array", Tensor, "np.ndarray[Any, Any]")  # results are of the kind of the inputs
# a sequence is a list of numbers, or a nested list of them
ArrayLike: TypeAlias = Annotated[Tensor | NDArray[Any] | Sequence[object], UNCHECKED]


def as_tensor(values: Any, name: str) -> Tensor:
    """Convert a tensor, an array or numbers to a tensor. An array is copied only if torch cannot share its memory."""
    if isinstance(values, Tensor):
        return check_storage(values, name)
    if isinstance(values, np.ndarray) and (not values.flags.writeable or any(s < 0 for s in values.strides)):
        values = values.copy()
    try:
        return torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError) as error:
        got = f"{type(values).__name__} ({error})"
        raise ArgumentError(f"{name} must be a tensor or an array of numbers; got {got}.") from None


def flatten_batch_dims(values: Tensor, leading_shape: tuple[int, ...]) -> Tensor:
    """Reshape a tensor that broadcasts to (*leading_shape, n_q, n_k) so that it broadcasts to (batch, heads, n_q, n_k).

    `values` has len(leading_shape) + 2 dimensions. The last of two or more leading dimensions is heads. Dimensions of
    size 1 are expanded only if needed.
    """
    if len(leading_shape) < 2:
        return values.unsqueeze(-3) if leading_shape else values
    if len(leading_shape) == 2:
        return values
    if all(size == 1 for size in values.shape[:-3]):
        return values.reshape(1, *values.shape[-3:])
    return values.expand(*leading_shape[:-1], *values.shape[-3:]).flatten(0, -4)
