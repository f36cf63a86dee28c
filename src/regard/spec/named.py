"""What a mask, a score or a weighing was made by: the name of its maker, and what that was given.

A graph of torch.compile or torch.export holds tensors, numbers and text, but no formula. So inside such a graph makers
only say their name; `spell` writes it down as text, and `read_back` makes what it names, in any process.
"""

import collections.abc
import inspect
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache, wraps
from types import UnionType
from typing import Any, ParamSpec, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import numpy as np
import torch
from torch import Tensor

from regard.errors import SpecError
from regard.spec.array import as_tensor
from regard.spec.nodes import MAX_NODES, from_nodes, to_nodes
from regard.spec.term import GREATEST_WHOLE, LEAST_WHOLE, Term

P = ParamSpec("P")
R = TypeVar("R")

_PLAIN = (type(None), bool, int, float, str, tuple, list, Tensor, np.ndarray, np.generic, Term)
_makers: dict[str, Callable[..., Any]] = {}


MAX_PARTS = 2000  # makers in one text
MAX_DEPTH = 100  # makers and lists inside one another
MAX_LETTERS = 2**22  # of a text that is read
MAX_MESSAGE = 500  # letters of an error about a text, which may hold anything


class SpelledTerm:
    """A formula and its text, which is made outside of graphs: torch.compile would have to read every node."""

    def __init__(self, term: Term, text: str | None) -> None:
        self.term = term
        self.text = text


class Named:
    """A mask, score or weighing that is not made yet. Asked for anything but what graphs need, it is made.

    `parts` counts the makers that it names, and `depth` how many of them lie inside one another.
    """

    def __init__(self, maker: str, given: tuple[Any, ...], options: dict[str, Any]) -> None:
        self.maker = maker
        self.given = given
        self.options = options
        self.parts, self.depth = 1, 1
        for value in (*given, *options.values()):
            if isinstance(value, _PLAIN):
                continue
            inner = value if isinstance(value, Named) else getattr(value, "named", None)
            if isinstance(inner, Named):
                self.parts += inner.parts
                self.depth = max(self.depth, 1 + inner.depth)

    def made(self) -> Any:
        given = [x.term if isinstance(x, SpelledTerm) else x for x in self.given]
        result = _makers[self.maker](*given, **self.options)
        return result.made() if isinstance(result, Named) else result

    def __and__(self, other: Any) -> "Named":
        return Named("mask.both", (self, other), {})

    def __or__(self, other: Any) -> "Named":
        return Named("mask.either", (self, other), {})

    def __rand__(self, other: Any) -> "Named":
        return Named("mask.both", (other, self), {})

    def __ror__(self, other: Any) -> "Named":
        return Named("mask.either", (other, self), {})

    def __invert__(self) -> "Named":
        return Named("mask.negated", (self,), {})

    def then(self, rule: Any) -> "Named":
        return Named("score.changed", (self, rule), {})

    def __str__(self) -> str:
        return str(self.made())

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.made(), name)


def named(make: Callable[P, R]) -> Callable[P, R]:
    """A maker whose results know their name; inside a graph that is being made it returns the name alone."""
    name = f"{make.__module__.rpartition('.')[2]}.{make.__name__.lstrip('_')}"
    _makers[name] = make

    @wraps(make)
    def call(*given: P.args, **options: P.kwargs) -> R:
        if torch.compiler.is_compiling():
            return cast(R, Named(name, given, options))
        made = make(*given, **options)
        if all(_has_name(x) for x in (*given, *options.values())):
            kept = {key: _kept(value) for key, value in options.items()}
            object.__setattr__(made, "named", Named(name, tuple(_kept(value) for value in given), kept))
        return made

    return call


def _has_name(value: Any) -> bool:
    return isinstance(value, _PLAIN) or getattr(value, "named", None) is not None


def _kept(value: Any) -> Any:
    """What a maker was given, so that nobody can change it later and a graph can take it."""
    if isinstance(value, (list, tuple)):
        return tuple(_kept(each) for each in value)
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Term):
        return _spelled_term(value)
    return as_tensor(value, "an array") if isinstance(value, np.ndarray) else value


