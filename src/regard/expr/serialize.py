"""Serialize masks, scores and normalizers as calls of their constructors: names and arguments.

A graph of torch.compile or torch.export holds tensors, numbers and text, but no expressions. While such a graph is
traced, a constructor returns a `ConstructorCall` instead. `serialize` writes the call as text, and `deserialize`
constructs the object from the text, in any process.
"""

import collections.abc
import inspect
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from types import UnionType
from typing import Any, ParamSpec, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import numpy as np
import torch
from torch import Tensor

from regard.cache import memoize
from regard.errors import ArgumentError
from regard.expr.ir import INT64_MAX, INT64_MIN, Expr
from regard.expr.node_list import MAX_NODES, from_nodes, to_nodes
from regard.tensors.convert import as_tensor

P = ParamSpec("P")
R = TypeVar("R")

_PLAIN_TYPES = (type(None), bool, int, float, str, tuple, list, Tensor, np.ndarray, np.generic, Expr)
_constructors: dict[str, Callable[..., Any]] = {}
_examples: dict[str, str] = {}

MAX_CONSTRUCTOR_CALLS = 2000  # in one text
MAX_NESTING_DEPTH = 100  # of constructor calls
MAX_TEXT_CHARS = 2**22
MAX_MESSAGE_CHARS = 500  # of an error that quotes an untrusted text


class SerializedExpr:
    """An expression and its text, written eagerly because torch.compile would have to trace every node."""

    def __init__(self, expr: Expr, text: str | None) -> None:
        self.expr = expr
        self.text = text


class ConstructorCall:
    """The constructor call of a mask, score or normalizer. Access to any other attribute constructs the object.

    `num_calls` is the number of nested constructor calls, itself included, and `depth` their nesting depth.
    """

    def __init__(self, constructor: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.constructor = constructor
        self.args = args
        self.kwargs = kwargs
        self.num_calls, self.depth = 1, 1
        for value in (*args, *kwargs.values()):
            if isinstance(value, _PLAIN_TYPES):
                continue
            inner = value if isinstance(value, ConstructorCall) else getattr(value, "constructor_call", None)
            if isinstance(inner, ConstructorCall):
                self.num_calls += inner.num_calls
                self.depth = max(self.depth, 1 + inner.depth)

    def construct(self) -> Any:
        args = [x.expr if isinstance(x, SerializedExpr) else x for x in self.args]
        result = _constructors[self.constructor](*args, **self.kwargs)
        return result.construct() if isinstance(result, ConstructorCall) else result

    def __and__(self, other: Any) -> "ConstructorCall":
        return ConstructorCall("mask.logical_and", (self, other), {})

    def __or__(self, other: Any) -> "ConstructorCall":
        return ConstructorCall("mask.logical_or", (self, other), {})

    def __rand__(self, other: Any) -> "ConstructorCall":
        return ConstructorCall("mask.logical_and", (other, self), {})

    def __ror__(self, other: Any) -> "ConstructorCall":
        return ConstructorCall("mask.logical_or", (other, self), {})

    def __invert__(self) -> "ConstructorCall":
        return ConstructorCall("mask.logical_not", (self,), {})

    def then(self, modifier: Any) -> "ConstructorCall":
        return ConstructorCall("score.modified", (self, modifier), {})

    def __str__(self) -> str:
        return str(self.construct())

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.construct(), name)


