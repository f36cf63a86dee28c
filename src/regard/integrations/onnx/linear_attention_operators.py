"""The ONNX operator LinearAttention (opset 27), with ONNX's parameter names."""

from __future__ import annotations

import math
from typing import Generic, NamedTuple

import torch
from torch import Tensor

from regard.argument_types import check_types
from regard.errors import ArgumentError
from regard.integrations.onnx.operands import array_to_tensor, as_input_type, split_heads
from regard.mechanisms.linear_recurrence import delta_rule, gla, retention
from regard.tensors.convert import Array

UPDATE_RULES = ("linear", "gated", "delta", "gated_delta")


class LinearAttentionOutputs(NamedTuple, Generic[Array]):
    """The outputs of a LinearAttention node, in ONNX's order."""

    output: Array
    present_state: Array


@check_types
def linear_attention(
    query: Array,
    key: Array,
    value: Array,
    past_state: Array | None = None,
    decay: Array | None = None,
    beta: Array | None = None,
    *,
    q_num_heads: int,
    kv_num_heads: int,
    scale: float = 0.0,
    update_rule: str | bytes = "gated_delta",
    chunk_size: int = 64,
) -> LinearAttentionOutputs[Array]:
    """Compute an ONNX LinearAttention node; see `regard.mechanisms.linear_recurrence` for the update rules.

    Args:
        query: (batch, n, q_num_heads * head_dim).
        key: (batch, n, kv_num_heads * head_dim). Each key head, with its state, serves a group of query heads.
        value: (batch, n, kv_num_heads * value_dim).
        past_state: initial state (batch, kv_num_heads, head_dim, value_dim); None, the default, means zeros.
        decay: logarithm of the decay, (batch, n, kv_num_heads * head_dim) or (batch, n, kv_num_heads); for gated rules.
        beta: (batch, n, kv_num_heads) or (batch, n, 1); for delta rules.
        scale: factor of the output; 0, the default, means 1/√head_dim.
        update_rule: "linear", "gated", "delta" or "gated_delta" (the default).
        chunk_size: number of tokens that are processed at once.

    >>> x = torch.ones(1, 3, 1)
    >>> result = linear_attention(x, x, x, q_num_heads=1, kv_num_heads=1, update_rule="linear")
    >>> result.output.flatten().tolist()
    [1.0, 2.0, 3.0]
    """
    rule = update_rule.decode() if isinstance(update_rule, bytes) else update_rule
    _check(rule, decay is not None, beta is not None, q_num_heads, kv_num_heads)
    dtype = torch.promote_types(array_to_tensor(query).dtype, torch.float32)  # sums in float32 at least
    q = split_heads(array_to_tensor(query).to(dtype), q_num_heads, "query", "q_num_heads")
    k, v = (
        split_heads(array_to_tensor(x).to(dtype), kv_num_heads, name, "kv_num_heads")
        for x, name in ((key, "key"), (value, "value"))
    )
    batch_size, _, n, head_dim = q.shape
    if not q.shape[0] == k.shape[0] == v.shape[0] > 0 or not n == k.shape[2] == v.shape[2]:
        shapes = ", ".join(str(tuple(x.shape)) for x in (query, key, value))
        raise ArgumentError(
            f"query, key and value must have the same length and the same batch size of at least 1; got {shapes}."
        )
    if past_state is not None and (past_state.ndim != 4 or past_state.shape[0] != batch_size):
        raise ArgumentError(
            f"past_state must be ({batch_size}, heads, head_dim, value_dim); got shape {tuple(past_state.shape)}."
        )
    # (batch, group, kv heads, n, head_dim): the query heads of a group share a state
    queries = q.unflatten(1, (kv_num_heads, -1)).transpose(1, 2)
    group_size = queries.shape[1]
    keys, values = (x.unsqueeze(1).expand(batch_size, group_size, *x.shape[1:]) for x in (k, v))
    state = None if past_state is None else array_to_tensor(past_state).to(dtype).unsqueeze(1)
    state = None if state is None else state.expand(batch_size, group_size, *state.shape[2:])
    log_gates = _expand_gate(decay, kv_num_heads, keys, dtype)
    betas = _expand_gate(beta, kv_num_heads, keys, dtype)
    gates = None if log_gates is None else log_gates.exp()
    if rule in ("delta", "gated_delta"):
        assert betas is not None
        grouped_output, final_state = delta_rule(
            queries, keys, values, betas[..., 0], gates=gates, initial_state=state, chunk_size=chunk_size
        )
    elif gates is not None and rule == "gated":
        grouped_output, final_state = gla(
            queries, keys, values, gates, initial_state=state, chunk_size=min(chunk_size, 16)
        )
    else:
        grouped_output, final_state = retention(queries, keys, values, 1.0, initial_state=state, chunk_size=chunk_size)
    output = grouped_output.transpose(1, 2).reshape(batch_size, q_num_heads, n, -1)
    output = output * (scale or 1.0 / math.sqrt(head_dim))
    return LinearAttentionOutputs(
        as_input_type(query, output.transpose(1, 2).flatten(2)), as_input_type(query, final_state[:, 0])
    )


def _expand_gate(gate: Array | None, num_heads: int, keys: Tensor, dtype: torch.dtype) -> Tensor | None:
    """Expand (batch, n, heads * dim), (batch, n, heads) or (batch, n, 1) to the groups and heads of `keys`."""
    if gate is None:
        return None
    values = array_to_tensor(gate).to(dtype)
    if values.dim() != 3 or values.shape[:2] != (keys.shape[0], keys.shape[-2]):
        raise ArgumentError(
            f"decay and beta must be ({keys.shape[0]}, {keys.shape[-2]}, ...); got shape {tuple(values.shape)}."
        )
    split = (
        values.unsqueeze(1) if values.shape[2] == 1 else split_heads(values, num_heads, "decay or beta", "kv_num_heads")
    )
    return split.unsqueeze(1).expand(*keys.shape[:-1], split.shape[-1])


def _check(update_rule: str, has_decay: bool, has_beta: bool, q_num_heads: int, kv_num_heads: int) -> None:
    if update_rule not in UPDATE_RULES:
        raise ArgumentError(f"update_rule must be one of {', '.join(UPDATE_RULES)}; got {update_rule!r}.")
    for name, is_present, is_required in (
        ("decay", has_decay, "gated" in update_rule),
        ("beta", has_beta, "delta" in update_rule),
    ):
        if is_required and not is_present:
            raise ArgumentError(f"{name} must be given for the update rule {update_rule!r}; got none.")
    if kv_num_heads < 1 or q_num_heads % kv_num_heads:
        raise ArgumentError(f"kv_num_heads must divide q_num_heads; got {kv_num_heads} and {q_num_heads}.")
