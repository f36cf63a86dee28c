"""Which module of a model is running: calls of attention are named by it."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

from regard.inside.told import Heard


class Running:
    """The modules of a model that are running, in one thread; and those that attended, numbered in order."""

    def __init__(self, model: nn.Module) -> None:
        self.kind = type(model).__name__
        self.seen: dict[str, int] = {}  # paths of modules that attended, and their numbers
        self._names = {module: name for name, module in model.named_modules()}
        self._stack: list[str] = []  # from the outermost in
        self._thread = threading.get_ident()

    def place(self, call: Heard) -> tuple[str, int]:
        """The path of the module that makes a call, and its number."""
        path = ".".join(part for part in (self._stack[-1] if self._stack else "", call.inside) if part)
        path = path or self.kind  # the model itself
        return path, self.seen.setdefault(path, len(self.seen))

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Inside, it is known what runs. Hooks of all modules, not of single ones: those would keep torch from its
        fused kernels."""

        def enter(module: nn.Module, _: Any) -> None:
            if module in self._names and threading.get_ident() == self._thread:
                self._stack.append(self._names[module])

        def leave(module: nn.Module, *_: Any) -> None:
            if module in self._names and threading.get_ident() == self._thread:
                self._stack.pop()

        hooks = (
            nn.modules.module.register_module_forward_pre_hook(enter),
            nn.modules.module.register_module_forward_hook(leave, always_call=True),
        )
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()


def eagerly(model: nn.Module) -> Any:
    """Compiled modules run as they were written: inside a graph nobody can be heard."""
    compiled = sys.modules.get("torch._dynamo.eval_frame")
    if compiled is not None and any(isinstance(module, compiled.OptimizedModule) for module in model.modules()):
        return torch.compiler.set_stance("force_eager")
    return nullcontext()


def is_meant(which: int | str, number: int, path: str) -> bool:
    """Whether a layer is meant by a number, or by the beginning of a path."""
    return number == which if isinstance(which, int) else path == which or path.startswith(f"{which}.")
