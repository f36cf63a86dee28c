"""`@check_types`: check the types of arguments against a function's annotations before the function runs.

The checks are built once from the annotations; a call runs one predicate per argument. Ranges, shapes and conditions on
several arguments stay in the function itself. Calls that torch.compile traces are not checked.
"""

import inspect
import math
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin

import numpy as np
import torch
from torch import Tensor

from regard.cache import memoize
from regard.checks import describe
from regard.errors import ArgumentError

P = ParamSpec("P")
R = TypeVar("R")
Predicate = Callable[[Any], bool]
Check = tuple[Predicate, str]  # the predicate, and the text after "must be" in the error
MAX_INT_MAGNITUDE = 2**63  # larger integers do not fit into a size or an index


class _UncheckedMarker:
    """Marks an annotation that `check_types` skips: `Annotated[..., UNCHECKED]`. The function checks it itself."""

    def __repr__(self) -> str:
        return "UNCHECKED"


UNCHECKED = _UncheckedMarker()


def check_types(function: Callable[P, R]) -> Callable[P, R]:
    """Wrap a function so that an argument of the wrong type raises an `ArgumentError` that names the argument.

    Tensors, ints, finite floats, booleans, strings, functions, classes, and sequences and unions of these are checked.
    Parameters without an annotation, or annotated as `Any`, `object` or `Annotated[..., UNCHECKED]`, are not checked.

    >>> @check_types
    ... def repeat(text: str, times: int = 2) -> str:
    ...     return text * times
    >>> repeat("ab", 1.5)
    Traceback (most recent call last):
    regard.errors.ArgumentError: times must be an integer; got 1.5.
    """
    parameters = inspect.signature(function).parameters.values()
    by_name = {p.name: check for p in parameters if (check := _parameter_check(function, p)) is not None}
    positional = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    variadic = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), None)

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if not torch.compiler.is_compiling():
            for name, value in zip(positional, args, strict=False):
                _require(by_name, name, value)
            for value in args[len(positional) :]:
                _require(by_name, variadic, value)
            for name, value in kwargs.items():
                _require(by_name, name, value)
        return function(*args, **kwargs)

    return call


def check_fields(value: Any) -> None:
    """Check the fields of a dataclass against their annotations; call it in `__post_init__`."""
    for name, check in _field_checks(value.__class__).items():
        _require({name: check}, name, getattr(value, name))


def check_signature(function: Any, name: str, *arguments: str) -> Any:
    """Return the function, which must accept these positional arguments."""
    text = f"a function ({', '.join(arguments)})"
    if not callable(function):
        raise ArgumentError(f"{name} must be {text}; got {describe(function)}.")
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError as error:
        raise ArgumentError(f"{name} must be {text}; got one that does not take these arguments: {error}.") from None
    except ValueError:  # a C function without a signature is accepted, a class without one is not
        if isinstance(function, type):
            raise ArgumentError(f"{name} must be {text}; got the class {function.__name__}.") from None
    return function


def _require(checks: Mapping[str, Check], name: str | None, value: Any) -> None:
    check = checks.get(name or "")
    if check is not None and not check[0](value):
        raise ArgumentError(f"{name} must be {check[1]}; got {describe(value)}.")


@memoize(256)
def _field_checks(cls: type) -> dict[str, Check]:
    parameters = inspect.signature(cls).parameters.values()
    checks = {p.name: _parameter_check(cls, p) for p in parameters if not p.name.startswith("_")}
    return {name: check for name, check in checks.items() if check is not None}


def _parameter_check(function: Callable[..., Any], parameter: inspect.Parameter) -> Check | None:
    annotation = parameter.annotation
    if isinstance(annotation, str):
        try:
            annotation = eval(
                annotation, getattr(function, "__globals__", {})
            )  # annotations come from the decorated source
        except NameError:
            return None
    return None if annotation is inspect.Parameter.empty else _annotation_check(annotation)


