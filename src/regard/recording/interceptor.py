"""Intercept every attention call that a PyTorch model makes:

    torch's scaled_dot_product_attention    as an attribute of torch, and as a function imported by name
    torch.nn.MultiheadAttention             also if it returns weights, and in its fused kernel
    torch.nn.TransformerEncoderLayer        also in its fused kernel
    flex_attention                          in the model's source files, compiled or not
    Hugging Face's eager attention          `eager_attention_forward` in the model's source files
    regard                                  every function that computes attention

The function that the model calls still runs, with unchanged arguments.
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

from regard.call.attention_call import AttentionCall
from regard.hooks import install_hook
from regard.integrations.function_override import original_function, override_function
from regard.recording.adapters.captured_call import CapturedCall
from regard.recording.adapters.flex import adapt_flex
from regard.recording.adapters.huggingface import adapt_huggingface_eager
from regard.recording.adapters.mha import adapt_fused_encoder_layer, adapt_fused_mha, adapt_mha
from regard.recording.adapters.sdpa import adapt_sdpa

OutputHook = Callable[[Any], Any]  # from the output (batch, heads, n_q, v_dim) to the same or another output
CallHook = Callable[[CapturedCall], OutputHook | None]


@contextmanager
def intercept_attention(model: nn.Module, on_call: CallHook, *, allow_fused: bool = True) -> Iterator[None]:
    """Call `on_call` before each attention call in this thread, inside the `with` block.

    `allow_fused=False` keeps torch's layers from running their fused kernels, which do not return the output of
    each head.
    """
    interceptor = Interceptor(on_call, allow_fused)
    with ExitStack() as stack:
        stack.enter_context(override_function(functional, "multi_head_attention_forward", interceptor.mha_override))
        for owner, name, adapter in _interception_points(model):
            stack.enter_context(override_function(owner, name, interceptor.make_override(adapter)))
        stack.enter_context(install_hook(interceptor.regard_hook))
        stack.enter_context(interceptor.mode)
        for hook in interceptor.register_module_hooks():
            stack.callback(hook.remove)
        yield


Adapter = Callable[..., CapturedCall | None]  # from the arguments of an attention function to a captured call


class Interceptor:
    """Intercepts calls in the thread that created it, except calls made inside an intercepted call."""

    def __init__(self, on_call: CallHook, allow_fused: bool) -> None:
        self.on_call, self.thread_id, self.allow_fused = on_call, threading.get_ident(), allow_fused
        self.is_inside_call = False
        self.mode = _SdpaMode(self)
        self.fused_depth = 0  # running modules that have fused kernels, one inside another

    def make_override(self, adapter: Adapter) -> Callable[..., Any]:
        """Return an override for `override_function` that intercepts calls with `adapter`."""

        def override(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            return self.intercept(function, adapter, args, kwargs)

        return override

    def intercept(self, function: Callable[..., Any], adapter: Adapter, args: Any, kwargs: Any) -> Any:
        """Call `function` with the hooks of its call; return its result, with the output that the hook returns."""
        if self.is_inside_call or threading.get_ident() != self.thread_id:
            return function(*args, **kwargs)
        with self.ignore_calls(), self.mode.suspend_temporarily():
            call = adapter(*args, **kwargs)
            on_output = None if call is None else self.on_call(call)
            result = function(*args, **kwargs)
            if on_output is None or call is None or call.extract_output is None or call.replace_output is None:
                return result
            output = call.extract_output(result)
            new_output = on_output(output)
            return result if new_output is output else call.replace_output(result, new_output)

    @contextmanager
    def ignore_calls(self) -> Iterator[None]:
        """Do not intercept calls inside the `with` block."""
        self.is_inside_call = True
        try:
            yield
        finally:
            self.is_inside_call = False

    def mha_override(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Intercept `multi_head_attention_forward` if it computes the weights itself, to return them.

        Otherwise it calls `scaled_dot_product_attention`, which is overridden as well.
        """
        if not signature(TORCH_MHA_FORWARD).bind(*args, **kwargs).arguments.get("need_weights", True):
            return function(*args, **kwargs)
        return self.intercept(function, partial(adapt_mha, TORCH_MHA_FORWARD), args, kwargs)

    def regard_hook(self, call: AttentionCall) -> OutputHook:
        """Hook for `install_hook`: return the callback that receives the output of a call of regard."""
        if self.is_inside_call or threading.get_ident() != self.thread_id:
            return _keep_output
        on_output = self.on_call(CapturedCall(lambda: _deterministic_arguments(call), "regard"))

        def call_hook(output: Any) -> Any:
            with self.ignore_calls():
                return on_output(output) if on_output is not None else output

        return call_hook

    def register_module_hooks(self) -> list[Any]:
        """Suspend the torch function mode inside torch's attention modules; return the hooks to remove.

        torch does not run its fused kernels while a torch function mode is active. Inside these modules the
        overridden functions are enough.
        """

        def enter(module: nn.Module, _: Any) -> None:
            if self.allow_fused and isinstance(module, FUSED_MODULES) and threading.get_ident() == self.thread_id:
                self.fused_depth += 1
                if self.fused_depth == 1:
                    self.mode.suspend()

        def leave(module: nn.Module, *_: Any) -> None:
            if self.allow_fused and isinstance(module, FUSED_MODULES) and threading.get_ident() == self.thread_id:
                self.fused_depth -= 1
                if self.fused_depth == 0:
                    self.mode.resume()

        return [
            nn.modules.module.register_module_forward_pre_hook(enter),
            nn.modules.module.register_module_forward_hook(leave, always_call=True),
        ]


