"""`@check_types`: compares the arguments of a function with its annotations, before the function runs.

The checks are compiled once, from the annotations; a call runs one small function for each argument. Ranges, shapes and
everything that concerns several arguments together stay in the function itself. A graph of torch.compile has no checks.
"""

import inspect
import math
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache, wraps
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin

import numpy as np
import torch
from torch import Tensor

from regard.checks import describe
from regard.errors import SpecError

P = ParamSpec("P")
R = TypeVar("R")
Accepts = Callable[[Any], bool]
Check = tuple[Accepts, str]  # whether a value fits, and what completes "must be"
MAX_SIZE = 2**63  # larger whole numbers do not fit into a size or an index


def check_types(function: Callable[P, R]) -> Callable[P, R]:
    """The function, which refuses arguments of a wrong type with a `SpecError` that names the argument.

    Tensors, whole numbers, finite numbers, booleans, text, functions, classes, and sequences and unions of these are
    checked. A parameter annotated as `Any`, or not at all, is not.

    >>> @check_types
    ... def repeat(text: str, times: int = 2) -> str:
    ...     return text * times
    >>> repeat("ab", 1.5)
    Traceback (most recent call last):
    regard.errors.SpecError: times must be a whole number; got 1.5.
    """
    parameters = inspect.signature(function).parameters.values()
    by_name = {p.name: check for p in parameters if (check := _check_of(function, p)) is not None}
    places = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    rest = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), None)

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if not torch.compiler.is_compiling():
            for name, value in zip(places, args, strict=False):
                _require(by_name, name, value)
            for value in args[len(places) :]:
                _require(by_name, rest, value)
            for name, value in kwargs.items():
                _require(by_name, name, value)
        return function(*args, **kwargs)

    return call


def check_fields(value: Any) -> None:
    """The same for a dataclass: to be called in its `__post_init__`."""
    for name, check in _of_fields(value.__class__).items():
        _require({name: check}, name, getattr(value, name))


def check_signature(function: Any, name: str, *arguments: str) -> Any:
    """The function, which can be called with this many arguments."""
    text = f"a function ({', '.join(arguments)})"
    if not callable(function):
        raise SpecError(f"{name} must be {text}; got {describe(function)}.")
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError as problem:
        raise SpecError(f"{name} must be {text}; got one that does not take these arguments: {problem}.") from None
    except ValueError:  # a function in C without a signature; a class without one is no function
        if isinstance(function, type):
            raise SpecError(f"{name} must be {text}; got the class {function.__name__}.") from None
    return function


def _require(checks: Mapping[str, Check], name: str | None, value: Any) -> None:
    check = checks.get(name or "")
    if check is not None and not check[0](value):
        raise SpecError(f"{name} must be {check[1]}; got {describe(value)}.")


@lru_cache(maxsize=256)
def _of_fields(cls: type) -> dict[str, Check]:
    parameters = inspect.signature(cls).parameters.values()
    checks = {p.name: _check_of(cls, p) for p in parameters if not p.name.startswith("_")}
    return {name: check for name, check in checks.items() if check is not None}


def _check_of(function: Callable[..., Any], parameter: inspect.Parameter) -> Check | None:
    annotation = parameter.annotation
    if isinstance(annotation, str):
        try:
            annotation = eval(annotation, getattr(function, "__globals__", {}))  # our own source
        except NameError:
            return None
    return None if annotation is inspect.Parameter.empty else _check(annotation)


def _check(annotation: Any) -> Check | None:
    """The check of one annotation; None where anything may be meant."""
    if annotation is Any:
        return None
    if annotation in _PLAIN:
        return _PLAIN[annotation]
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        return _union([_check(one) for one in inner])
    if isinstance(annotation, TypeVar):
        inner = annotation.__constraints__ or (annotation.__bound__ or Any,)
        return _union([_check(one) for one in inner])
    if origin is np.ndarray:
        return (
            lambda value: isinstance(value, np.ndarray) and value.dtype.kind not in "OSUc"
        ), "an array of real numbers"
    if origin is Literal:
        return (lambda value: any(type(value) is type(one) and value == one for one in inner)), (
            f"one of {', '.join(map(repr, inner))}"
        )
    if origin is Callable:
        return callable, "a function"
    if origin in (Sequence, list):
        return _sequence(_check(inner[0]))
    if origin is Iterable:
        return (lambda value: isinstance(value, Iterable)), "a sequence"
    if origin is tuple and inner and inner[-1] is not Ellipsis:
        return _tuple([_check(one) for one in inner])
    if origin in (Mapping, dict):
        return (lambda value: isinstance(value, Mapping)), "a mapping"
    if isinstance(annotation, type) and not getattr(annotation, "_is_protocol", False):
        return (lambda value: isinstance(value, annotation)), f"a {annotation.__name__}"
    return None


def _union(checks: list[Check | None]) -> Check | None:
    known = [check for check in checks if check is not None]
    if len(known) < len(checks):
        return None
    return (lambda value: any(accepts(value) for accepts, _ in known)), " or ".join(text for _, text in known)


def _sequence(check: Check | None) -> Check:
    """A list, a tuple, or a tensor of one dimension; text is no sequence of texts."""
    accepts: Accepts = (lambda _: True) if check is None else check[0]
    plural = {"a whole number": "whole numbers", "a number": "numbers", "a string": "strings", "a tensor": "tensors"}
    text = "a sequence" if check is None else f"a sequence of {plural.get(check[1], f'what is {check[1]}')}"

    def fits(value: Any) -> bool:
        if isinstance(value, (Tensor, np.ndarray)):
            return value.ndim == 1 and all(accepts(one) for one in value.tolist())
        return (
            isinstance(value, Sequence) and not isinstance(value, (str, bytes)) and all(accepts(one) for one in value)
        )

    return fits, text


def _tuple(checks: list[Check | None]) -> Check:
    def fits(value: Any) -> bool:
        return (
            isinstance(value, (tuple, list))
            and len(value) == len(checks)
            and all(check is None or check[0](one) for check, one in zip(checks, value, strict=True))
        )

    inner = ", ".join("anything" if check is None else check[1] for check in checks)
    return fits, f"a tuple of {inner}"


def _is_whole(value: Any) -> bool:
    if isinstance(value, torch.SymInt):
        return True
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool) and abs(int(value)) < MAX_SIZE


def _is_number(value: Any) -> bool:
    if isinstance(value, (torch.SymInt, torch.SymFloat)):
        return True
    return _is_whole(value) or (isinstance(value, (float, np.floating)) and math.isfinite(value))


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor) and not value.is_complex()


_PLAIN: dict[Any, Check] = {
    Tensor: (_is_tensor, "a tensor of real numbers"),
    int: (_is_whole, "a whole number"),
    float: (_is_number, "a finite number"),
    bool: (lambda value: isinstance(value, (bool, np.bool_)), "True or False"),
    str: (lambda value: isinstance(value, str), "a string"),
    None: (lambda value: value is None, "None"),
    types.NoneType: (lambda value: value is None, "None"),
    Path: (lambda value: isinstance(value, (str, Path)), "a path"),
}
