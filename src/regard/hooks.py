"""Hooks on attention calls: a recording observes every `regard.attention` call of its thread."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from regard.call.attention_call import AttentionCall

# receives the call, and returns a function that receives the output and returns it or a replacement
AttentionHook = Callable[[AttentionCall], Callable[[Any], Any]]

# the installed hooks of this thread or task, the first installed first
active_hooks: ContextVar[tuple[AttentionHook, ...]] = ContextVar("attention hooks", default=())


@contextmanager
def install_hook(hook: AttentionHook) -> Iterator[None]:
    """Inside the context, each call is passed to `hook` before it runs, and its output afterwards."""
    token = active_hooks.set((*active_hooks.get(), hook))
    try:
        yield
    finally:
        active_hooks.reset(token)


@contextmanager
def disable_hooks() -> Iterator[None]:
    """Inside the context, no hook is called."""
    token = active_hooks.set(())
    try:
        yield
    finally:
        active_hooks.reset(token)
