"""Checks of arguments: each returns the value as its type, or raises a `SpecError` that names the argument.

heads = positive_int(heads, "heads")
dropout = probability(dropout, "dropout")
"""

import math
from collections.abc import Collection, Mapping
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.errors import BudgetError, SpecError

T = TypeVar("T")
WHOLE_NUMBERS = (int, np.integer, torch.SymInt)
NUMBERS = (*WHOLE_NUMBERS, float, np.floating, torch.SymFloat)
MAX_SIZE = 2**31 - 1  # of one dimension
MAX_SEED = 2**63 - 1
MAX_PARAMETER_BYTES = 2**42  # of one parameter; the largest published ones have 2**35
DTYPES = {"floats": "floating point numbers", "integers": "whole numbers", "booleans": "booleans"}


def whole_number(value: Any, name: str, *, at_least: int | None = None, at_most: int | None = None) -> int:
    """The value as an int. Booleans and floats are refused."""
    if not isinstance(value, WHOLE_NUMBERS) or isinstance(value, bool):
        raise SpecError(f"{name} must be a whole number{_range(at_least, at_most)}; got {describe(value)}.")
    _check_range(value, name, "a whole number", at_least, at_most)
    return value if isinstance(value, torch.SymInt) else int(value)  # type: ignore[return-value]  # a SymInt is one


def positive_int(value: Any, name: str) -> int:
    return whole_number(value, name, at_least=1)


def size(value: Any, name: str) -> int:
    """The value as the size of a dimension: a whole number from 1 to 2**31 - 1."""
    return whole_number(value, name, at_least=1, at_most=MAX_SIZE)


def seed(value: Any, name: str = "seed") -> int:
    """The value as the seed of a generator: a whole number from 0 to 2**63 - 1."""
    return whole_number(value, name, at_least=0, at_most=MAX_SEED)


def parameter(name: str, *shape: int) -> None:
    """Refuses a parameter of this shape before its memory is allocated, if no machine could hold it."""
    bytes_needed = 4 * math.prod(shape)
    if bytes_needed > MAX_PARAMETER_BYTES:
        raise BudgetError(
            f"{name} of shape {shape} would need {bytes_needed:.3g} bytes; the limit for one parameter is "
            f"{MAX_PARAMETER_BYTES:.3g}. Use smaller sizes."
        )


def flag(value: Any, name: str) -> bool:
    """The value, which is True or False."""
    if not isinstance(value, (bool, np.bool_)):
        raise SpecError(f"{name} must be True or False; got {describe(value)}.")
    return bool(value)


def text(value: Any, name: str) -> str:
    """The value, which is a string."""
    return instance(value, name, str, "a string")


def device(value: Any, name: str = "device") -> torch.device:
    """The value as a device of torch; a string names one."""
    if isinstance(value, str):
        try:
            return torch.device(value)
        except RuntimeError:
            pass
    return instance(value, name, torch.device, "a device of torch, such as 'cpu' or 'cuda:0'")


def finite_number(
    value: Any, name: str, *, above: float | None = None, at_least: float | None = None, at_most: float | None = None
) -> float:
    """The value as a float. NaN, infinities and booleans are refused."""
    limits = _range(at_least, at_most, above)
    if not isinstance(value, NUMBERS) or isinstance(value, bool):
        raise SpecError(f"{name} must be a number{limits}; got {describe(value)}.")
    if isinstance(value, (torch.SymInt, torch.SymFloat)):
        return value  # type: ignore[return-value]  # its value is not known while a graph is traced
    if not _is_finite(value) or (above is not None and value <= above):
        raise SpecError(f"{name} must be a finite number{limits}; got {describe(value)}.")
    _check_range(value, name, "a number", at_least, at_most, above)
    return float(value)


def probability(value: Any, name: str, *, below_one: bool = False) -> float:
    """The value as a float from 0 to 1."""
    if not isinstance(value, NUMBERS) or isinstance(value, bool) or not 0 <= value <= 1 or (below_one and value == 1):
        limits = "at least 0 and less than 1" if below_one else "from 0 to 1"
        raise SpecError(f"{name} must be a number {limits}; got {describe(value)}.")
    return float(value)


def choice(value: Any, name: str, options: Collection[T]) -> T:
    """The value, which is one of the options."""
    for option in options:
        if type(value) is type(option) and value == option:
            return option
    raise SpecError(f"{name} must be one of {', '.join(map(repr, options))}; got {describe(value)}.")


def instance(value: Any, name: str, kind: type[T] | tuple[type[T], ...], expected: str) -> T:
    """The value, which is an instance of the class, or of one of several; `expected` completes "must be"."""
    if not isinstance(value, kind):
        raise SpecError(f"{name} must be {expected}; got {describe(value)}.")
    return value


def function(value: Any, name: str, signature: str) -> Any:
    """The value, which can be called."""
    if not callable(value):
        raise SpecError(f"{name} must be a function {signature}; got {describe(value)}.")
    return value


