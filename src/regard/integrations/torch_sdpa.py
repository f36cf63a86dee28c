"""`torch.nn.functional.scaled_dot_product_attention`, computed by regard."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from regard import mask, score
from regard.argument_types import check_types
from regard.attention import attention
from regard.errors import ArgumentError
from regard.integrations.function_override import original_function, override_function
from regard.tensors.convert import flatten_batch_dims

__all__ = [
    "override_sdpa",
    "scaled_dot_product_attention",
]


def __dir__() -> list[str]:
    return sorted(__all__)


_torch_sdpa = torch.nn.functional.scaled_dot_product_attention


@check_types
def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | Tensor | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Compute `torch.nn.functional.scaled_dot_product_attention` with regard; same arguments, same conventions.

    Args:
        query: queries (..., n_q, head_dim).
        key: keys (..., n_k, head_dim).
        value: values (..., n_k, value_dim). Leading dimensions broadcast.
        attn_mask: boolean (True means attend) or floats to add, broadcastable to (..., n_q, n_k).
        dropout_p: probability of dropping a weight; default 0.
        is_causal: apply a causal mask aligned at the first query and the first key.
        scale: factor of the scores; None, the default, means 1/√head_dim.
        enable_gqa: let groups of query heads share a key head.

    Returns:
        The output (..., n_q, value_dim). A query that attends to no key returns zero.

    >>> q, k, v = (torch.randn(2, 4, 10, 8) for _ in range(3))
    >>> torch.allclose(scaled_dot_product_attention(q, k, v), _torch_sdpa(q, k, v), atol=1e-6)
    True
    """
    options = sdpa_to_attention_kwargs(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    if dropout_p == 1.0:
        output = attention(**{**options, "dropout": 0.0}) * 0.0
    else:
        output = attention(**options)
    result: Tensor = output[0] if enable_gqa and query.dim() == 3 else output
    return result


def sdpa_to_attention_kwargs(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | Tensor | None = None,
    enable_gqa: bool = False,
) -> dict[str, Any]:
    """Return the keyword arguments of `regard.attention` that compute the same as SDPA."""
    if enable_gqa and query.dim() == 3:  # the first of three dimensions is then that of the heads
        query, key, value = (x.unsqueeze(0) for x in (query, key, value))
    if attn_mask is not None and is_causal:
        raise ArgumentError(
            "attn_mask must not be given together with is_causal=True; got both. Include the causal mask in attn_mask."
        )
    # autocast also lowers the precision of torch's SDPA; it does not know the device meta
    if query.device.type != "meta" and torch.is_autocast_enabled(query.device.type):
        dtype = torch.get_autocast_dtype(query.device.type)
        query, key, value = (x.to(dtype) if x.dtype != torch.float64 else x for x in (query, key, value))
    leading = query.shape[:-2]
    if not enable_gqa and not leading == key.shape[:-2] == value.shape[:-2]:
        try:
            leading = torch.broadcast_shapes(query.shape[:-2], key.shape[:-2], value.shape[:-2])
        except RuntimeError:
            shapes = ", ".join(str(tuple(x.shape)) for x in (query, key, value))
            raise ArgumentError(
                f"the leading dimensions of query, key and value must broadcast; got shapes {shapes}. "
                "For grouped heads use enable_gqa=True."
            ) from None
        query, key, value = (x.expand(*leading, *x.shape[-2:]) for x in (query, key, value))
    call_score: Any = None if scale is None else score.scaled_dot(scale)
    call_mask: Any = mask.causal() if is_causal else None
    if attn_mask is not None:
        batched_mask = _expand_mask(attn_mask, leading, query.shape[-2], key.shape[-2])
        if attn_mask.dtype == torch.bool:
            call_mask = batched_mask
        else:
            call_score = score.scaled_dot(scale).then(score.bias(batched_mask))
    # only a causal mask depends on the offset, and for equal lengths the default offset is 0
    query_offset = 0 if is_causal and query.shape[-2] != key.shape[-2] else None
    return {
        "q": query,
        "k": key,
        "v": value,
        "score": call_score,
        "mask": call_mask,
        "dropout": dropout_p,
        "query_offset": query_offset,
    }


def _expand_mask(attn_mask: Tensor, leading: tuple[int, ...], n_q: int, n_k: int) -> Tensor:
    """Return the mask with its leading dimensions flattened to (batch, heads)."""
    try:
        torch.broadcast_shapes(attn_mask.shape, (*leading, n_q, n_k))
    except RuntimeError:
        raise ArgumentError(
            f"attn_mask must broadcast to {(*leading, n_q, n_k)}; got shape {tuple(attn_mask.shape)}."
        ) from None
    missing = len(leading) + 2 - attn_mask.dim()
    return flatten_batch_dims(attn_mask.reshape((1,) * missing + tuple(attn_mask.shape)), leading)


class _OverrideSdpaMode(TorchFunctionMode):
    """Redirects SDPA to regard. An active mode also disables torch's fused encoder layers, which do not call SDPA."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is _torch_sdpa:
            return scaled_dot_product_attention(*args, **(kwargs or {}))
        if original_function(function) is original_function(torch.nn.functional.multi_head_attention_forward):
            # torch disables modes inside this function
            with override_function(torch.nn.functional, "scaled_dot_product_attention", _sdpa_override):
                return function(*args, **(kwargs or {}))
        return function(*args, **(kwargs or {}))


def _sdpa_override(_: Any, *args: Any, **kwargs: Any) -> Tensor:
    return scaled_dot_product_attention(*args, **kwargs)


@contextmanager
def override_sdpa() -> Iterator[None]:
    """Inside the context, `torch.nn.functional.scaled_dot_product_attention` runs on regard, in this thread only.

    This includes calls by `torch.nn` modules and by code that imported the function by name.

    >>> encoder = torch.nn.TransformerEncoderLayer(16, 4, batch_first=True).eval()
    >>> x = torch.randn(2, 10, 16)
    >>> with override_sdpa(), torch.no_grad():
    ...     y = encoder(x)
    >>> torch.allclose(y, encoder(x), atol=1e-5)
    True
    """
    with _OverrideSdpaMode():
        yield
