"""Checks of arguments of recordings: one function and one message for each kind of argument."""

import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.errors import OutOfRangeError, SpecError


def whole(value: Any, what: str, least: int | None = None, most: int | None = None) -> int:
    """A whole number in a range, both ends included."""
    if isinstance(value, (Tensor, np.ndarray)) and value.ndim == 0:
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise SpecError(f"{what} must be a whole number; got {short(value)}.")
    if (least is not None and value < least) or (most is not None and value > most):
        raise OutOfRangeError(f"{what} must be {_range(least, most)}; got {value}.")
    return int(value)


def number(value: Any, what: str, *, above: float | None = None) -> float:
    """A finite number."""
    if isinstance(value, bool) or not isinstance(value, (int, float, np.number)) or not math.isfinite(value):
        raise SpecError(f"{what} must be a finite number; got {short(value)}.")
    if above is not None and not value > above:
        raise SpecError(f"{what} must be a number above {above:g}; got {value}.")
    return float(value)


def wholes(values: Any, what: str, least: int | None = None, most: int | None = None) -> list[int]:
    """A list of whole numbers, from any iterable of them."""
    if isinstance(values, (Tensor, np.ndarray)):
        values = values.tolist()
    if isinstance(values, (str, bytes, Mapping)) or not isinstance(values, Iterable):
        raise SpecError(f"{what} must be a list of whole numbers; got {short(values)}.")
    return [whole(value, f"each of {what}", least, most) for value in values]


def strings(values: Any, what: str) -> list[str]:
    """A list of strings."""
    if isinstance(values, (str, bytes, Mapping, Tensor)) or not isinstance(values, Iterable):
        raise SpecError(f"{what} must be a list of strings; got {short(values)}.")
    texts = list(values)
    if not all(isinstance(text, str) for text in texts):
        raise SpecError(f"{what} must be a list of strings; got {short(texts)}.")
    return texts


def layer_name(which: Any) -> int | str:
    """The number of a layer, or the beginning of its path."""
    if isinstance(which, str):
        return which
    if isinstance(which, bool) or not isinstance(which, (int, np.integer)):
        raise SpecError(f"a layer must be a number or the path of a module; got {short(which)}.")
    return int(which)


def layer_names(which: Any) -> list[int | str]:
    """Several layers, or one."""
    if isinstance(which, (int, str, np.integer)):
        return [layer_name(which)]
    if isinstance(which, (bytes, Mapping, Tensor)) or not isinstance(which, Iterable):
        raise SpecError(f"layers must be numbers or paths of modules, or None for all; got {short(which)}.")
    return [layer_name(each) for each in which]


def tensor(value: Any, what: str, least_dimensions: int = 1) -> Tensor:
    if not isinstance(value, Tensor) or value.dim() < least_dimensions:
        raise SpecError(f"{what} must be a tensor of at least {least_dimensions} dimensions; got {short(value)}.")
    return value


def of_kind(value: Any, kind: type, what: str) -> Any:
    """A value of a class."""
    if not isinstance(value, kind):
        raise SpecError(f"{what} must be a {kind.__name__}; got {short(value)}.")
    return value


def function(value: Any, what: str) -> Any:
    if not callable(value):
        raise SpecError(f"{what} must be a function; got {short(value)}.")
    return value


def path(value: Any, what: str) -> Path:
    if not isinstance(value, (str, os.PathLike)) or not str(value) or "\0" in str(value):
        raise SpecError(f"{what} must be the path of a file; got {short(value)}.")
    return Path(value)


def index(entry: Any, size: int, what: str) -> slice | list[int]:
    """The positions along one dimension that an index selects; a whole number selects a slice of one."""
    if isinstance(entry, slice):
        try:
            entry.indices(size)
        except (TypeError, ValueError) as error:
            raise SpecError(f"{what} must be a slice of whole numbers; got {short(entry)} ({error}).") from None
        if entry.step is None or entry.step > 0:
            return entry
        return list(range(*entry.indices(size)))  # tensors have no slices backwards
    if isinstance(entry, (list, tuple, range, Tensor, np.ndarray)) and np.ndim(entry) != 0:
        mask = torch.as_tensor(entry) if isinstance(entry, (Tensor, np.ndarray)) else None
        if mask is not None and mask.dtype == torch.bool and mask.shape == (size,):
            return [int(place) for place in mask.nonzero().flatten()]
        return [place % size for place in wholes(entry, what, -size, size - 1)]
    place = whole(entry, what, -size, size - 1) % size
    return slice(place, place + 1)


def is_single(entry: Any) -> bool:
    """Whether an index selects one place, so that its dimension is dropped."""
    return not isinstance(entry, slice) and (isinstance(entry, (int, np.integer)) or getattr(entry, "ndim", 1) == 0)


def short(value: Any) -> str:
    """A value in a message: its text where that is short, else its class and shape."""
    if isinstance(value, (Tensor, np.ndarray)):
        return f"{type(value).__name__} of shape {tuple(value.shape)}"
    text = repr(value)
    return text if len(text) <= 60 else f"{type(value).__name__} {text[:50]}..."


def _range(least: int | None, most: int | None) -> str:
    if least is None:
        return f"at most {most}"
    return f"at least {least}" if most is None else f"from {least} to {most}"