FUSED_MODULES = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerEncoder)


def _deterministic_arguments(call: AttentionCall) -> dict[str, Any]:
    """The arguments that determine the weights and the output without dropout."""
    arguments = call._asdict()
    for name in ("dropout", "seed", "backend"):
        del arguments[name]
    return arguments


def _keep_output(output: Any) -> Any:
    return output


class _SdpaMode(TorchFunctionMode):
    """Intercepts `scaled_dot_product_attention` in code that imported the function by name."""

    def __init__(self, interceptor: Interceptor) -> None:
        super().__init__()
        self.interceptor, self.is_suspended = interceptor, False

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is SDPA:
            return self.interceptor.intercept(function, adapt_sdpa, args, kwargs or {})
        return function(*args, **(kwargs or {}))

    def suspend(self) -> None:
        """Leave the mode, if it is the innermost one."""
        depth = torch._C._len_torch_function_stack()
        if not self.is_suspended and depth and torch._C._get_function_stack_at(depth - 1) is self:
            self.is_suspended = True
            self.__exit__(None, None, None)

    def resume(self) -> None:
        """Enter the mode again, if it is suspended."""
        if self.is_suspended:
            self.is_suspended = False
            self.__enter__()  # type: ignore[no-untyped-call]  # torch's method has no annotations

    @contextmanager
    def suspend_temporarily(self) -> Iterator[None]:
        was_suspended = self.is_suspended
        self.suspend()
        try:
            yield
        finally:
            if not was_suspended:
                self.resume()


SDPA = functional.scaled_dot_product_attention
TORCH_MHA_FORWARD = functional.multi_head_attention_forward


def _interception_points(model: nn.Module) -> Iterator[tuple[Any, str, Adapter]]:
    """Yield (owner, attribute name, adapter) of each attention function that the model may call."""
    yield functional, "scaled_dot_product_attention", adapt_sdpa
    yield torch, "_transformer_encoder_layer_fwd", adapt_fused_encoder_layer
    yield torch, "_native_multi_head_attention", adapt_fused_mha
    torch_flex = sys.modules.get("torch.nn.attention.flex_attention")
    transformers_flex = sys.modules.get("transformers.integrations.flex_attention")
    if transformers_flex is not None and hasattr(transformers_flex, "compile_friendly_flex_attention"):
        yield transformers_flex, "compile_friendly_flex_attention", adapt_flex
    flex_attention = None if torch_flex is None else original_function(torch_flex.flex_attention)
    for module in _source_modules(model):
        if hasattr(module, "eager_attention_forward"):
            yield module, "eager_attention_forward", adapt_huggingface_eager
        for name, value in list(vars(module).items()):
            if flex_attention is not None and value is not None and _unwrap_function(value) is flex_attention:
                yield module, name, adapt_flex
    if torch_flex is not None:
        yield torch_flex, "flex_attention", adapt_flex


def _source_modules(model: nn.Module) -> list[ModuleType]:
    """Return the Python modules that define the classes of a model's submodules, except torch's and regard's."""
    names = {cls.__module__ for module in model.modules() for cls in type(module).__mro__}
    modules = [sys.modules[name] for name in sorted(names) if name in sys.modules]
    return [module for module in modules if not module.__name__.startswith(("torch.", "regard."))]


def _unwrap_function(function: Any) -> Any:
    """Return the function behind an override and behind `torch.compile`."""
    function = original_function(function)
    return getattr(function, "_torchdynamo_orig_callable", function) if callable(function) else None