def tensor(
    value: Any,
    name: str,
    *,
    shape: tuple[int | str, ...] | None = None,
    dims: Collection[int] | None = None,
    dtype: str | None = None,
) -> Tensor:
    """The value, which is a tensor.

    `shape` has a number for each size that is fixed and a name for each that is free: (batch, n, 64) is
    ("batch", "n", 64). `dims` lists the allowed numbers of dimensions. `dtype` is "floats", "integers" or "booleans".
    """
    if not isinstance(value, Tensor):
        raise SpecError(f"{name} must be a tensor{_shape_text(shape)}; got {describe(value)}.")
    if shape is not None and not _has_shape(value, shape):
        raise SpecError(f"{name} must have shape {_shape(shape)}; got {tuple(value.shape)}.")
    if dims is not None and value.dim() not in dims:
        allowed = " or ".join(str(n) for n in dims)
        raise SpecError(f"{name} must have {allowed} dimensions; got shape {tuple(value.shape)}.")
    if dtype is not None and not _has_dtype(value, dtype):
        raise SpecError(f"{name} must hold {DTYPES[dtype]}; got {value.dtype}.")
    return value


def same_floats(tensors: Mapping[str, Tensor | None], *, least_dims: int = 0) -> None:
    """Tensors by name, None left out: floating point numbers of one dtype on one device.

    Autocast mixes dtypes on purpose, so there only whole numbers and booleans are refused.
    """
    named = {name: x for name, x in tensors.items() if x is not None}
    for name, x in named.items():
        tensor(x, name, dtype="floats")
        if x.dim() < least_dims:
            raise SpecError(f"{name} must have at least {least_dims} dimensions; got shape {tuple(x.shape)}.")
    kinds = {(x.device, x.dtype) for x in named.values()}
    if len(kinds) > 1 and not torch.is_autocast_enabled(next(iter(named.values())).device.type):
        got = ", ".join(f"{name} {x.dtype} on {x.device}" for name, x in named.items())
        raise SpecError(f"{', '.join(named)} must have one dtype and one device; got {got}.")


def array(value: Any, name: str, *, dims: Collection[int] | None = None) -> NDArray[np.float64]:
    """The value as an array of float64: a tensor, an array, or nested lists of numbers. It may hold NaN."""
    if isinstance(value, Tensor):
        value = value.detach().cpu()
        value = value.double().numpy() if not value.is_complex() else value.numpy()
    try:
        plain = np.asarray(value)
    except (TypeError, ValueError, OverflowError):
        plain = np.asarray(None)
    if plain.dtype.kind not in "biuf":
        raise SpecError(f"{name} must be a tensor, an array or lists of real numbers; got {describe(value)}.")
    if dims is not None and plain.ndim not in dims:
        allowed = " or ".join(str(n) for n in dims)
        raise SpecError(f"{name} must have {allowed} dimensions; got shape {plain.shape}.")
    return plain.astype(np.float64)


def describe(value: Any) -> str:
    """A value in an error message: short values in full, others by their type and size."""
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}, {value.dtype}"
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape}, {value.dtype}"
    if value is None or isinstance(value, (bool, int, float, str, np.generic)):
        text = repr(value)
        return text if len(text) <= 60 else f"{text[:57]}..."
    return f"{type(value).__name__}" + (f" of {len(value)}" if isinstance(value, (list, tuple, dict, set)) else "")


def _range(at_least: float | None, at_most: float | None, above: float | None = None) -> str:
    if above is not None:
        return f" above {above}" + (f" and at most {at_most}" if at_most is not None else "")
    if at_least is not None and at_most is not None:
        return f" from {at_least} to {at_most}"
    return (
        f" of at least {at_least}" if at_least is not None else f" of at most {at_most}" if at_most is not None else ""
    )


def _check_range(
    value: Any, name: str, kind: str, at_least: float | None, at_most: float | None, above: float | None = None
) -> None:
    if isinstance(value, (torch.SymInt, torch.SymFloat)):
        return
    if (at_least is not None and value < at_least) or (at_most is not None and value > at_most):
        raise SpecError(f"{name} must be {kind}{_range(at_least, at_most, above)}; got {describe(value)}.")


def _is_finite(value: Any) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an int beyond the largest float
        return False


def _has_shape(value: Tensor, shape: tuple[int | str, ...]) -> bool:
    sizes = zip(value.shape, shape, strict=False)
    return value.dim() == len(shape) and all(isinstance(size, str) or n == size for n, size in sizes)


def _has_dtype(value: Tensor, dtype: str) -> bool:
    if dtype == "floats":
        return value.is_floating_point()
    if dtype == "booleans":
        return value.dtype == torch.bool
    return not (value.is_floating_point() or value.is_complex() or value.dtype == torch.bool)


def _shape(shape: tuple[int | str, ...]) -> str:
    return f"({', '.join(str(size) for size in shape)}{',' if len(shape) == 1 else ''})"


def _shape_text(shape: tuple[int | str, ...] | None) -> str:
    return "" if shape is None else f" of shape {_shape(shape)}"
