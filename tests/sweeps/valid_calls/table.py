"""Entries of the table of valid calls: a public callable, valid arguments, and unusual values that it may accept."""

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
    arguments: returns the arguments, created for each call.
    use: uses the result (a mask in `attention`, a generator to its end), because some arguments are only read there.
    accepts: labels of unusual values that the call may accept, reviewed by hand, by argument.
    skip: the reason why an argument is not replaced, by argument.
    """

    name: str
    function: Callable[[], Callable[..., Any]]
    arguments: Callable[[], Arguments]
    use: Callable[[Any], object] | None = None
    accepts: Mapping[str, str] = field(default_factory=dict)
    skip: Mapping[str, str] = field(default_factory=dict)


class Enough(BaseException):
    """Raised by a callback to end a slow valid call whose arguments were accepted."""


def args(*positional: Any, **keywords: Any) -> Arguments:
    return Arguments(positional, keywords)