def example(text: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Declare how a constructor is written as text; the explorer offers the text as a choice."""

    def declare(constructor: Callable[P, R]) -> Callable[P, R]:
        _examples[_constructor_name(constructor)] = text
        return constructor

    return declare


def example_texts(module: str) -> list[str]:
    """The declared examples of a public module, such as "normalizer", in the order of their declaration."""
    return [text for name, text in _examples.items() if name.partition(".")[0] == module]


def text_constructors(module: str) -> dict[str, Callable[..., Any]]:
    """The constructors of a public module that can be written as text, by name.

    Their required arguments are numbers, strings, booleans, lists of numbers or feature maps, not functions.
    """
    return {
        name.partition(".")[2]: constructor
        for name, constructor in _constructors.items()
        if name.partition(".")[0] == module and all(_is_text_parameter(p) for p in _required_parameters(constructor))
    }


def _required_parameters(constructor: Callable[..., Any]) -> list[inspect.Parameter]:
    parameters = inspect.signature(constructor).parameters.values()
    return [p for p in parameters if p.default is inspect.Parameter.empty]


def _is_text_parameter(parameter: inspect.Parameter) -> bool:
    annotation = str(parameter.annotation)
    return "Callable" not in annotation and "Expr" not in annotation


def _constructor_name(constructor: Callable[..., Any]) -> str:
    module = constructor.__module__.rpartition(".")[2]
    # modifiers are public as `regard.score`
    return f"{'score' if module == 'score_modifier' else module}.{constructor.__name__.lstrip('_')}"


def serializable(constructor: Callable[P, R]) -> Callable[P, R]:
    """Make the results of a constructor serializable; while a graph is traced it returns a `ConstructorCall`."""
    name = _constructor_name(constructor)
    _constructors[name] = constructor

    @wraps(constructor)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if torch.compiler.is_compiling():
            return cast(R, ConstructorCall(name, args, kwargs))
        result = constructor(*args, **kwargs)
        if all(_is_serializable(x) for x in (*args, *kwargs.values())):
            frozen_args = tuple(_freeze_argument(value) for value in args)
            frozen_kwargs = {key: _freeze_argument(value) for key, value in kwargs.items()}
            object.__setattr__(result, "constructor_call", ConstructorCall(name, frozen_args, frozen_kwargs))
        return result

    return call


def _is_serializable(value: Any) -> bool:
    return isinstance(value, _PLAIN_TYPES) or getattr(value, "constructor_call", None) is not None


def _freeze_argument(value: Any) -> Any:
    """Return an immutable copy of an argument that a graph can hold."""
    if isinstance(value, (list, tuple)):
        return tuple(_freeze_argument(item) for item in value)
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Expr):
        return _serialize_expr(value)
    return as_tensor(value, "an array") if isinstance(value, np.ndarray) else value


def materialize(value: R) -> R:
    """Construct the object of a `ConstructorCall`; return any other value unchanged."""
    return cast(R, value.construct()) if isinstance(value, ConstructorCall) else value


class NotSerializable(Exception):
    """A value has no serialized form. Internal: callers fall back to another path."""


def serialize(value: Any, tensors: list[Tensor], ints: list[int]) -> str:
    """Return a value as text. Its tensors and integers are appended to the lists; the text refers to them by index.

    torch.compile traces this function, so it uses only plain Python.
    """
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, torch.SymInt)):
        ints.append(value)  # type: ignore[arg-type]  # a SymInt counts as an int
        return f'{{"int": {len(ints) - 1}}}'
    if isinstance(value, float):
        return f"{float(value)}".replace("inf", "Infinity").replace("nan", "NaN")
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if isinstance(value, Tensor):
        tensors.append(value)
        return f'{{"tensor": {len(tensors) - 1}}}'
    if isinstance(value, (tuple, list)):
        return '{"list": ' + _serialize_list(value, tensors, ints) + "}"
    if isinstance(value, Expr):
        value = _serialize_expr(value)
    if isinstance(value, SerializedExpr):
        if value.text is None:
            raise NotSerializable(f"the expression has more than {MAX_NODES} nodes")
        return value.text
    call = value if isinstance(value, ConstructorCall) else getattr(value, "constructor_call", None)
    if call is None:
        raise NotSerializable("the value is a function or was not made by a constructor of regard")
    if call.num_calls > MAX_CONSTRUCTOR_CALLS or call.depth > MAX_NESTING_DEPTH:
        raise NotSerializable(
            f"the value has more than {MAX_CONSTRUCTOR_CALLS} constructor calls, or nests deeper than "
            f"{MAX_NESTING_DEPTH}"
        )
    args = _serialize_list(call.args, tensors, ints)
    kwargs = [f'"{key}": {serialize(option, tensors, ints)}' for key, option in call.kwargs.items()]
    return f'["{call.constructor}", {args}, {{{", ".join(kwargs)}}}]'


def _serialize_list(values: Sequence[Any], tensors: list[Tensor], ints: list[int]) -> str:
    return "[" + ", ".join([serialize(value, tensors, ints) for value in values]) + "]"


@memoize(64)
def _serialize_expr(expr: Expr) -> SerializedExpr:
    nodes = to_nodes(expr)
    return SerializedExpr(expr, f'{{"expr": {json.dumps(nodes)}}}' if len(nodes) <= MAX_NODES else None)


def deserialize(text: str, tensors: Sequence[Tensor], ints: Sequence[int]) -> Any:
    """Construct the value that `serialize` wrote, from its text, tensors and integers.

    The text may come from an untrusted file: every text gives an object that is safe to use, or an `ArgumentError`.
    """
    return _ConstructorCallReader(tensors, ints).build(_parse_json(text), 0)


def deserialize_options(
    text: str, tensors: Sequence[Tensor], ints: Sequence[int], option_names: Sequence[str]
) -> dict[str, Any]:
    """Return the options by name, from the text of a list of their values."""
    options = deserialize(text, tensors, ints)
    if not isinstance(options, list) or len(options) != len(option_names):
        got = f"{len(options)} values" if isinstance(options, list) else type(options).__name__
        raise ArgumentError(f"the text of a call must list the options {', '.join(option_names)}; got {got}.")
    return dict(zip(option_names, options, strict=True))


@memoize(64)
def _parse_json(text: str) -> Any:
    if not isinstance(text, str) or len(text) > MAX_TEXT_CHARS:
        got = f"{len(text)} characters" if isinstance(text, str) else type(text).__name__
        raise ArgumentError(f"the text of a call must be a string of at most {MAX_TEXT_CHARS} characters; got {got}.")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ArgumentError(f"the text of a call must be JSON; got {text[:60]!r} ({type(error).__name__}).") from None


class _ConstructorCallReader:
    """Constructs the parts of one text and limits their number, so that a text cannot cause unbounded work."""

    def __init__(self, tensors: Sequence[Tensor], ints: Sequence[int]) -> None:
        self.tensors, self.ints = tensors, ints
        self.num_calls = 0

    def build(self, part: Any, depth: int) -> Any:
        if depth > 2 * MAX_NESTING_DEPTH:
            raise ArgumentError(f"the text of a call must nest at most {2 * MAX_NESTING_DEPTH} levels; got more.")
        if isinstance(part, dict):
            return self._build_tagged(part, depth)
        if isinstance(part, list):
            return self._build_call(part, depth)
        if isinstance(part, int) and not isinstance(part, bool):
            return self._check_int64(part)
        return part

    def _build_tagged(self, part: dict[str, Any], depth: int) -> Any:
        if len(part) == 1:
            ((tag, content),) = part.items()
            if tag == "int":
                return self._check_int64(self._entry_at(tag, content, self.ints))
            if tag == "tensor":
                return self._entry_at(tag, content, self.tensors)
            if tag == "list" and isinstance(content, list):
                return [self.build(item, depth + 1) for item in content]
            if tag == "expr":
                with _as_argument_error("an expression"):
                    return from_nodes(content)
        raise ArgumentError(f"a part must have the tag int, tensor, list or expr; got {', '.join(part)[:60]!r}.")

    def _entry_at(self, tag: str, index: Any, values: Sequence[Any]) -> Any:
        if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < len(values):
            raise ArgumentError(f"a part {tag} must be the index of one of {len(values)} values; got {index!r:.60}.")
        return values[index]

    def _check_int64(self, number: Any) -> int:
        if isinstance(number, float) or not INT64_MIN <= int(number) <= INT64_MAX:
            raise ArgumentError(f"an integer of a call must fit into 64 bits; got {number!r:.60}.")
        return int(number)

    def _build_call(self, part: list[Any], depth: int) -> Any:
        self.num_calls += 1
        if self.num_calls > MAX_CONSTRUCTOR_CALLS:
            raise ArgumentError(
                f"the text of a call must hold at most {MAX_CONSTRUCTOR_CALLS} constructor calls; got more."
            )
        if len(part) != 3 or not (isinstance(part[0], str) and isinstance(part[1], list) and isinstance(part[2], dict)):
            raise ArgumentError("a constructor call must be a list of name, arguments and options; got another list.")
        name = part[0]
        if name not in _constructors:
            raise ArgumentError(f"a constructor must be a mask, score or normalizer of regard; got {name[:60]!r}.")
        args = [self.build(item, depth + 1) for item in part[1]]
        kwargs = {key: self.build(item, depth + 1) for key, item in part[2].items()}
        _check_argument_types(name, args, kwargs)
        with _as_argument_error(name):
            return ConstructorCall(name, tuple(args), kwargs).construct()


@contextmanager
def _as_argument_error(constructor: str) -> Iterator[None]:
    """Turn every exception into an `ArgumentError` of limited length."""
    try:
        yield
    except ArgumentError as error:
        if len(str(error)) <= MAX_MESSAGE_CHARS:
            raise
        raise ArgumentError(f"{error!s:.{MAX_MESSAGE_CHARS}} ...") from None
    except Exception as error:
        raise ArgumentError(
            f"{constructor} cannot be constructed from this text: {type(error).__name__}: {error!s:.200}"
        ) from None


@memoize(256)
def _signature_and_hints(constructor: str) -> tuple[inspect.Signature, dict[str, Any]]:
    return inspect.signature(_constructors[constructor]), get_type_hints(_constructors[constructor])


def _check_argument_types(constructor: str, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    signature, hints = _signature_and_hints(constructor)
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        raise ArgumentError(
            f"the arguments of {constructor} must match {signature}; got others ({error!s:.200})."
        ) from None
    for name, value in bound.arguments.items():
        if not _matches_hint(value, hints.get(name, Any)):
            raise ArgumentError(f"{name} of {constructor} must be {hints[name]}; got {type(value).__name__}.")


def _matches_hint(value: Any, hint: Any) -> bool:
    """Return whether a deserialized value has the annotated type."""
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        return any(_matches_hint(value, option) for option in get_args(hint))
    if hint is Any:
        return True
    if hint in (int, float):
        return isinstance(value, (int, hint)) and not isinstance(value, bool)
    if origin is not None and isinstance(value, (list, tuple)):
        inner = [item for item in get_args(hint) if item is not Ellipsis]
        return origin is not collections.abc.Callable and all(_matches_hint(v, h) for v in value for h in inner[:1])
    return isinstance(value, origin or hint)
