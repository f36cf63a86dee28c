"""Hugging Face transformers on regard: `attn_implementation="regard"`.

transformers calls an attention implementation for two things: the mask, once per forward pass, and the attention, once
per layer. Its masks are functions of positions, as in FlexAttention, so they are traced and stay formulas
(`regard.integrations.huggingface.masks`).
"""

import inspect
import math
import re
import sys
import warnings
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from regard import mask, normalizer, score
from regard.attention import attention, attention_with_weights
from regard.cache import memoize
from regard.errors import ArgumentError
from regard.integrations.huggingface.masks import (
    EagerMaskName,
    FormulaMask,
    mask_for_shape,
    needs_eager_mask,
    regard_mask,
)
from regard.integrations.huggingface.transformers_modules import import_modules, modules
from regard.warning_location import stacklevel_outside

__all__ = [
    "EagerMaskName",
    "FormulaMask",
    "huggingface_to_attention_kwargs",
    "regard_attention_forward",
    "regard_mask",
    "register",
]

ATTN_IMPLEMENTATION = "regard"


def register() -> None:
    """Register the attention implementation "regard" with transformers; calling it again has no effect.

    A model that does not use transformers' attention interface warns when it is created, and runs as "eager".

    >>> from transformers import LlamaConfig, LlamaModel
    >>> register()
    >>> sizes = dict(vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2)
    >>> model = LlamaModel(LlamaConfig(**sizes, attn_implementation="regard"))
    >>> model(torch.tensor([[5, 6, 7]])).last_hidden_state.shape
    torch.Size([1, 3, 16])
    """
    import_modules("modeling_utils", "masking_utils", "utils.output_capturing")
    modules["modeling_utils"].AttentionInterface.register(ATTN_IMPLEMENTATION, regard_attention_forward)
    modules["masking_utils"].AttentionMaskInterface.register(ATTN_IMPLEMENTATION, regard_mask)
    _wrap_attn_implementation_check(modules["modeling_utils"].PreTrainedModel)


