"""Who is told of calls: a recording hears every question that `attention` is asked while it runs, in its thread."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

# is given a call's arguments by name, and what it returns the answer; that may give another one in its place
Listener = Callable[[dict[str, Any]], Callable[[Any], Any]]

_listeners: ContextVar[tuple[Listener, ...]] = ContextVar("listeners", default=())


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Inside, the listener is told of every call before it is answered, and of the answer."""
    token = _listeners.set((*_listeners.get(), listener))
    try:
        yield
    finally:
        _listeners.reset(token)


def listeners() -> tuple[Listener, ...]:
    return _listeners.get()


@contextmanager
def unheard() -> Iterator[None]:
    """Inside, nobody is told."""
    token = _listeners.set(())
    try:
        yield
    finally:
        _listeners.reset(token)
