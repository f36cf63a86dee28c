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
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial, wraps
from inspect import signature
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from regard.heard import listening
from regard.integrations import huggingface, torch_sdpa
from regard.spec import mask, score


@dataclass(frozen=True, eq=False)
class Heard:
    """A call: `ask` finds what regard's `attend` has to be asked for the same weights; `source` is whose call it was.

    `inside` is the module whose call this is, seen from the one that is running, where that one makes it in its place.
    `by_head` finds the answer (batch, heads, n_q, width) in what the function returned, and `put` puts another in its
    place; None where it is not there.
    """

    ask: Callable[[], dict[str, Any]]
    source: str
    inside: str = ""
    by_head: Callable[[Any], Tensor] | None = None
    put: Callable[[Any, Tensor], Any] | None = None


Answered = Callable[[Any], Any]  # is given the answer, (batch, heads, n_q, width): that, or another in its place
Hear = Callable[[Heard], Answered | None]


@contextmanager
def heard(model: nn.Module, hear: Hear, *, fused: bool = True) -> Iterator[None]:
    """Inside, `hear` is told of every call of attention in this thread, before it is answered.

    Without `fused` torch's layers do not run their fused kernels, whose answers by head nobody gets to see.
    """
    ear = _Ear(hear, fused)
    with ExitStack() as stack:
        layer = ear.layer(functional.multi_head_attention_forward)
        stack.enter_context(_replaced(functional, "multi_head_attention_forward", layer))
        for owner, name, told in _places(model):
            stack.enter_context(_replaced(owner, name, ear.around(getattr(owner, name), told)))
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

    def around(self, function: Callable[..., Any], told: Told) -> Callable[..., Any]:
        """The function, heard."""

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
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

    def layer(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """torch's layer, heard where it is asked for its weights and computes them itself. Else it calls torch's
        kernel, which is heard without this."""

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            wants = signature(function).bind(*args, **kwargs).arguments.get("need_weights", True)
            if not wants:
                return function(*args, **kwargs)
            return self.call(function, partial(_told_by_layer, function), args, kwargs)

        return call

    def regard(self, asked: dict[str, Any]) -> Answered:
        """A call of regard's own, which is told before and after it is answered."""
        deaf = self.busy or threading.get_ident() != self.thread
        then = None if deaf else self.hear(Heard(lambda: asked, "regard"))
        return _as_it_is if then is None else then

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
            return self.ear.call(function, _told_by_sdpa, args, kwargs or {})
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
FLEX = "flex_attention"


def _places(model: nn.Module) -> Iterator[tuple[Any, str, Told]]:
    """Names that stand for a function which attends, and how its arguments are told."""
    yield functional, "scaled_dot_product_attention", _told_by_sdpa
    yield torch, "_transformer_encoder_layer_fwd", _told_by_fused_layer
    yield torch, "_native_multi_head_attention", _told_by_fused_attention
    flex = sys.modules.get("torch.nn.attention.flex_attention")
    theirs = sys.modules.get("transformers.integrations.flex_attention")
    if theirs is not None and hasattr(theirs, "compile_friendly_flex_attention"):
        yield theirs, "compile_friendly_flex_attention", _told_by_flex
    for module in _files(model):
        if hasattr(module, "eager_attention_forward"):
            yield module, "eager_attention_forward", _told_by_eager
        for name, value in list(vars(module).items()):
            if flex is not None and value is not None and _original(value) is flex.flex_attention:
                yield module, name, _told_by_flex
    if flex is not None:
        yield flex, FLEX, _told_by_flex


def _files(model: nn.Module) -> list[ModuleType]:
    """The Python files in which the classes of a model's modules are written."""
    names = {cls.__module__ for module in model.modules() for cls in type(module).__mro__}
    found = [sys.modules[name] for name in sorted(names) if name in sys.modules]
    return [module for module in found if not module.__name__.startswith(("torch.", "regard."))]


def _original(function: Any) -> Any:
    """What torch.compile was given, where it made this function."""
    return getattr(function, "_torchdynamo_orig_callable", function) if callable(function) else None


@contextmanager
def _replaced(owner: Any, name: str, new: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, new)
    try:
        yield
    finally:
        setattr(owner, name, before)


def _told_by_sdpa(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Heard:
    ask = partial(torch_sdpa.question, query, key, value, attn_mask, is_causal, scale, enable_gqa)
    return Heard(ask, "torch's scaled_dot_product_attention", by_head=_as_it_is, put=_instead)


def _told_by_flex(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: Any = None,
    block_mask: Any = None,
    scale: float | None = None,
    **_: Any,
) -> Heard:
    def ask() -> dict[str, Any]:
        chosen = score.scaled_dot(scale)
        chosen = chosen if score_mod is None else chosen.then(score_mod)
        seen = None if block_mask is None else mask.where(block_mask.mask_mod)
        return {"q": query, "k": key, "v": value, "score": chosen, "mask": seen}

    def put(answer: Any, output: Tensor) -> Any:
        return (output, *answer[1:]) if isinstance(answer, tuple) else output

    return Heard(ask, "flex_attention", by_head=lambda a: a[0] if isinstance(a, tuple) else a, put=put)


def _told_by_eager(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, *more: Any, **options: Any
) -> Heard:
    options |= dict(zip(("scaling", "dropout"), more, strict=False))
    options.pop("dropout", None)
    # without a mask such a function hides nothing, whatever its layer says
    options["is_causal"] = False
    ask = partial(huggingface.question, module, query, key, value, attention_mask, **options)
    return Heard(
        ask,
        "Hugging Face's eager attention",
        by_head=lambda answer: answer[0].transpose(1, 2),
        put=lambda answer, output: (output.transpose(1, 2).contiguous(), *answer[1:]),
    )


class _Enough(Exception):
    """A call came as far as was wanted."""


def _told_by_layer(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Heard:
    """What torch's layer would ask its kernel if it did not have to hand out weights."""

    def ask() -> dict[str, Any]:
        found: list[Heard] = []

        def take(*given: Any, **options: Any) -> Tensor:
            found.append(_told_by_sdpa(*given, **options))
            raise _Enough

        bound = signature(function).bind(*args, **kwargs)
        bound.arguments["need_weights"] = False
        with suppress(_Enough), _replaced(functional, "scaled_dot_product_attention", take):
            function(*bound.args, **bound.kwargs)
        return found[0].ask()

    return Heard(ask, "torch.nn.MultiheadAttention")


def _told_by_fused_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    width: int,
    heads: int,
    weight: Tensor,
    bias: Tensor,
    out_weight: Tensor,
    out_bias: Tensor,
    hidden: Tensor | None = None,
    need_weights: bool = True,
    average: bool = True,
    mask_type: int | None = None,
) -> Heard:
    ask = partial(_projected, query, heads, weight, bias, hidden, mask_type)
    return Heard(ask, "torch.nn.MultiheadAttention, fused")


def _told_by_fused_layer(
    source: Tensor,
    width: int,
    heads: int,
    weight: Tensor,
    bias: Tensor,
    out_weight: Tensor,
    out_bias: Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight: Tensor,
    norm_bias: Tensor,
    *others: Any,
) -> Heard:
    hidden, mask_type = others[-2:] if len(others) == 8 else (None, None)
    norm = partial(functional.layer_norm, normalized_shape=(width,), weight=norm_weight, bias=norm_bias, eps=eps)
    ask = partial(_projected, source, heads, weight, bias, hidden, mask_type, norm if norm_first else None)
    return Heard(ask, "torch.nn.TransformerEncoderLayer, fused", inside="self_attn")


KEY_PADDING = 1  # torch's number for a mask (batch, n); others are (n, n) and (batch, heads, n, n)


def _projected(
    source: Tensor,
    heads: int,
    weight: Tensor,
    bias: Tensor,
    hidden: Tensor | None,
    mask_type: int | None,
    norm: Callable[[Tensor], Tensor] | None = None,
) -> dict[str, Any]:
    """The queries, keys and values that a fused kernel makes of its input, and whom it lets see whom."""
    seen: Any = None if hidden is None else ~hidden.bool()
    if seen is not None and mask_type == KEY_PADDING:
        seen = seen[:, None, None, :]
    if source.is_nested:  # texts of different lengths, without padding between them
        seen = mask.padding(torch.tensor([len(part) for part in source.unbind()]))
        source = source.to_padded_tensor(0.0)
    rows = functional.linear(source if norm is None else norm(source), weight, bias)
    q, k, v = (part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in rows.chunk(3, dim=-1))
    return {"q": q, "k": k, "v": v, "mask": seen}


def _as_it_is(answer: Any) -> Tensor:
    return answer  # type: ignore[no-any-return]  # functions of torch are untyped here


def _instead(_: Any, output: Tensor) -> Tensor:
    return output
