"""Where attention happens in a model of PyTorch, whoever wrote it: every call is heard, and told in regard's words.

    torch's scaled_dot_product_attention    as a name in torch, and as a function somebody holds
    torch.nn.MultiheadAttention             also where it computes weights itself, and in its fused kernel
    torch.nn.TransformerEncoderLayer        also in its fused kernel
    flex_attention                          where the model's own files call it, compiled or not
    Hugging Face's eager attention          the function of that name in the model's files
    regard                                  whoever calls it

The function that the model calls is the one that runs, with the arguments it was given.
"""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from inspect import signature
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from regard.heard import listening
from regard.inside.told import (
    Heard,
    as_it_is,
    told_by_eager,
    told_by_flex,
    told_by_fused_attention,
    told_by_fused_layer,
    told_by_layer,
    told_by_sdpa,
)
from regard.integrations.function_override import original_of, overridden

Answered = Callable[[Any], Any]  # is given the answer, (batch, heads, n_q, width): that, or another in its place
Hear = Callable[[Heard], Answered | None]


@contextmanager
def heard(model: nn.Module, hear: Hear, *, fused: bool = True) -> Iterator[None]:
    """Inside, `hear` is told of every call of attention in this thread, before it is answered.

    Without `fused` torch's layers do not run their fused kernels, whose answers by head nobody gets to see.
    """
    ear = _Ear(hear, fused)
    with ExitStack() as stack:
        stack.enter_context(overridden(functional, "multi_head_attention_forward", ear.layer))
        for owner, name, told in _places(model):
            stack.enter_context(overridden(owner, name, ear.around(told)))
        stack.enter_context(listening(ear.regard))
        stack.enter_context(ear.mode)
        for hook in ear.hooks():
            stack.callback(hook.remove)
        yield


Told = Callable[..., Heard | None]  # a call's arguments as they are given: what is heard


class _Ear:
    """Hears calls in the thread in which it was made, and nothing of what they call themselves."""

    def __init__(self, hear: Hear, fused: bool) -> None:
        self.hear, self.thread, self.may_fuse = hear, threading.get_ident(), fused
        self.busy = False
        self.mode = _Mode(self)
        self.fused = 0  # modules with fused kernels that are running, one in another

    def around(self, told: Told) -> Callable[..., Any]:
        """An override that records calls of a function."""

        def call(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            return self.call(function, told, args, kwargs)

        return call

    def call(self, function: Callable[..., Any], told: Told, args: Any, kwargs: Any) -> Any:
        if self.busy or threading.get_ident() != self.thread:
            return function(*args, **kwargs)
        self.busy = True
        try:
            found = told(*args, **kwargs)
            then = None if found is None else self.hear(found)
            with self.mode.aside():
                answer = function(*args, **kwargs)
        finally:
            self.busy = False
        if then is None or found is None or found.by_head is None or found.put is None:
            return answer
        before = found.by_head(answer)
        after = then(before)
        return answer if after is before else found.put(answer, after)

    def layer(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """An override of torch's layer, which computes weights itself where it returns them. Else it calls torch's
        kernel, which is overridden as well."""
        if not signature(LAYER).bind(*args, **kwargs).arguments.get("need_weights", True):
            return function(*args, **kwargs)
        return self.call(function, partial(told_by_layer, LAYER), args, kwargs)

    def regard(self, asked: dict[str, Any]) -> Answered:
        """A call of regard's own, which is told before and after it is answered."""
        deaf = self.busy or threading.get_ident() != self.thread
        then = None if deaf else self.hear(Heard(lambda: asked, "regard"))
        return as_it_is if then is None else then

    def hooks(self) -> list[Any]:
        """torch's fused kernels run only where nobody listens to single functions: there the names in torch, which are
        replaced, must do."""

        def enter(module: nn.Module, _: Any) -> None:
            if self.may_fuse and isinstance(module, FUSED) and threading.get_ident() == self.thread:
                self.fused += 1
                if self.fused == 1:
                    self.mode.leave()

        def leave(module: nn.Module, *_: Any) -> None:
            if self.may_fuse and isinstance(module, FUSED) and threading.get_ident() == self.thread:
                self.fused -= 1
                if self.fused == 0:
                    self.mode.come_back()

        return [
            nn.modules.module.register_module_forward_pre_hook(enter),
            nn.modules.module.register_module_forward_hook(leave, always_call=True),
        ]


FUSED = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerEncoder)


class _Mode(TorchFunctionMode):
    """Hears torch's function where it is called by somebody who holds it."""

    def __init__(self, ear: _Ear) -> None:
        super().__init__()
        self.ear, self.is_away = ear, False

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is SDPA:
            return self.ear.call(function, told_by_sdpa, args, kwargs or {})
        return function(*args, **(kwargs or {}))

    def leave(self) -> None:
        """Stops listening, where it is the last one that was asked to."""
        depth = torch._C._len_torch_function_stack()
        if not self.is_away and depth and torch._C._get_function_stack_at(depth - 1) is self:
            self.is_away = True
            self.__exit__(None, None, None)

    def come_back(self) -> None:
        if self.is_away:
            self.is_away = False
            self.__enter__()  # type: ignore[no-untyped-call]  # torch's own

    @contextmanager
    def aside(self) -> Iterator[None]:
        was_away = self.is_away
        self.leave()
        try:
            yield
        finally:
            if not was_away:
                self.come_back()


SDPA = functional.scaled_dot_product_attention
LAYER = functional.multi_head_attention_forward


def _places(model: nn.Module) -> Iterator[tuple[Any, str, Told]]:
    """Names that stand for a function which attends, and how its arguments are told."""
    yield functional, "scaled_dot_product_attention", told_by_sdpa
    yield torch, "_transformer_encoder_layer_fwd", told_by_fused_layer
    yield torch, "_native_multi_head_attention", told_by_fused_attention
    flex = sys.modules.get("torch.nn.attention.flex_attention")
    theirs = sys.modules.get("transformers.integrations.flex_attention")
    if theirs is not None and hasattr(theirs, "compile_friendly_flex_attention"):
        yield theirs, "compile_friendly_flex_attention", told_by_flex
    plain_flex = None if flex is None else original_of(flex.flex_attention)
    for module in _files(model):
        if hasattr(module, "eager_attention_forward"):
            yield module, "eager_attention_forward", told_by_eager
        for name, value in list(vars(module).items()):
            if plain_flex is not None and value is not None and _original(value) is plain_flex:
                yield module, name, told_by_flex
    if flex is not None:
        yield flex, "flex_attention", told_by_flex


def _files(model: nn.Module) -> list[ModuleType]:
    """The Python files in which the classes of a model's modules are written."""
    names = {cls.__module__ for module in model.modules() for cls in type(module).__mro__}
    found = [sys.modules[name] for name in sorted(names) if name in sys.modules]
    return [module for module in found if not module.__name__.startswith(("torch.", "regard."))]


def _original(function: Any) -> Any:
    """The function behind an override, and behind torch.compile."""
    function = original_of(function)
    return getattr(function, "_torchdynamo_orig_callable", function) if callable(function) else None
