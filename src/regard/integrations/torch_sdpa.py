"""torch's own attention call, answered by regard: the same arguments, the same meaning."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from regard.argument_types import check_types
from regard.attention import attention
from regard.errors import SpecError
from regard.integrations.function_override import original_of, overridden
from regard.spec import mask, score
from regard.spec.array import over_pairs

_original = torch.nn.functional.scaled_dot_product_attention


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
    """`torch.nn.functional.scaled_dot_product_attention`, with its conventions: causal is aligned at the start, a
    boolean mask says who may attend, a float mask is added, and dimensions before the length broadcast.

    >>> q, k, v = (torch.randn(2, 4, 10, 8) for _ in range(3))
    >>> torch.allclose(scaled_dot_product_attention(q, k, v), _original(q, k, v), atol=1e-6)
    True
    """
    asked = question(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    if dropout_p == 1.0:
        output = attention(**{**asked, "dropout": 0.0}) * 0.0
    else:
        output = attention(**asked)
    return output[0] if enable_gqa and query.dim() == 3 else output  # type: ignore[no-any-return]  # tensors in, tensor out


def question(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | Tensor | None = None,
    enable_gqa: bool = False,
) -> dict[str, Any]:
    """What `attention` is to be asked in place of torch's call: its arguments by name."""
    if enable_gqa and query.dim() == 3:  # the first of three dimensions is heads then
        query, key, value = (x.unsqueeze(0) for x in (query, key, value))
    if attn_mask is not None and is_causal:
        raise SpecError(
            "attn_mask must not be given together with is_causal=True; got both. Put the causal part into the mask."
        )
    if torch.is_autocast_enabled(query.device.type):  # torch runs this call in autocast's precision
        exact = torch.get_autocast_dtype(query.device.type)
        query, key, value = (x.to(exact) if x.dtype != torch.float64 else x for x in (query, key, value))
    leading = query.shape[:-2]
    if not enable_gqa and not leading == key.shape[:-2] == value.shape[:-2]:
        try:
            leading = torch.broadcast_shapes(query.shape[:-2], key.shape[:-2], value.shape[:-2])
        except RuntimeError:
            shapes = ", ".join(str(tuple(x.shape)) for x in (query, key, value))
            raise SpecError(
                f"the dimensions before the length must broadcast; got {shapes}. "
                "For shared key heads use enable_gqa=True."
            ) from None
        query, key, value = (x.expand(*leading, *x.shape[-2:]) for x in (query, key, value))
    chosen_score: Any = None if scale is None else score.scaled_dot(scale)
    chosen_mask: Any = mask.causal() if is_causal else None
    if attn_mask is not None:
        full = _as_four(attn_mask, leading, query.shape[-2], key.shape[-2])
        if attn_mask.dtype == torch.bool:
            chosen_mask = full
        else:
            chosen_score = score.scaled_dot(scale).then(score.bias(full))
    # only causal asks where queries stand, and where they are as many as the keys, that is where regard puts them
    start = 0 if is_causal and query.shape[-2] != key.shape[-2] else None
    options = {"score": chosen_score, "mask": chosen_mask, "dropout": dropout_p, "start": start}
    return {"q": query, "k": key, "v": value, **options}


def _as_four(attn_mask: Tensor, leading: tuple[int, ...], n_q: int, n_k: int) -> Tensor:
    """The mask with (batch, heads) before the lengths, as regard counts them."""
    try:
        torch.broadcast_shapes(attn_mask.shape, (*leading, n_q, n_k))
    except RuntimeError:
        raise SpecError(
            f"attn_mask must broadcast to {(*leading, n_q, n_k)}; got shape {tuple(attn_mask.shape)}."
        ) from None
    missing = len(leading) + 2 - attn_mask.dim()
    return over_pairs(attn_mask.reshape((1,) * missing + tuple(attn_mask.shape)), leading)


class _Replacing(TorchFunctionMode):
    """Sends every call of torch's attention to regard's. A mode also turns off torch's fused encoder layers, which
    would otherwise not make that call."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is _original:
            return scaled_dot_product_attention(*args, **(kwargs or {}))
        if original_of(function) is original_of(torch.nn.functional.multi_head_attention_forward):
            # its inner call happens where no mode is active
            with overridden(torch.nn.functional, "scaled_dot_product_attention", _replacement):
                return function(*args, **(kwargs or {}))
        return function(*args, **(kwargs or {}))


def _replacement(_: Any, *args: Any, **kwargs: Any) -> Tensor:
    return scaled_dot_product_attention(*args, **kwargs)


@contextmanager
def replacing_sdpa() -> Iterator[None]:
    """Inside, every call of `torch.nn.functional.scaled_dot_product_attention` in this thread runs on regard.

    >>> encoder = torch.nn.TransformerEncoderLayer(16, 4, batch_first=True).eval()
    >>> x = torch.randn(2, 10, 16)
    >>> with replacing_sdpa(), torch.no_grad():
    ...     y = encoder(x)
    >>> torch.allclose(y, encoder(x), atol=1e-5)
    True
    """
    with _Replacing():
        yield
