"""Merge attention over disjoint sets of keys."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.checks import describe, finite_number, tensor
from regard.errors import ArgumentError
from regard.tensors.convert import Array, as_tensor


def merge_states(*states: tuple[Array, Array], sink: float | Tensor | None = None) -> tuple[Array, Array]:
    """Merge the attention of the same queries over disjoint sets of keys into the attention over all keys.

    Merging is associative: o = sum_r exp(lse_r - lse) o_r with lse = log sum_r exp(lse_r).

    Args:
        states: Pairs of the output (..., n_q, value_dim) and the log-sum-exp (..., n_q) of each set of keys.
        sink: The logit of `normalizer.sink(logit)`, if the parts were computed with it. Default: none.

    Returns:
        The output and the log-sum-exp over all keys.

    >>> import regard
    >>> q, k, v = (torch.randn(5, 4) for _ in range(3))
    >>> parts = [regard.attention_with_weights(q, k[s], v[s]) for s in (slice(0, 2), slice(2, 5))]
    >>> output, lse = merge_states(*((part.output, part.lse) for part in parts))
    >>> torch.allclose(output, regard.attention(q, k, v), atol=1e-6)
    True
    """
    if not states:
        raise ArgumentError("merge_states needs at least one pair (output, lse); got none.")
    for state in states:
        if not isinstance(state, (tuple, list)) or len(state) != 2:
            raise ArgumentError(f"each state must be a pair (output, lse); got {describe(state)}.")
    is_numpy = isinstance(states[0][0], np.ndarray)
    pairs = [(as_tensor(output, "output"), as_tensor(lse, "lse")) for output, lse in states]
    for output, lse in pairs:
        for name, x in (("output", output), ("lse", lse)):
            tensor(x, name, dtype_kind="floats")
        expected = tuple(output.shape[:-1])
        if output.dim() < 1 or expected != tuple(lse.shape):
            raise ArgumentError(
                f"lse must have the shape of output without its last dimension, {expected}; got {tuple(lse.shape)}."
            )
        if output.shape != pairs[0][0].shape:
            got = f"{tuple(pairs[0][0].shape)} and {tuple(output.shape)}"
            raise ArgumentError(f"all outputs must have the same shape; got {got}.")
    stacked = torch.stack([lse for _, lse in pairs])
    is_empty = (stacked == -torch.inf).all(0)  # the derivative of an empty sum would be NaN
    lse = torch.where(is_empty, -torch.inf, torch.logsumexp(torch.where(is_empty, 0.0, stacked), dim=0))
    log_total, log_parts = lse, stacked
    if sink is not None:  # each part was divided by exp(lse_r) + exp(sink)
        extra = _sink_state(sink, lse)
        extra = extra.unsqueeze(-1) if extra.dim() == 1 else extra
        log_total, log_parts = torch.logaddexp(lse, extra), torch.logaddexp(stacked, extra)
    # a state without visible keys has weight 0, also if no state has any
    hidden = log_parts == -torch.inf
    log_weight = torch.where(hidden, 0.0, log_parts - torch.where(hidden, 0.0, log_total))
    weight = torch.where(hidden, 0.0, torch.exp(log_weight))
    outputs = torch.stack([output for output, _ in pairs])
    merged = (weight.unsqueeze(-1) * outputs.to(weight.dtype)).sum(0).to(outputs.dtype)
    to_array: Any = Tensor.numpy if is_numpy else lambda x: x
    return to_array(merged), to_array(lse)


def _sink_state(sink: float | Tensor, lse: Tensor) -> Tensor:
    if not isinstance(sink, Tensor):
        return lse.new_tensor(finite_number(sink, "sink"))
    heads = lse.shape[-2] if lse.dim() > 1 else 1
    if sink.dim() > 1 or sink.numel() not in (1, heads) or not sink.is_floating_point():
        raise ArgumentError(f"sink must be one number, or one for each of {heads} heads; got {describe(sink)}.")
    return sink.to(lse)
