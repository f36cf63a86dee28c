"""What a mask, a score or a weighing was made by: the name of its maker, and what that was given.

A graph of torch.compile or torch.export holds tensors, numbers and text, but no formula. So inside such a graph makers
only say their name; `spell` writes it down as text, and `read_back` makes what it names, in any process.
"""

import json
from collections.abc import Callable, Sequence
from functools import lru_cache, wraps
from typing import Any, ParamSpec, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from regard.errors import SpecError
from regard.spec.array import as_tensor
from regard.spec.term import Term, term_of

P = ParamSpec("P")
R = TypeVar("R")

_PLAIN = (type(None), bool, int, float, str, tuple, list, Tensor, np.ndarray, np.generic, Term)
_makers: dict[str, Callable[..., Any]] = {}


class Named:
    """A mask, score or weighing that is not made yet. Asked for anything but what graphs need, it is made."""

    def __init__(self, maker: str, given: tuple[Any, ...], options: dict[str, Any]) -> None:
        self.maker = maker
        self.given = given
        self.options = options

    def made(self) -> Any:
        result = _makers[self.maker](*self.given, **self.options)
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
        return f'"{value}"'
    if isinstance(value, Tensor):
        tensors.append(value)
        return f'{{"tensor": {len(tensors) - 1}}}'
    if isinstance(value, (tuple, list)):
        return '{"list": ' + _spelled_list(value, tensors, numbers) + "}"
    if isinstance(value, Term):
        return _spelled_term(value)
    name = value if isinstance(value, Named) else getattr(value, "named", None)
    if name is None:
        raise Unspeakable("a function or another thing that has no name")
    given = _spelled_list(name.given, tensors, numbers)
    options = [f'"{key}": {spell(option, tensors, numbers)}' for key, option in name.options.items()]
    return f'["{name.maker}", {given}, {{{", ".join(options)}}}]'


def _spelled_list(values: Sequence[Any], tensors: list[Tensor], numbers: list[int]) -> str:
    return "[" + ", ".join([spell(value, tensors, numbers) for value in values]) + "]"


def _spelled_term(term: Term) -> str:
    args = ", ".join([_spelled_term(each) for each in term.args])
    value = term.value
    if not isinstance(value, int) or isinstance(value, bool):  # the whole numbers of a formula are part of its text
        value = spell(value, [], [])
    return f'{{"term": ["{term.op}", [{args}], "{term.kind}", {value}]}}'


def read_back(text: str, tensors: Sequence[Tensor], numbers: Sequence[int]) -> Any:
    """What was spelled, made again: of these tensors and whole numbers."""
    return _made(_parsed(text), tensors, numbers)


@lru_cache(maxsize=256)
def _parsed(text: str) -> Any:
    return json.loads(text)


def _made(part: Any, tensors: Sequence[Tensor], numbers: Sequence[int]) -> Any:
    if isinstance(part, dict):
        ((kind, content),) = part.items()
        if kind == "number":
            return int(numbers[content])
        if kind == "term":
            op, args, of, value = content
            return term_of(op, tuple(_made(each, (), ()) for each in args), of, value)
        return tensors[content] if kind == "tensor" else [_made(each, tensors, numbers) for each in content]
    if not isinstance(part, list):
        return part
    maker, given, options = part
    if maker not in _makers:
        raise SpecError(f"a question must name masks, scores and weighings of regard; got {maker!r}.")
    arguments = [_made(each, tensors, numbers) for each in given]
    return Named(maker, tuple(arguments), {key: _made(each, tensors, numbers) for key, each in options.items()}).made()
