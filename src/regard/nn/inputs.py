"""Checks of the tensors that layers receive: shapes, dtypes and positions, before any work."""

from typing import Any

import torch
from torch import Tensor

from regard import checks
from regard.errors import SpecError

PLAIN_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def vectors(x: Any, name: str, width: int, parameter: Tensor | None = None) -> Tensor:
    """x, which is (batch, n, width) with the dtype of the layer's parameter."""
    checks.tensor(x, name, shape=("batch", "n", width), dtype="floats")
    if parameter is not None:
        same_dtype(x, name, parameter)
    return x  # type: ignore[no-any-return]  # a tensor by now


def any_vectors(x: Any, name: str, width: int, parameter: Tensor) -> Tensor:
    """x, which is (..., width) with the dtype of the layer's parameter."""
    checks.tensor(x, name, dtype="floats")
    if x.dim() == 0 or x.shape[-1] != width:
        raise SpecError(f"{name} must have shape (..., {width}); got {tuple(x.shape)}.")
    same_dtype(x, name, parameter)
    return x  # type: ignore[no-any-return]  # a tensor by now


def same_dtype(x: Tensor, name: str, parameter: Any) -> None:
    """Refuses another dtype than that of a plain parameter; quantized layers convert by themselves."""
    if not isinstance(parameter, Tensor) or parameter.dtype not in PLAIN_DTYPES or x.dtype == parameter.dtype:
        return
    if x.device.type != "meta" and torch.is_autocast_enabled(x.device.type):
        return
    raise SpecError(
        f"{name} must have the dtype of the layer, {parameter.dtype}; got {x.dtype}. Convert one of them with .to()."
    )


def positions(at: Any, batch: int, n: int) -> Tensor:
    """Positions of n tokens: whole numbers of shape (n,) or (batch, n)."""
    checks.tensor(at, "at", dims=(1, 2), dtype="integers")
    if at.shape[-1] != n or (at.dim() == 2 and at.shape[0] not in (1, batch)):
        raise SpecError(f"at must have shape ({n},) or ({batch}, {n}), a position a token; got {tuple(at.shape)}.")
    return at  # type: ignore[no-any-return]  # a tensor by now


def order(order: Any, batch: int) -> Tensor:
    """Numbers of batch elements, (new batch,)."""
    checks.tensor(order, "order", shape=("batch",), dtype="integers")
    if torch.compiler.is_compiling() or order.device.type == "meta" or not order.numel():
        return order  # type: ignore[no-any-return]  # a tensor by now
    least, most = int(order.min()), int(order.max())
    if least < 0 or most >= batch:
        raise SpecError(f"order must hold numbers from 0 to {batch - 1}; got {least} to {most}.")
    return order  # type: ignore[no-any-return]  # a tensor by now


def tokens(tokens: Any, name: str = "tokens") -> Tensor:
    """Token numbers as torch's embeddings take them: a tensor of int64 or int32."""
    checks.tensor(tokens, name, dtype="integers")
    if tokens.dtype not in (torch.int64, torch.int32):
        raise SpecError(f"{name} must be int64 or int32; got {tokens.dtype}.")
    return tokens  # type: ignore[no-any-return]  # a tensor by now


def token_rows(rows: Any, name: str = "tokens", *, at_least: int = 0) -> Tensor:
    """Token numbers (batch, n); n may be 0, as on a rank that holds no part of a short text, unless `at_least` is 1."""
    tokens(rows, name)
    if rows.dim() != 2 or rows.shape[1] < at_least:
        least = f" with at least {at_least} token each" if at_least else ""
        raise SpecError(f"{name} must be (batch, n){least}; got shape {tuple(rows.shape)}.")
    return rows  # type: ignore[no-any-return]  # a tensor by now


def lengths(lengths: Any, batch: int, n: int) -> Tensor:
    """How many of n rows are real, a whole number from 0 to n for each batch element."""
    checks.tensor(lengths, "lengths", shape=(batch,), dtype="integers")
    if not torch.compiler.is_compiling() and lengths.numel():
        least, most = (int(end) for end in lengths.aminmax())
        if least < 0 or most > n:
            raise SpecError(f"lengths must be from 0 to {n}; got {least} to {most}.")
    return lengths  # type: ignore[no-any-return]  # a tensor by now


def copies(rows: Tensor, name: str, count: int) -> int:
    """How often each of `count` sources occurs in a batch of rows: once, or as often as there are beams."""
    if count == 0 or len(rows) == 0 or len(rows) % count:
        raise SpecError(f"{name} must have {count} batch elements, or a multiple with beams; got {len(rows)}.")
    return len(rows) // count
