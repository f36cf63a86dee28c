"""Argument checks: each function returns the converted value, or raises an `ArgumentError` that names the argument.

num_heads = positive_int(num_heads, "num_heads")
dropout = probability(dropout, "dropout")
"""

import math
from collections.abc import Collection, Mapping
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.errors import ArgumentError, BudgetError

T = TypeVar("T")
INTEGER_TYPES = (int, np.integer, torch.SymInt)
NUMBER_TYPES = (*INTEGER_TYPES, float, np.floating, torch.SymFloat)
MAX_DIM_SIZE = 2**31 - 1
MAX_SEED = 2**63 - 1
MAX_PARAMETER_BYTES = 2**42  # the largest published parameters have 2**35 bytes
DTYPE_KINDS = {"floats": "floating point numbers", "integers": "integers", "booleans": "booleans"}


def integer(value: Any, name: str, *, at_least: int | None = None, at_most: int | None = None) -> int:
    """Return the value as an int. Booleans and floats raise an error."""
    if not isinstance(value, INTEGER_TYPES) or isinstance(value, bool):
        raise ArgumentError(f"{name} must be an integer{_range_text(at_least, at_most)}; got {describe(value)}.")
    _check_range(value, name, "an integer", at_least, at_most)
    return value if isinstance(value, torch.SymInt) else int(value)  # type: ignore[return-value]  # a SymInt is one


def positive_int(value: Any, name: str) -> int:
    """Return the value as an int of at least 1."""
    return integer(value, name, at_least=1)


def size(value: Any, name: str) -> int:
    """Return the value as the size of a dimension: an int from 1 to 2**31 - 1."""
    return integer(value, name, at_least=1, at_most=MAX_DIM_SIZE)


def seed(value: Any, name: str = "seed") -> int:
    """Return the value as the seed of a random generator: an int from 0 to 2**63 - 1."""
    return integer(value, name, at_least=0, at_most=MAX_SEED)


def parameter_size(name: str, *shape: int) -> None:
    """Raise `BudgetError` before a parameter of this shape is allocated, if it exceeds `MAX_PARAMETER_BYTES`."""
    bytes_needed = 4 * math.prod(shape)
    if bytes_needed > MAX_PARAMETER_BYTES:
        raise BudgetError(
            f"{name} of shape {shape} would need {bytes_needed:.3g} bytes; the limit for one parameter is "
            f"{MAX_PARAMETER_BYTES:.3g}. Use smaller sizes."
        )


def flag(value: Any, name: str) -> bool:
    """Return the value as a bool."""
    if not isinstance(value, (bool, np.bool_)):
        raise ArgumentError(f"{name} must be True or False; got {describe(value)}.")
    return bool(value)


def string(value: Any, name: str) -> str:
    """Return the value, a string."""
    return instance(value, name, str, "a string")


def device(value: Any, name: str = "device") -> torch.device:
    """Return the value as a `torch.device`; a string names one."""
    if isinstance(value, str):
        try:
            return torch.device(value)
        except RuntimeError:
            pass
    return instance(value, name, torch.device, "a torch device such as 'cpu' or 'cuda:0'")


def finite_number(
    value: Any, name: str, *, above: float | None = None, at_least: float | None = None, at_most: float | None = None
) -> float:
    """Return the value as a float. NaN, infinities and booleans raise an error."""
    limits = _range_text(at_least, at_most, above)
    if not isinstance(value, NUMBER_TYPES) or isinstance(value, bool):
        raise ArgumentError(f"{name} must be a number{limits}; got {describe(value)}.")
    if isinstance(value, (torch.SymInt, torch.SymFloat)):
        return value  # type: ignore[return-value]  # its value is not known while a graph is traced
    if not _is_finite(value) or (above is not None and value <= above):
        raise ArgumentError(f"{name} must be a finite number{limits}; got {describe(value)}.")
    _check_range(value, name, "a number", at_least, at_most, above)
    return float(value)


def probability(value: Any, name: str, *, below_one: bool = False) -> float:
    """Return the value as a float from 0 to 1; `below_one` excludes 1."""
    if (
        not isinstance(value, NUMBER_TYPES)
        or isinstance(value, bool)
        or not 0 <= value <= 1
        or (below_one and value == 1)
    ):
        limits = "at least 0 and less than 1" if below_one else "from 0 to 1"
        raise ArgumentError(f"{name} must be a number {limits}; got {describe(value)}.")
    return float(value)


def choice(value: Any, name: str, options: Collection[T]) -> T:
    """Return the value, one of the options."""
    for option in options:
        if type(value) is type(option) and value == option:
            return option
    raise ArgumentError(f"{name} must be one of {', '.join(map(repr, options))}; got {describe(value)}.")


def instance(value: Any, name: str, types: type[T] | tuple[type[T], ...], expected: str) -> T:
    """Return the value, an instance of one of the types; `expected` completes "must be" in the error."""
    if not isinstance(value, types):
        raise ArgumentError(f"{name} must be {expected}; got {describe(value)}.")
    return value


def function(value: Any, name: str, signature: str) -> Any:
    """Return the value, a callable; `signature` completes "must be a function" in the error."""
    if not callable(value):
        raise ArgumentError(f"{name} must be a function {signature}; got {describe(value)}.")
    return value


