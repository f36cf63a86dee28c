"""Adapters of `torch.nn.MultiheadAttention` and of the fused kernels of torch's attention layers."""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from inspect import signature
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from regard import mask
from regard.integrations.function_override import override_function
from regard.recording.adapters.captured_call import CapturedCall
from regard.recording.adapters.sdpa import adapt_sdpa

KEY_PADDING_MASK_TYPE = 1  # torch's number for a mask (batch, n); others are (n, n) and (batch, heads, n, n)


class _StopForward(Exception):
    """Ends a forward pass once its kernel arguments are captured."""


def adapt_mha(function: Callable[..., Any], *args: Any, **kwargs: Any) -> CapturedCall:
    """Return the captured call for the arguments of `multi_head_attention_forward`.

    With `need_weights=True` torch does not call a kernel. The arguments are those of the kernel call that
    `function` makes with `need_weights=False`.
    """

    def make_arguments() -> dict[str, Any]:
        kernel_calls: list[CapturedCall] = []

        def capture(_: Any, *sdpa_args: Any, **sdpa_kwargs: Any) -> Tensor:
            kernel_calls.append(adapt_sdpa(*sdpa_args, **sdpa_kwargs))
            raise _StopForward

        bound = signature(function).bind(*args, **kwargs)
        bound.arguments["need_weights"] = False
        with suppress(_StopForward), override_function(functional, "scaled_dot_product_attention", capture):
            function(*bound.args, **bound.kwargs)
        return kernel_calls[0].make_arguments()

    return CapturedCall(make_arguments, "torch.nn.MultiheadAttention")


def adapt_fused_mha(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    mask: Tensor | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> CapturedCall:
    """Return the captured call for the arguments of `torch._native_multi_head_attention`."""
    return CapturedCall(
        partial(_fused_call_arguments, query, num_heads, qkv_weight, qkv_bias, mask, mask_type),
        "torch.nn.MultiheadAttention, fused",
    )


def adapt_fused_encoder_layer(
    src: Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: Tensor,
    norm_bias_1: Tensor,
    *rest: Any,
) -> CapturedCall:
    """Return the captured call for the arguments of `torch._transformer_encoder_layer_fwd`."""
    hidden_pairs, mask_type = rest[-2:] if len(rest) == 8 else (None, None)
    norm = partial(
        functional.layer_norm, normalized_shape=(embed_dim,), weight=norm_weight_1, bias=norm_bias_1, eps=eps
    )
    make_arguments = partial(
        _fused_call_arguments,
        src,
        num_heads,
        qkv_weight,
        qkv_bias,
        hidden_pairs,
        mask_type,
        norm if norm_first else None,
    )
    return CapturedCall(make_arguments, "torch.nn.TransformerEncoderLayer, fused", submodule_path="self_attn")


def _fused_call_arguments(
    src: Tensor,
    num_heads: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    hidden_pairs: Tensor | None,
    mask_type: int | None,
    norm: Callable[[Tensor], Tensor] | None = None,
) -> dict[str, Any]:
    """Return q, k, v and the mask that a fused kernel computes from its input.

    `hidden_pairs` is True for masked keys or pairs; `mask_type` is torch's number for its shape.
    """
    visible: Any = None if hidden_pairs is None else ~hidden_pairs.bool()
    if visible is not None and mask_type == KEY_PADDING_MASK_TYPE:
        visible = visible[:, None, None, :]
    if src.is_nested:  # sequences of different lengths, without padding
        visible = mask.padding(torch.tensor([len(sequence) for sequence in src.unbind()]))
        src = src.to_padded_tensor(0.0)
    projected = functional.linear(src if norm is None else norm(src), qkv_weight, qkv_bias)
    q, k, v = (part.unflatten(-1, (num_heads, -1)).transpose(1, 2) for part in projected.chunk(3, dim=-1))
    return {"q": q, "k": k, "v": v, "mask": visible}
