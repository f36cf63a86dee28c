"""Entries of the table of valid calls: a public callable, how to call it, and reviewed odd values that it accepts."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Arguments:
    """Positional and keyword arguments of one call."""

    positional: tuple[Any, ...]
    keywords: dict[str, Any]


@dataclass(frozen=True)
class ValidCall:
    """One public callable with arguments that it accepts.

    name: the public dotted name; a method is `module.Class.method`.
    function: returns the callable, a fresh bound method where calls change the object.
    arguments: returns the arguments, made anew for each call.
    then: uses the result (a mask in `attention`, a generator to its end), because some arguments are only read there.
    accepts: argument -> labels of odd values that the call may accept, reviewed by hand.
    skip: arguments that are not replaced, with a reason.
    """

    name: str
    function: Callable[[], Callable[..., Any]]
    arguments: Callable[[], Arguments]
    then: Callable[[Any], object] | None = None
    accepts: Mapping[str, str] = field(default_factory=dict)
    skip: Mapping[str, str] = field(default_factory=dict)


class Enough(BaseException):
    """Raised by a callback of a valid call that would take long: the arguments were accepted."""


def given(*positional: Any, **keywords: Any) -> Arguments:
    return Arguments(positional, keywords)
