"""Functions that torch.compile does not trace: the graph of a compiled caller breaks at them."""

import functools
import sys
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")


def disable_compile(function: Callable[P, R], reason: str | None = None) -> Callable[P, R]:
    """Wrap `function` so that torch.compile does not trace it. `reason` is shown to callers with fullgraph=True.

    Unlike `torch.compiler.disable`, it does not load torch's compiler when regard is imported.
    """
    disabled: list[Callable[P, R]] = []

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if "torch._dynamo" not in sys.modules:
            return function(*args, **kwargs)
        if not disabled:
            disabled.append(torch.compiler.disable(function, reason=reason))
        return disabled[0](*args, **kwargs)

    marked: Any = call
    marked._torchdynamo_disable = True
    marked._torchdynamo_disable_msg = reason
    return call