def unnamed(value: R) -> R:
    """What is only named, made; anything else as it is."""
    return cast(R, value.made()) if isinstance(value, Named) else value


class Unspeakable(Exception):
    """There is no name for something: nothing that a caller sees, but a sign to go another way."""


def spell(value: Any, tensors: list[Tensor], numbers: list[int]) -> str:
    """A value as text; its tensors and whole numbers are added to the lists, and the text says which they are.

    torch.compile reads this function, so it is written in the simplest way.
    """
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, torch.SymInt)):
        numbers.append(value)  # type: ignore[arg-type]  # a number that is not known yet is one, too
        return f'{{"number": {len(numbers) - 1}}}'
    if isinstance(value, float):
        return f"{float(value)}".replace("inf", "Infinity").replace("nan", "NaN")
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if isinstance(value, Tensor):
        tensors.append(value)
        return f'{{"tensor": {len(tensors) - 1}}}'
    if isinstance(value, (tuple, list)):
        return '{"list": ' + _spelled_list(value, tensors, numbers) + "}"
    if isinstance(value, Term):
        value = _spelled_term(value)
    if isinstance(value, SpelledTerm):
        if value.text is None:
            raise Unspeakable(f"a formula of more than {MAX_NODES} operations")
        return value.text
    name = value if isinstance(value, Named) else getattr(value, "named", None)
    if name is None:
        raise Unspeakable("a function or another thing that has no name")
    if name.parts > MAX_PARTS or name.depth > MAX_DEPTH:
        raise Unspeakable(f"more than {MAX_PARTS} parts, or more than {MAX_DEPTH} inside one another")
    given = _spelled_list(name.given, tensors, numbers)
    options = [f'"{key}": {spell(option, tensors, numbers)}' for key, option in name.options.items()]
    return f'["{name.maker}", {given}, {{{", ".join(options)}}}]'


def _spelled_list(values: Sequence[Any], tensors: list[Tensor], numbers: list[int]) -> str:
    return "[" + ", ".join([spell(value, tensors, numbers) for value in values]) + "]"


@lru_cache(maxsize=64)
def _spelled_term(term: Term) -> SpelledTerm:
    nodes = to_nodes(term)
    return SpelledTerm(term, f'{{"formula": {json.dumps(nodes)}}}' if len(nodes) <= MAX_NODES else None)


def read_back(text: str, tensors: Sequence[Tensor], numbers: Sequence[int]) -> Any:
    """What was spelled, made again: of these tensors and whole numbers.

    The text may come from a file that anyone wrote. Every text gives an object that is safe to compute with, or a
    SpecError.
    """
    return _Reader(tensors, numbers).read(_parsed(text), 0)


def read_options(text: str, tensors: Sequence[Tensor], numbers: Sequence[int], names: Sequence[str]) -> dict[str, Any]:
    """Options by their names, from the text of a list of them."""
    options = read_back(text, tensors, numbers)
    if not isinstance(options, list) or len(options) != len(names):
        got = f"{len(options)} values" if isinstance(options, list) else type(options).__name__
        raise SpecError(f"the text of a call must list its options, {', '.join(names)}; got {got}.")
    return dict(zip(names, options, strict=True))


@lru_cache(maxsize=64)
def _parsed(text: str) -> Any:
    if not isinstance(text, str) or len(text) > MAX_LETTERS:
        got = f"{len(text)} letters" if isinstance(text, str) else type(text).__name__
        raise SpecError(f"the text of a call must be a string of at most {MAX_LETTERS} letters; got {got}.")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SpecError(f"the text of a call must be JSON; got {text[:60]!r} ({type(error).__name__}).") from None