def regard_attention_forward(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | Tensor | None = None,
    is_causal: bool | None = None,
    position_bias: Tensor | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """Compute the attention of one layer, as transformers' attention interface requires.

    Args:
        module: the attention layer.
        query: (batch, heads, n_q, head_dim).
        key, value: (batch, kv heads, n_k, head_dim).
        attention_mask: boolean (True means attend) or floats to add. None means causal if `is_causal` or else
            `module.is_causal` is true; in a model that expects eager masks, None masks nothing.
        dropout: probability of dropping a weight; default 0.
        scaling: factor of the scores; None, the default, means 1/√head_dim.
        position_bias: floats to add to the scores, after `softcap`.
        softcap: cap of the scores; None, the default, means none.
        s_aux: logit of the attention sink of each head.

    Returns:
        The output (batch, n_q, heads, value_dim) and the weights (batch, heads, n_q, n_k) before dropout; None unless
        the model is called with `output_attentions=True`.
    """
    options = huggingface_to_attention_kwargs(
        module, query, key, value, attention_mask, scaling, is_causal, position_bias, softcap, s_aux, **kwargs
    )
    if not _needs_weights(kwargs):
        return attention(**options, dropout=dropout).transpose(1, 2).contiguous(), None
    result = attention_with_weights(**options, dropout=dropout)
    weights = result.weights[...]
    if s_aux is None:  # in a row where the mask adds the lowest float to every score, the lse is too coarse
        total = weights.sum(-1, keepdim=True)
        weights = weights / torch.where(total == 0, 1.0, total)
    return result.output.transpose(1, 2).contiguous(), weights.to(query.dtype)


def huggingface_to_attention_kwargs(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | Tensor | None = None,
    is_causal: bool | None = None,
    position_bias: Tensor | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **kwargs: Any,
) -> dict[str, Any]:
    """Return the keyword arguments of `regard.attention` for a layer's call, except dropout."""
    _check_supported(module, kwargs)
    # autocast also lowers the precision of eager attention; it does not know the device meta
    if query.device.type != "meta" and torch.is_autocast_enabled(query.device.type):
        dtype = torch.get_autocast_dtype(query.device.type)
        query, key, value = (x.to(dtype) if x.dtype != torch.float64 else x for x in (query, key, value))
    n_q, n_k = query.shape[-2], key.shape[-2]
    call_mask: Any = _parse_attention_mask(attention_mask, (query.shape[0], 1, n_q, n_k))
    query_offset, biases = None, [position_bias]
    if attention_mask is None and not needs_eager_mask(getattr(module, "config", None)):
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        if causal and n_q > 1:
            call_mask = mask.causal()
            query_offset = None if n_q == n_k else 0  # without a mask there is no cache before the first query
    elif isinstance(call_mask, Tensor) and call_mask.dtype != torch.bool:
        call_mask, biases = None, [position_bias, call_mask]
    return {
        "q": query,
        "k": key,
        "v": value,
        "score": _build_score(query.shape[-1], scaling, softcap, biases),
        "mask": call_mask,
        "normalizer": None if s_aux is None else normalizer.sink(s_aux.reshape(-1)),
        "query_offset": query_offset,
    }


def _check_supported(module: Any, kwargs: dict[str, Any]) -> None:
    """Raise for layers that select keys by index; ignoring the indices would attend to all keys."""
    alternative = "eager" if needs_eager_mask(getattr(module, "config", None)) else "sdpa"
    for name in ("indices", "block_indices", "cache"):
        if kwargs.get(name) is not None:
            raise ArgumentError(
                f"a layer must pass only keys and a mask; {type(module).__name__} also passed {name}, which regard "
                f"does not support. Load this model with attn_implementation={alternative!r}."
            )


def _parse_attention_mask(attention_mask: Tensor | None, shape: tuple[int, ...]) -> Any:
    """Return the mask of a call: a formula, a boolean or float tensor, or None."""
    if attention_mask is not None and attention_mask.dtype != torch.bool and not attention_mask.is_floating_point():
        raise ArgumentError(
            "attention_mask must be boolean (True means attend) or hold floats to add; got "
            f"{attention_mask.dtype}. Pass attention_mask.bool() if 1 means attend."
        )
    return mask_for_shape(attention_mask, shape)


def _build_score(
    head_dim: int, scaling: float | Tensor | None, softcap: float | None, biases: list[Tensor | None]
) -> Any:
    """Return the score of a layer; None for q·k/√head_dim, so that repeated calls take the fast path."""
    modifiers: list[Any] = [] if softcap is None else [score.softcap(softcap)]
    modifiers += [score.bias(bias) for bias in biases if bias is not None]
    is_default_scale = scaling is None or (
        not isinstance(scaling, Tensor) and math.isclose(scaling, head_dim**-0.5, rel_tol=1e-12)
    )
    if is_default_scale and not modifiers:
        return None
    layer_score: Any = score.scaled_dot(None if is_default_scale else scaling)
    for modifier in modifiers:
        layer_score = layer_score.then(modifier)
    return layer_score


def _needs_weights(kwargs: dict[str, Any]) -> bool:
    """Return whether the call needs weights: for `output_attentions`, or for a model that collects layer outputs."""
    if kwargs.get("output_attentions"):
        return True
    collected = modules["utils.output_capturing"]._active_collector.get()
    return any(key.endswith("attentions") for key in collected or ())


_warned_classes: set[type] = set()


def _wrap_attn_implementation_check(base_class: Any) -> None:
    """Make models that do not use the attention interface warn and run as "eager".

    Models that do not support "sdpa" get the name of the implementation as an `EagerMaskName`.
    """
    original = base_class.get_correct_attn_implementation
    if hasattr(original, "wrapped_by_regard"):
        return

    @wraps(original)
    def get_correct_attn_implementation(self: Any, requested_attention: str | None, is_init_check: bool = False) -> Any:
        model_class: Any = type(self)
        if requested_attention == ATTN_IMPLEMENTATION:
            if not _uses_attention_interface(model_class, base_class):
                _warn_runs_eager(model_class)
                requested_attention = "eager"
            elif model_class._supports_sdpa:
                requested_attention = ATTN_IMPLEMENTATION
            else:
                requested_attention = EagerMaskName(ATTN_IMPLEMENTATION)
        return original(self, requested_attention, is_init_check)

    get_correct_attn_implementation.wrapped_by_regard = True  # type: ignore[attr-defined]  # a mark on a function
    base_class.get_correct_attn_implementation = get_correct_attn_implementation


def _warn_runs_eager(model_class: type) -> None:
    if model_class not in _warned_classes:
        _warned_classes.add(model_class)
        warnings.warn(
            f"{model_class.__name__} does not use transformers' attention interface, so it cannot run on regard; it "
            "runs with attn_implementation='eager'.",
            UserWarning,
            stacklevel=stacklevel_outside("regard", "transformers"),  # the code that created the model
        )


@memoize(256)
def _uses_attention_interface(model_class: type, base_class: type) -> bool:
    """Return whether the source of a model uses `ALL_ATTENTION_FUNCTIONS`, or defines no attention class.

    Models that look up a class by the name of the implementation do not support new names. Models without readable
    source count as supported.
    """
    model_modules = {
        c.__module__: sys.modules.get(c.__module__) for c in model_class.__mro__ if issubclass(c, base_class)
    }
    model_modules.pop(base_class.__module__, None)
    sources = [_source_code(module) for module in model_modules.values()]
    if any(re.search(r"_CLASSES\[[\w.]*config\._attn_implementation\]", source) for source in sources):
        return False
    if any("ALL_ATTENTION_FUNCTIONS" in source for source in sources):
        return True
    return not any(re.search(r"^class \w*Attention\w*\(", source, re.MULTILINE) for source in sources)


def _source_code(module: Any) -> str:
    try:
        return inspect.getsource(module)
    except (OSError, TypeError):
        return ""