def tensor(
    value: Any,
    name: str,
    *,
    shape: tuple[int | str, ...] | None = None,
    dims: Collection[int] | None = None,
    dtype_kind: str | None = None,
) -> Tensor:
    """Return the value, a tensor.

    `shape` has a number for each fixed size and a name for each free size, such as ("batch", "n", 64).
    `dims` lists the allowed numbers of dimensions. `dtype_kind` is "floats", "integers" or "booleans".
    """
    if not isinstance(value, Tensor):
        raise ArgumentError(f"{name} must be a tensor{_of_shape_text(shape)}; got {describe(value)}.")
    if shape is not None and not _matches_shape(value, shape):
        raise ArgumentError(f"{name} must have shape {_format_shape(shape)}; got {tuple(value.shape)}.")
    if dims is not None and value.dim() not in dims:
        allowed = " or ".join(str(n) for n in dims)
        raise ArgumentError(f"{name} must have {allowed} dimensions; got shape {tuple(value.shape)}.")
    if dtype_kind is not None and not _matches_dtype(value, dtype_kind):
        raise ArgumentError(f"{name} must hold {DTYPE_KINDS[dtype_kind]}; got {value.dtype}.")
    return value


def is_integer_tensor(x: Tensor) -> bool:
    """Return whether a tensor holds integers; booleans do not count."""
    return not (x.is_floating_point() or x.is_complex() or x.dtype == torch.bool)


def same_float_dtype(tensors: Mapping[str, Tensor | None], *, min_dims: int = 0) -> None:
    """Check that the tensors (by name; None is skipped) are floats of one dtype on one device.

    Under autocast the float dtypes may differ.
    """
    present = {name: x for name, x in tensors.items() if x is not None}
    for name, x in present.items():
        tensor(x, name, dtype_kind="floats")
        if x.dim() < min_dims:
            raise ArgumentError(f"{name} must have at least {min_dims} dimensions; got shape {tuple(x.shape)}.")
    kinds = {(x.device, x.dtype) for x in present.values()}
    if len(kinds) > 1 and not torch.is_autocast_enabled(next(iter(present.values())).device.type):
        got = ", ".join(f"{name} {x.dtype} on {x.device}" for name, x in present.items())
        raise ArgumentError(f"{', '.join(present)} must have one dtype and one device; got {got}.")


def array(value: Any, name: str, *, dims: Collection[int] | None = None) -> NDArray[np.float64]:
    """Return a tensor, an array or nested lists of numbers as a float64 array. NaN is allowed."""
    if isinstance(value, Tensor):
        value = value.detach().cpu()
        value = value.double().numpy() if not value.is_complex() else value.numpy()
    try:
        values = np.asarray(value)
    except (TypeError, ValueError, OverflowError):
        values = np.asarray(None)
    if values.dtype.kind not in "biuf":
        raise ArgumentError(f"{name} must be a tensor, an array or lists of real numbers; got {describe(value)}.")
    if dims is not None and values.ndim not in dims:
        allowed = " or ".join(str(n) for n in dims)
        raise ArgumentError(f"{name} must have {allowed} dimensions; got shape {values.shape}.")
    return values.astype(np.float64)


def describe(value: Any) -> str:
    """Describe a value in an error message: short values in full, others by type and size."""
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}, {value.dtype}"
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape}, {value.dtype}"
    if value is None or isinstance(value, (bool, int, float, str, np.generic)):
        text = repr(value)
        return text if len(text) <= 60 else f"{text[:57]}..."
    return f"{type(value).__name__}" + (f" of {len(value)}" if isinstance(value, (list, tuple, dict, set)) else "")


def _range_text(at_least: float | None, at_most: float | None, above: float | None = None) -> str:
    if above is not None:
        return f" above {above}" + (f" and at most {at_most}" if at_most is not None else "")
    if at_least is not None and at_most is not None:
        return f" from {at_least} to {at_most}"
    return (
        f" of at least {at_least}" if at_least is not None else f" of at most {at_most}" if at_most is not None else ""
    )


def _check_range(
    value: Any, name: str, noun: str, at_least: float | None, at_most: float | None, above: float | None = None
) -> None:
    if isinstance(value, (torch.SymInt, torch.SymFloat)):
        return
    if (at_least is not None and value < at_least) or (at_most is not None and value > at_most):
        raise ArgumentError(f"{name} must be {noun}{_range_text(at_least, at_most, above)}; got {describe(value)}.")


def _is_finite(value: Any) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an int beyond the largest float
        return False


def _matches_shape(value: Tensor, shape: tuple[int | str, ...]) -> bool:
    sizes = zip(value.shape, shape, strict=False)
    return value.dim() == len(shape) and all(isinstance(size, str) or n == size for n, size in sizes)


def _matches_dtype(value: Tensor, dtype_kind: str) -> bool:
    if dtype_kind == "floats":
        return value.is_floating_point()
    if dtype_kind == "booleans":
        return value.dtype == torch.bool
    return is_integer_tensor(value)


def _format_shape(shape: tuple[int | str, ...]) -> str:
    return f"({', '.join(str(size) for size in shape)}{',' if len(shape) == 1 else ''})"


def _of_shape_text(shape: tuple[int | str, ...] | None) -> str:
    return "" if shape is None else f" of shape {_format_shape(shape)}"