class _Reader:
    """Makes the parts of one text; counts them, so that a text cannot ask for endless work."""

    def __init__(self, tensors: Sequence[Tensor], numbers: Sequence[int]) -> None:
        self.tensors, self.numbers = tensors, numbers
        self.parts = 0

    def read(self, part: Any, depth: int) -> Any:
        if depth > 2 * MAX_DEPTH:
            raise SpecError(f"the text of a call must nest at most {2 * MAX_DEPTH} parts; got more.")
        if isinstance(part, dict):
            return self._marked(part, depth)
        if isinstance(part, list):
            return self._made(part, depth)
        if isinstance(part, int) and not isinstance(part, bool):
            return self._whole(part)
        return part

    def _marked(self, part: dict[str, Any], depth: int) -> Any:
        if len(part) == 1:
            ((mark, content),) = part.items()
            if mark == "number":
                return self._whole(self._numbered(mark, content, self.numbers))
            if mark == "tensor":
                return self._numbered(mark, content, self.tensors)
            if mark == "list" and isinstance(content, list):
                return [self.read(each, depth + 1) for each in content]
            if mark == "formula":
                with _refusing("a formula"):
                    return from_nodes(content)
        raise SpecError(f"a part must be marked number, tensor, list or formula; got {', '.join(part)[:60]!r}.")

    def _numbered(self, mark: str, place: Any, values: Sequence[Any]) -> Any:
        if not isinstance(place, int) or isinstance(place, bool) or not 0 <= place < len(values):
            raise SpecError(f"a {mark} must be one of the {len(values)} that come with the text; got {place!r:.60}.")
        return values[place]

    def _whole(self, number: Any) -> int:
        if isinstance(number, float) or not LEAST_WHOLE <= int(number) <= GREATEST_WHOLE:
            raise SpecError(f"a whole number of a call must fit into 64 bits; got {number!r:.60}.")
        return int(number)

    def _made(self, part: list[Any], depth: int) -> Any:
        self.parts += 1
        if self.parts > MAX_PARTS:
            raise SpecError(f"the text of a call must name at most {MAX_PARTS} parts; got more.")
        if len(part) != 3 or not (isinstance(part[0], str) and isinstance(part[1], list) and isinstance(part[2], dict)):
            raise SpecError("a part must be the name of a maker, its arguments and its options; got another list.")
        maker, given, options = part
        if maker not in _makers:
            raise SpecError(f"a question must name masks, scores and weighings of regard; got {maker[:60]!r}.")
        arguments = [self.read(each, depth + 1) for each in given]
        chosen = {key: self.read(each, depth + 1) for key, each in options.items()}
        _check_types(maker, arguments, chosen)
        with _refusing(maker):
            return Named(maker, tuple(arguments), chosen).made()


@contextmanager
def _refusing(maker: str) -> Iterator[None]:
    """Turns every error into a SpecError: a text that cannot be made is refused, whatever is wrong with it."""
    try:
        yield
    except SpecError as error:
        if len(str(error)) <= MAX_MESSAGE:
            raise
        raise SpecError(f"{error!s:.{MAX_MESSAGE}} ...") from None
    except Exception as error:
        raise SpecError(f"{maker} cannot be made from this text: {type(error).__name__}: {error!s:.200}") from None


@lru_cache(maxsize=256)
def _hints(maker: str) -> tuple[inspect.Signature, dict[str, Any]]:
    return inspect.signature(_makers[maker]), get_type_hints(_makers[maker])


def _check_types(maker: str, given: Sequence[Any], options: dict[str, Any]) -> None:
    signature, hints = _hints(maker)
    try:
        bound = signature.bind(*given, **options)
    except TypeError as error:
        raise SpecError(
            f"{maker} must be given the arguments it takes, {signature}; got others ({error!s:.200})."
        ) from None
    for name, value in bound.arguments.items():
        if not _fits(value, hints.get(name, Any)):
            raise SpecError(f"{name} of {maker} must be {hints[name]}; got {type(value).__name__}.")


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value from a text is of an annotated type."""
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        return any(_fits(value, each) for each in get_args(hint))
    if hint is Any:
        return True
    if hint in (int, float):
        return isinstance(value, (int, hint)) and not isinstance(value, bool)
    if origin is not None and isinstance(value, (list, tuple)):
        inner = [each for each in get_args(hint) if each is not Ellipsis]
        return origin is not collections.abc.Callable and all(_fits(v, h) for v in value for h in inner[:1])
    return isinstance(value, origin or hint)
