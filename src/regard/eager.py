"""Keeping torch.compile out: a compiled caller stops its graph at these functions and goes on after them."""

import functools
import sys
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")


def runs_eagerly(function: Callable[P, R], why: str | None = None) -> Callable[P, R]:
    """The function, never compiled; a caller that must be compiled whole is told why.

    torch's own decorator would load its compiler when regard is imported.
    """
    shielded: list[Callable[P, R]] = []

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if "torch._dynamo" not in sys.modules:
            return function(*args, **kwargs)
        if not shielded:
            shielded.append(torch.compiler.disable(function, reason=why))
        return shielded[0](*args, **kwargs)

    marked: Any = call
    marked._torchdynamo_disable = True
    marked._torchdynamo_disable_msg = why
    return call
