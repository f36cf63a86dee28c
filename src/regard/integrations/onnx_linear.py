"""ONNX's LinearAttention (opset 27): states that forget, spoken with ONNX's own names and computed by regard."""

from __future__ import annotations

import math
from typing import Generic, NamedTuple

import torch
from torch import Tensor

from regard.argument_types import check_types
from regard.errors import SpecError
from regard.integrations.onnx_arrays import Array, as_tensor, cut_heads, like
from regard.mechanism.state import delta, gated, retention

RULES = ("linear", "gated", "delta", "gated_delta")


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
    """What an ONNX LinearAttention node gives for these inputs and attributes.

    query is (batch, length, q_num_heads * width), key and value the same with `kv_num_heads`; a head of keys, and its
    state (batch, kv_num_heads, width, value width), serves a group of heads of queries. `decay` is a logarithm, one a
    channel or one a head; `beta` one a head or one for all. The rules are those of `regard.mechanism.state`, and
    outputs are multiplied with `scale`, 1/√width if that is 0.

    >>> x = torch.ones(1, 3, 1)
    >>> found = linear_attention(x, x, x, q_num_heads=1, kv_num_heads=1, update_rule="linear")
    >>> found.output.flatten().tolist()
    [1.0, 2.0, 3.0]
    """
    rule = update_rule.decode() if isinstance(update_rule, bytes) else update_rule
    _check(rule, decay is not None, beta is not None, q_num_heads, kv_num_heads)
    working = torch.promote_types(as_tensor(query).dtype, torch.float32)  # sums in float32 at least
    q = cut_heads(as_tensor(query).to(working), q_num_heads, "query", "q_num_heads")
    k, v = (
        cut_heads(as_tensor(x).to(working), kv_num_heads, name, "kv_num_heads")
        for x, name in ((key, "key"), (value, "value"))
    )
    batch, _, n, width = q.shape
    if not q.shape[0] == k.shape[0] == v.shape[0] > 0 or not n == k.shape[2] == v.shape[2]:
        shapes = ", ".join(str(tuple(x.shape)) for x in (query, key, value))
        raise SpecError(f"query, key and value must have one batch, not empty, and one length; got {shapes}.")
    if past_state is not None and (past_state.ndim != 4 or past_state.shape[0] != batch):
        raise SpecError(f"past_state must be ({batch}, heads, width, width); got shape {tuple(past_state.shape)}.")
    # heads that share a state ask one after another: their own dimension, beside that of the states
    asked = q.unflatten(1, (kv_num_heads, -1)).transpose(1, 2)
    keys, values = (x.unsqueeze(1).expand(batch, asked.shape[1], *x.shape[1:]) for x in (k, v))
    state = None if past_state is None else as_tensor(past_state).to(working).unsqueeze(1)
    state = None if state is None else state.expand(batch, asked.shape[1], *state.shape[2:])
    gates = _shared(decay, kv_num_heads, keys, working)
    shares = _shared(beta, kv_num_heads, keys, working)
    gates = None if gates is None else gates.exp()
    if rule in ("delta", "gated_delta"):
        assert shares is not None
        found, after = delta(asked, keys, values, shares[..., 0], gates=gates, state=state, chunk=chunk_size)
    elif gates is not None and rule == "gated":
        found, after = gated(asked, keys, values, gates, state=state, chunk=min(chunk_size, 16))
    else:
        found, after = retention(asked, keys, values, 1.0, state=state, chunk=chunk_size)
    output = found.transpose(1, 2).reshape(batch, q_num_heads, n, -1) * (scale or 1.0 / math.sqrt(width))
    return LinearAttentionOutputs(like(query, output.transpose(1, 2).flatten(2)), like(query, after[:, 0]))


def _shared(given: Array | None, heads: int, keys: Tensor, dtype: torch.dtype) -> Tensor | None:
    """Numbers (batch, length, heads * width), (batch, length, heads) or (batch, length, 1), for all that ask."""
    if given is None:
        return None
    numbers = as_tensor(given).to(dtype)
    if numbers.dim() != 3 or numbers.shape[:2] != (keys.shape[0], keys.shape[-2]):
        wanted = f"({keys.shape[0]}, {keys.shape[-2]}, ...)"
        raise SpecError(f"decay and beta must be {wanted}; got shape {tuple(numbers.shape)}.")
    apart = (
        numbers.unsqueeze(1) if numbers.shape[2] == 1 else cut_heads(numbers, heads, "decay or beta", "kv_num_heads")
    )
    return apart.unsqueeze(1).expand(*keys.shape[:-1], apart.shape[-1])


def _check(rule: str, has_decay: bool, has_beta: bool, q_heads: int, kv_heads: int) -> None:
    if rule not in RULES:
        raise SpecError(f"update_rule must be one of {', '.join(RULES)}; got {rule!r}.")
    for name, is_there, wanted in (("decay", has_decay, "gated" in rule), ("beta", has_beta, "delta" in rule)):
        if wanted and not is_there:
            raise SpecError(f"{name} must be given for the update rule {rule!r}; got none.")
    if kv_heads < 1 or q_heads % kv_heads:
        raise SpecError(f"kv_num_heads must divide q_num_heads; got {kv_heads} and {q_heads}.")
