"""Track which module of a model is running, to name the layer of each attention call."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

from regard.recording.adapters.captured_call import CapturedCall


class ModuleTracker:
    """The stack of running modules in one thread, and the modules that called attention.

    `attention_modules` maps the path of each such module to its layer index, in the order of their first calls.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model_class_name = type(model).__name__
        self.attention_modules: dict[str, int] = {}
        self._module_paths = {module: name for name, module in model.named_modules()}
        self._stack: list[str] = []  # paths, the outermost module first
        self._thread_id = threading.get_ident()

    def locate(self, call: CapturedCall) -> tuple[str, int]:
        """Return the path and the layer index of the module that makes a call."""
        path = ".".join(part for part in (self._stack[-1] if self._stack else "", call.submodule_path) if part)
        path = path or self.model_class_name  # the model itself
        return path, self.attention_modules.setdefault(path, len(self.attention_modules))

    @contextmanager
    def track(self) -> Iterator[None]:
        """Track the running modules inside the `with` block.

        The hooks are global because hooks of single modules keep torch from running its fused kernels.
        """

        def enter(module: nn.Module, _: Any) -> None:
            if module in self._module_paths and threading.get_ident() == self._thread_id:
                self._stack.append(self._module_paths[module])

        def leave(module: nn.Module, *_: Any) -> None:
            if module in self._module_paths and threading.get_ident() == self._thread_id:
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


def force_eager(model: nn.Module) -> Any:
    """Return a context manager that runs compiled modules eagerly: calls inside a graph cannot be intercepted."""
    dynamo = sys.modules.get("torch._dynamo.eval_frame")
    if dynamo is not None and any(isinstance(module, dynamo.OptimizedModule) for module in model.modules()):
        return torch.compiler.set_stance("force_eager")
    return nullcontext()


def matches_layer(selector: int | str, index: int, path: str) -> bool:
    """Return whether a selector, an index or the beginning of a path, selects a layer."""
    return index == selector if isinstance(selector, int) else path == selector or path.startswith(f"{selector}.")
