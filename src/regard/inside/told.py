"""Calls of attention by others, told in regard's words: for each function, what its arguments ask of `attend`."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from inspect import signature
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from regard.integrations import huggingface, torch_sdpa
from regard.integrations.function_override import overridden
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


def told_by_sdpa(*args: Any, **kwargs: Any) -> Heard:
    ask = partial(torch_sdpa.question, *args, **kwargs)
    return Heard(ask, "torch's scaled_dot_product_attention", by_head=as_it_is, put=_instead)


def told_by_flex(
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


def told_by_eager(
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


def told_by_layer(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Heard:
    """What torch's layer would ask its kernel if it did not have to hand out weights."""

    def ask() -> dict[str, Any]:
        found: list[Heard] = []

        def capture(_: Any, *given: Any, **options: Any) -> Tensor:
            found.append(told_by_sdpa(*given, **options))
            raise _Enough

        bound = signature(function).bind(*args, **kwargs)
        bound.arguments["need_weights"] = False
        with suppress(_Enough), overridden(functional, "scaled_dot_product_attention", capture):
            function(*bound.args, **bound.kwargs)
        return found[0].ask()

    return Heard(ask, "torch.nn.MultiheadAttention")


def told_by_fused_attention(
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


def told_by_fused_layer(
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


def as_it_is(answer: Any) -> Tensor:
    return answer  # type: ignore[no-any-return]  # functions of torch are untyped here


def _instead(_: Any, output: Tensor) -> Tensor:
    return output
