"""Override functions of other packages in the current thread.

All threads share the attribute of a module. While any thread overrides it, the attribute holds a dispatcher, which runs
the overrides of the calling thread. The last thread to leave restores the original function. Threads may enter and
leave in any order.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from typing import Any

Function = Callable[..., Any]
Override = Callable[..., Any]  # called with the overridden function, then with the arguments of the call

OverrideKey = tuple[int, str]  # id of the owner, name of the attribute


class _ThreadOverrides(threading.local):
    def __init__(self) -> None:
        self.by_key: dict[OverrideKey, tuple[Override, ...]] = {}  # outermost first


class _Dispatcher:
    """The function that replaces `owner.name` while some thread overrides it."""

    def __init__(self, owner: Any, name: str) -> None:
        self.owner, self.name, self.num_overrides = owner, name, 0
        self.original: Function = getattr(owner, name)
        self.function = _make_dispatcher(self.original, (id(owner), name))


_lock = threading.Lock()
_dispatchers: dict[OverrideKey, _Dispatcher] = {}
_overrides = _ThreadOverrides()


@contextmanager
def override_function(owner: Any, name: str, override: Override) -> Iterator[None]:
    """Inside the context, calls of `owner.name` in this thread run `override(function, *args, **kwargs)`.

    `function` is the enclosing override, or the original function. Other threads are not affected.
    """
    key = id(owner), name
    entry = partial(override)  # a distinct object, also if the same override is entered twice
    _install(owner, name)
    _overrides.by_key[key] = (*_overrides.by_key.get(key, ()), entry)
    try:
        yield
    finally:
        remaining = tuple(other for other in _overrides.by_key[key] if other is not entry)
        if remaining:
            _overrides.by_key[key] = remaining
        else:
            del _overrides.by_key[key]
        _uninstall(key)


def original_function(function: Any) -> Any:
    """Return the function behind a dispatcher, or any other object unchanged."""
    return getattr(function, "_regard_original", function) if callable(function) else function


def _install(owner: Any, name: str) -> None:
    key = id(owner), name
    with _lock:
        if key not in _dispatchers:
            _dispatchers[key] = _Dispatcher(owner, name)
            setattr(owner, name, _dispatchers[key].function)
        _dispatchers[key].num_overrides += 1


def _uninstall(key: OverrideKey) -> None:
    with _lock:
        dispatcher = _dispatchers[key]
        dispatcher.num_overrides -= 1
        if dispatcher.num_overrides == 0:
            del _dispatchers[key]
            if getattr(dispatcher.owner, dispatcher.name) is dispatcher.function:  # unless replaced by other code
                setattr(dispatcher.owner, dispatcher.name, dispatcher.original)


def _make_dispatcher(original: Function, key: OverrideKey) -> Function:
    @wraps(original)
    def dispatch(*args: Any, **kwargs: Any) -> Any:
        return _call_overrides(original, _overrides.by_key.get(key, ()), *args, **kwargs)

    dispatch._regard_original = original_function(original)  # type: ignore[attr-defined]  # a mark on a function
    return dispatch


def _call_overrides(original: Function, overrides: tuple[Override, ...], /, *args: Any, **kwargs: Any) -> Any:
    if not overrides:
        return original(*args, **kwargs)
    return overrides[-1](partial(_call_overrides, original, overrides[:-1]), *args, **kwargs)
