"""Argument checks of the recording package: each returns the checked value or raises `ArgumentError`."""

import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.errors import ArgumentError, OutOfRangeError


def integer(value: Any, name: str, at_least: int | None = None, at_most: int | None = None) -> int:
    """Return the value as an int from `at_least` to `at_most`, both included."""
    if isinstance(value, (Tensor, np.ndarray)) and value.ndim == 0:
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise ArgumentError(f"{name} must be an integer; got {describe(value)}.")
    if (at_least is not None and value < at_least) or (at_most is not None and value > at_most):
        raise OutOfRangeError(f"{name} must be {_range_text(at_least, at_most)}; got {value}.")
    return int(value)


def finite_number(value: Any, name: str, *, above: float | None = None) -> float:
    """Return the value as a finite float, above `above` if given."""
    if isinstance(value, bool) or not isinstance(value, (int, float, np.number)) or not math.isfinite(value):
        raise ArgumentError(f"{name} must be a finite number; got {describe(value)}.")
    if above is not None and not value > above:
        raise ArgumentError(f"{name} must be a number above {above:g}; got {value}.")
    return float(value)


def integers(values: Any, name: str, at_least: int | None = None, at_most: int | None = None) -> list[int]:
    """Return a list of ints from any iterable of integers."""
    if isinstance(values, (Tensor, np.ndarray)):
        values = values.tolist()
    if isinstance(values, (str, bytes, Mapping)) or not isinstance(values, Iterable):
        raise ArgumentError(f"{name} must be a list of integers; got {describe(values)}.")
    return [integer(value, f"each of {name}", at_least, at_most) for value in values]


def strings(values: Any, name: str) -> list[str]:
    """Return a list of strings from any iterable of strings."""
    if isinstance(values, (str, bytes, Mapping, Tensor)) or not isinstance(values, Iterable):
        raise ArgumentError(f"{name} must be a list of strings; got {describe(values)}.")
    texts = list(values)
    if not all(isinstance(text, str) for text in texts):
        raise ArgumentError(f"{name} must be a list of strings; got {describe(texts)}.")
    return texts


def layer_selector(layer: Any) -> int | str:
    """Return the index of a layer, or the beginning of its path."""
    if isinstance(layer, str):
        return layer
    if isinstance(layer, bool) or not isinstance(layer, (int, np.integer)):
        raise ArgumentError(f"layer must be an integer or the path of a module; got {describe(layer)}.")
    return int(layer)


def layer_selectors(layers: Any) -> list[int | str]:
    """Return a list of layer selectors from one selector or several."""
    if isinstance(layers, (int, str, np.integer)):
        return [layer_selector(layers)]
    if isinstance(layers, (bytes, Mapping, Tensor)) or not isinstance(layers, Iterable):
        raise ArgumentError(f"layers must be integers or paths of modules, or None for all; got {describe(layers)}.")
    return [layer_selector(layer) for layer in layers]


def tensor(value: Any, name: str, min_dims: int = 1) -> Tensor:
    """Return the value if it is a tensor with at least `min_dims` dimensions."""
    if not isinstance(value, Tensor) or value.dim() < min_dims:
        raise ArgumentError(f"{name} must be a tensor of at least {min_dims} dimensions; got {describe(value)}.")
    return value


def instance(value: Any, cls: type, name: str) -> Any:
    """Return the value if it is an instance of the class."""
    if not isinstance(value, cls):
        raise ArgumentError(f"{name} must be a {cls.__name__}; got {describe(value)}.")
    return value


def function(value: Any, name: str) -> Any:
    """Return the value if it is callable."""
    if not callable(value):
        raise ArgumentError(f"{name} must be a function; got {describe(value)}.")
    return value


def file_path(value: Any, name: str) -> Path:
    """Return the value as a `Path`."""
    if not isinstance(value, (str, os.PathLike)) or not str(value) or "\0" in str(value):
        raise ArgumentError(f"{name} must be the path of a file; got {describe(value)}.")
    return Path(value)


def axis_index(entry: Any, size: int, name: str) -> slice | list[int]:
    """Return the positions that an index of one dimension selects; an integer becomes a slice of length 1."""
    if isinstance(entry, slice):
        try:
            entry.indices(size)
        except (TypeError, ValueError) as error:
            raise ArgumentError(f"{name} must be a slice of integers; got {describe(entry)} ({error}).") from None
        if entry.step is None or entry.step > 0:
            return entry
        return list(range(*entry.indices(size)))  # tensors do not support negative steps
    if isinstance(entry, (list, tuple, range, Tensor, np.ndarray)) and np.ndim(entry) != 0:
        mask = torch.as_tensor(entry) if isinstance(entry, (Tensor, np.ndarray)) else None
        if mask is not None and mask.dtype == torch.bool and mask.shape == (size,):
            return [int(position) for position in mask.nonzero().flatten()]
        return [position % size for position in integers(entry, name, -size, size - 1)]
    position = integer(entry, name, -size, size - 1) % size
    return slice(position, position + 1)


def is_single(entry: Any) -> bool:
    """Return whether an index selects one position, so that its dimension is dropped."""
    return not isinstance(entry, slice) and (isinstance(entry, (int, np.integer)) or getattr(entry, "ndim", 1) == 0)


def describe(value: Any) -> str:
    """Return a short text of a value for a message."""
    if isinstance(value, (Tensor, np.ndarray)):
        return f"{type(value).__name__} of shape {tuple(value.shape)}"
    text = repr(value)
    return text if len(text) <= 60 else f"{type(value).__name__} {text[:50]}..."


def _range_text(at_least: int | None, at_most: int | None) -> str:
    if at_least is None:
        return f"at most {at_most}"
    return f"at least {at_least}" if at_most is None else f"from {at_least} to {at_most}"
