"""Functions of other packages, overridden in one thread at a time.

A package looks its functions up by name, and all threads share that name. So the name gets one dispatcher while any
thread overrides it, and each thread has its own overrides behind it. The last thread to leave restores the original.
Threads may enter and leave in any order.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from typing import Any

Function = Callable[..., Any]
Override = Callable[..., Any]  # called with the function that it overrides, then with the arguments

Key = tuple[int, str]


class _ThreadOverrides(threading.local):
    def __init__(self) -> None:
        self.of: dict[Key, tuple[Override, ...]] = {}  # from the outermost in


class _Dispatcher:
    """What a name stands for while some thread overrides it: the function, and how many overrides there are."""

    def __init__(self, owner: Any, name: str) -> None:
        self.owner, self.name, self.users = owner, name, 0
        self.original: Function = getattr(owner, name)
        self.function = _dispatching(self.original, (id(owner), name))


_lock = threading.Lock()
_dispatchers: dict[Key, _Dispatcher] = {}
_overrides = _ThreadOverrides()


@contextmanager
def overridden(owner: Any, name: str, override: Override) -> Iterator[None]:
    """Inside, calls of `owner.name` in this thread run `override(function, *args, **kwargs)`.

    `function` is the override outside of this one, or the original function. Other threads run what they ran before.
    """
    key = id(owner), name
    entry = partial(override)  # an object of its own, also where one override is entered twice
    _install(owner, name)
    _overrides.of[key] = (*_overrides.of.get(key, ()), entry)
    try:
        yield
    finally:
        rest = tuple(each for each in _overrides.of[key] if each is not entry)
        if rest:
            _overrides.of[key] = rest
        else:
            del _overrides.of[key]
        _uninstall(key)


def original_of(function: Any) -> Any:
    """The function behind a dispatcher; any other object as it is."""
    return getattr(function, "_regard_original", function) if callable(function) else function


def _install(owner: Any, name: str) -> None:
    key = id(owner), name
    with _lock:
        if key not in _dispatchers:
            _dispatchers[key] = _Dispatcher(owner, name)
            setattr(owner, name, _dispatchers[key].function)
        _dispatchers[key].users += 1


def _uninstall(key: Key) -> None:
    with _lock:
        here = _dispatchers[key]
        here.users -= 1
        if here.users == 0:
            del _dispatchers[key]
            if getattr(here.owner, here.name) is here.function:  # nobody else has replaced it since
                setattr(here.owner, here.name, here.original)


def _dispatching(original: Function, key: Key) -> Function:
    @wraps(original)
    def dispatch(*args: Any, **kwargs: Any) -> Any:
        return _run(original, _overrides.of.get(key, ()), *args, **kwargs)

    dispatch._regard_original = original_of(original)  # type: ignore[attr-defined]  # a mark on a function
    return dispatch


def _run(original: Function, overrides: tuple[Override, ...], /, *args: Any, **kwargs: Any) -> Any:
    if not overrides:
        return original(*args, **kwargs)
    return overrides[-1](partial(_run, original, overrides[:-1]), *args, **kwargs)