def _annotation_check(annotation: Any) -> Check | None:
    """Return the check of an annotation; None if every value is accepted."""
    if annotation is Any or annotation is object:
        return None
    if annotation in _BASIC_CHECKS:
        return _BASIC_CHECKS[annotation]
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return None if UNCHECKED in annotation.__metadata__ else _annotation_check(inner[0])
    if origin in (Union, types.UnionType):
        return _union_check([_annotation_check(option) for option in inner])
    if isinstance(annotation, TypeVar):
        inner = annotation.__constraints__ or (annotation.__bound__ or Any,)
        return _union_check([_annotation_check(option) for option in inner])
    if origin is np.ndarray:
        return (
            lambda value: isinstance(value, np.ndarray) and value.dtype.kind not in "OSUc"
        ), "an array of real numbers"
    if origin is Literal:
        return (lambda value: any(type(value) is type(option) and value == option for option in inner)), (
            f"one of {', '.join(map(repr, inner))}"
        )
    if origin is Callable:
        return callable, "a function"
    if origin in (Sequence, list):
        return _sequence_check(_annotation_check(inner[0]))
    if origin is Iterable:
        return (lambda value: isinstance(value, Iterable)), "a sequence"
    if origin is tuple and inner and inner[-1] is not Ellipsis:
        return _tuple_check([_annotation_check(item) for item in inner])
    if origin in (Mapping, dict):
        return (lambda value: isinstance(value, Mapping)), "a mapping"
    if isinstance(annotation, type) and not getattr(annotation, "_is_protocol", False):
        return (lambda value: isinstance(value, annotation)), f"a {annotation.__name__}"
    return None


def _union_check(checks: list[Check | None]) -> Check | None:
    present = [check for check in checks if check is not None]
    if len(present) < len(checks):
        return None
    return (lambda value: any(accepts(value) for accepts, _ in present)), " or ".join(text for _, text in present)


def _sequence_check(check: Check | None) -> Check:
    """Accept lists, tuples, and 1-D tensors and arrays; a string does not count as a sequence of strings."""
    accepts: Predicate = (lambda _: True) if check is None else check[0]
    plural = {
        "an integer": "integers",
        "a finite number": "finite numbers",
        "a string": "strings",
        "a tensor of real numbers": "tensors of real numbers",
    }
    text = "a sequence" if check is None else f"a sequence of {plural.get(check[1], f'values that are {check[1]}')}"

    def fits(value: Any) -> bool:
        if isinstance(value, (Tensor, np.ndarray)):
            return value.ndim == 1 and all(accepts(item) for item in value.tolist())
        return (
            isinstance(value, Sequence) and not isinstance(value, (str, bytes)) and all(accepts(item) for item in value)
        )

    return fits, text


def _tuple_check(checks: list[Check | None]) -> Check:
    def fits(value: Any) -> bool:
        return (
            isinstance(value, (tuple, list))
            and len(value) == len(checks)
            and all(check is None or check[0](item) for check, item in zip(checks, value, strict=True))
        )

    inner = ", ".join("anything" if check is None else check[1] for check in checks)
    return fits, f"a tuple of {inner}"


def _is_integer(value: Any) -> bool:
    if isinstance(value, torch.SymInt):
        return True
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool) and abs(int(value)) < MAX_INT_MAGNITUDE


def _is_number(value: Any) -> bool:
    if isinstance(value, (torch.SymInt, torch.SymFloat)):
        return True
    return _is_integer(value) or (isinstance(value, (float, np.floating)) and math.isfinite(value))


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor) and not value.is_complex()


_BASIC_CHECKS: dict[Any, Check] = {
    Tensor: (_is_tensor, "a tensor of real numbers"),
    int: (_is_integer, "an integer"),
    float: (_is_number, "a finite number"),
    bool: (lambda value: isinstance(value, (bool, np.bool_)), "True or False"),
    str: (lambda value: isinstance(value, str), "a string"),
    None: (lambda value: value is None, "None"),
    types.NoneType: (lambda value: value is None, "None"),
    Path: (lambda value: isinstance(value, (str, Path)), "a path"),
}
