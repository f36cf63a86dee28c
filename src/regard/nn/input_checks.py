"""Checks of the tensors that layers receive: shapes, dtypes and positions, before any work."""

from typing import Any

import torch
from torch import Tensor

from regard import checks
from regard.errors import ArgumentError

UNQUANTIZED_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def check_hidden_states(x: Tensor, name: str, dim: int, parameter: Tensor | None = None) -> Tensor:
    """Check that x is (batch, n, dim) with the dtype of the layer's parameter; return it."""
    checks.tensor(x, name, shape=("batch", "n", dim), dtype_kind="floats")
    if parameter is not None:
        check_layer_dtype(x, name, parameter)
    return x


def check_last_dim(x: Tensor, name: str, dim: int, parameter: Tensor) -> Tensor:
    """Check that x is (..., dim) with the dtype of the layer's parameter; return it."""
    checks.tensor(x, name, dtype_kind="floats")
    if x.dim() == 0 or x.shape[-1] != dim:
        raise ArgumentError(f"{name} must have shape (..., {dim}); got {tuple(x.shape)}.")
    check_layer_dtype(x, name, parameter)
    return x


def check_layer_dtype(x: Tensor, name: str, parameter: Any) -> None:
    """Raise if the dtype of x differs from that of an unquantized parameter; quantized layers convert by themselves."""
    if not isinstance(parameter, Tensor) or parameter.dtype not in UNQUANTIZED_DTYPES or x.dtype == parameter.dtype:
        return
    if x.device.type != "meta" and torch.is_autocast_enabled(x.device.type):
        return
    raise ArgumentError(
        f"{name} must have the dtype of the layer, {parameter.dtype}; got {x.dtype}. Convert one of them with .to()."
    )


def check_position_ids(position_ids: Tensor, batch_size: int, n: int) -> Tensor:
    """Check the positions of n tokens: integers of shape (n,) or (batch, n); return them."""
    checks.tensor(position_ids, "position_ids", dims=(1, 2), dtype_kind="integers")
    if position_ids.shape[-1] != n or (position_ids.dim() == 2 and position_ids.shape[0] not in (1, batch_size)):
        raise ArgumentError(
            f"position_ids must have shape ({n},) or ({batch_size}, {n}), one position per token; got "
            f"{tuple(position_ids.shape)}."
        )
    return position_ids


def check_batch_indices(order: Tensor, batch_size: int) -> Tensor:
    """Check the batch indices `order` (new batch size,): integers from 0 to batch_size - 1; return them."""
    checks.tensor(order, "order", shape=("batch",), dtype_kind="integers")
    check_range(order, "order", batch_size - 1)
    return order


def check_token_ids(tokens: Tensor, name: str = "tokens") -> Tensor:
    """Check token ids: a tensor of int64 or int32, as torch's embeddings require; return it."""
    checks.tensor(tokens, name, dtype_kind="integers")
    if tokens.dtype not in (torch.int64, torch.int32):
        raise ArgumentError(f"{name} must be int64 or int32; got {tokens.dtype}.")
    return tokens


def check_token_batch(token_ids: Tensor, name: str = "tokens", *, min_tokens: int = 0) -> Tensor:
    """Check token ids (batch, n) with n >= `min_tokens`; return them. A rank may hold 0 tokens of a short text."""
    check_token_ids(token_ids, name)
    if token_ids.dim() != 2 or token_ids.shape[1] < min_tokens:
        minimum = f" with at least {min_tokens} token each" if min_tokens else ""
        raise ArgumentError(f"{name} must be (batch, n){minimum}; got shape {tuple(token_ids.shape)}.")
    return token_ids


def check_lengths(lengths: Tensor, batch_size: int, n: int) -> Tensor:
    """Check lengths (batch,): integers from 0 to n; return them."""
    checks.tensor(lengths, "lengths", shape=(batch_size,), dtype_kind="integers")
    check_range(lengths, "lengths", n)
    return lengths


def check_range(x: Tensor, name: str, last: int) -> None:
    """Raise unless all integers of x are from 0 to `last`; values are not checked while a graph is compiled."""
    if torch.compiler.is_compiling() or x.device.type == "meta" or not x.numel():
        return
    smallest, largest = (int(number) for number in x.aminmax())
    if smallest < 0 or largest > last:
        raise ArgumentError(f"{name} must be from 0 to {last}; got {smallest} to {largest}.")


def beams_per_source(batch: Tensor, name: str, num_sources: int) -> int:
    """Return the number of batch elements per source: 1, or the number of beams."""
    if num_sources == 0 or len(batch) == 0 or len(batch) % num_sources:
        raise ArgumentError(
            f"{name} must have {num_sources} batch elements, or a multiple of this for beams; got {len(batch)}."
        )
    return len(batch) // num_sources
