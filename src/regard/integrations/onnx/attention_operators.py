"""The ONNX operators Attention (opset 23 to 25) and RotaryEmbedding, with ONNX's parameter names.

The `onnx` package is not needed. Tensors return tensors. NumPy arrays, including bfloat16 arrays of `ml_dtypes`, return
arrays.
"""

from __future__ import annotations

import functools
import math
import operator
from dataclasses import dataclass
from typing import Generic, NamedTuple

import torch
from torch import Tensor

from regard import attention_with_weights, mask, score
from regard.argument_types import check_types
from regard.errors import ArgumentError
from regard.integrations.onnx.operands import array_to_tensor, as_input_type, split_heads
from regard.tensors.convert import Array

# ONNX type numbers that `softmax_precision` accepts
_SOFTMAX_DTYPES = {1: torch.float32, 10: torch.float16, 11: torch.float64, 16: torch.bfloat16}


class AttentionOutputs(NamedTuple, Generic[Array]):
    """The outputs of an Attention node, in ONNX's order; `qk_matmul_output` is None if its mode is None."""

    Y: Array
    present_key: Array
    present_value: Array
    qk_matmul_output: Array | None


@check_types
def attention(
    Q: Array,
    K: Array,
    V: Array,
    attn_mask: Array | None = None,
    past_key: Array | None = None,
    past_value: Array | None = None,
    nonpad_kv_seqlen: Array | None = None,
    *,
    is_causal: int = 0,
    kv_num_heads: int | None = None,
    left_window_size: int = -1,
    q_num_heads: int | None = None,
    qk_matmul_output_mode: int | None = 0,
    right_window_size: int = -1,
    scale: float | None = None,
    softcap: float = 0.0,
    softmax_precision: int | None = None,
    backend: str | None = None,
) -> AttentionOutputs[Array]:
    """Compute an ONNX Attention node.

        Y = softmax(softcap * tanh(scale * Q Kᵀ / softcap) + attn_mask) V

    over keys p - left <= j <= p + right, and j <= p if causal. The position p of query i is i + past. With
    `nonpad_kv_seqlen` it is i + nonpad_kv_seqlen - n_q.

    Args:
        Q: queries (batch, heads, n_q, head_dim), or (batch, n_q, heads * head_dim) with `q_num_heads`.
        K, V: keys and values with n_k rows, in the layout of Q; they may have fewer heads (`kv_num_heads`).
        attn_mask: boolean (True means attend) or floats to add, broadcastable to (batch, heads, n_q, past + n_k). Keys
            beyond its last column are masked, so a mask with one column masks every key except the first, as opset 24
            specifies.
        past_key, past_value: cache (batch, heads, past, head_dim) that precedes K and V.
        nonpad_kv_seqlen: number of keys (batch,) that are not padding, if K and V are the whole cache.
        is_causal: 1 applies a causal mask.
        left_window_size, right_window_size: number of visible keys before and after p; -1, the default, means all.
        scale: factor of the scores; None, the default, means 1/√head_dim.
        softcap: cap of the scores; 0, the default, means none.
        qk_matmul_output_mode: content of `qk_matmul_output` (batch, heads, n_q, past + n_k): the scores (0, the
            default), the scores after softcap (1) or after the mask (2), or the weights (3). None omits the output, and
            memory stays linear in the lengths.
        softmax_precision: ONNX type number. Only float64 has an effect, since sums are never less precise than the
            inputs.
        backend: see `regard.attention`.

    >>> import numpy as np
    >>> q = np.ones((1, 2, 3, 4), dtype=np.float32)
    >>> attention(q, q, q, is_causal=1, qk_matmul_output_mode=None).Y.shape
    (1, 2, 3, 4)
    """
    _check_attributes(qk_matmul_output_mode, softmax_precision, softcap, left_window_size, right_window_size)
    _check_cache(past_key is not None, past_value is not None, nonpad_kv_seqlen is not None)
    q, k, v = _to_four_dimensions(array_to_tensor(Q), array_to_tensor(K), array_to_tensor(V), q_num_heads, kv_num_heads)
    query_offset: int | Tensor = 0
    lengths = None
    if past_key is not None and past_value is not None:
        query_offset = past_key.shape[2]
        k, v = _append(array_to_tensor(past_key), k, "key"), _append(array_to_tensor(past_value), v, "value")
    elif nonpad_kv_seqlen is not None:
        lengths = array_to_tensor(nonpad_kv_seqlen).reshape(-1)
        if lengths.numel() and lengths.min() < 0:
            raise ArgumentError(f"nonpad_kv_seqlen must not be negative; got {lengths.tolist()}.")
        query_offset = lengths - q.shape[2]

    if not q.shape[3]:
        raise ArgumentError(f"Q must have a head size of at least 1; got shape {tuple(q.shape)}.")
    dtype = torch.promote_types(q.dtype, v.dtype)
    if softmax_precision is not None and _SOFTMAX_DTYPES[softmax_precision] == torch.float64:
        dtype = torch.float64
    visible, bias = _parse_mask(None if attn_mask is None else array_to_tensor(attn_mask), k.shape[2], dtype)
    node = _AttentionNode(
        q=q.to(dtype),
        k=k.to(dtype),
        scale=1 / math.sqrt(q.shape[3]) if scale is None else scale,
        softcap=softcap,
        bias=bias,
        mask=_build_mask(q.shape[2], k.shape[2], is_causal, left_window_size, right_window_size, lengths, visible),
        query_offset=query_offset,
        backend=backend,
    )
    output, qk_matmul_output = node.run(v.to(dtype), qk_matmul_output_mode)
    if Q.ndim == 3:
        output = output.transpose(1, 2).flatten(2)
    return AttentionOutputs(
        as_input_type(Q, output),
        as_input_type(K, k),
        as_input_type(V, v),
        None if qk_matmul_output is None else as_input_type(Q, qk_matmul_output),
    )


@dataclass(frozen=True)
class _AttentionNode:
    """An Attention node as arguments of `regard.attention`; tensors have one dtype and 4 dimensions."""

    q: Tensor
    k: Tensor
    scale: float
    softcap: float
    bias: Tensor | None
    mask: mask.Mask | None
    query_offset: int | Tensor
    backend: str | None

    def run(self, v: Tensor, mode: int | None) -> tuple[Tensor, Tensor | None]:
        """Return the output and, unless `mode` is None, `qk_matmul_output`."""
        node_score = score.scaled_dot(self.scale)
        if self.softcap:
            node_score = node_score.then(score.softcap(self.softcap))
        if self.bias is not None:
            node_score = node_score.then(score.bias(self.bias))
        result = attention_with_weights(
            self.q, self.k, v, score=node_score, mask=self.mask, query_offset=self.query_offset, backend=self.backend
        )
        if mode is None:
            return result.output, None
        return result.output, result.weights[...] if mode == 3 else self._scores(mode)

    def _scores(self, mode: int) -> Tensor:
        """Return the dense scores: plain (mode 0), after softcap (1), or after the mask (2)."""
        dtype = torch.promote_types(self.q.dtype, torch.float32)
        grouped_q = self.q.to(dtype).unflatten(1, (self.k.shape[1], -1))
        scores: Tensor = (self.scale * grouped_q @ self.k.to(dtype).unsqueeze(2).mT).flatten(1, 2)
        if mode == 0:
            return scores
        if self.softcap:
            scores = self.softcap * torch.tanh(scores / self.softcap)
        if mode == 1:
            return scores
        if self.bias is not None:
            scores = scores + self.bias
        if self.mask is None:
            return scores
        batch_size, num_heads, n_q, n_k = scores.shape
        visible = self.mask.to_dense(
            n_q, n_k, batch_size=batch_size, num_heads=num_heads, query_offset=self.query_offset
        )
        return scores.where(visible.to(scores.device), -math.inf)


@check_types
def rotary_embedding(
    X: Array,
    cos_cache: Array,
    sin_cache: Array,
    position_ids: Array | None = None,
    *,
    interleaved: int = 0,
    num_heads: int | None = None,
    rotary_embedding_dim: int = 0,
) -> Array:
    """Compute an ONNX RotaryEmbedding node: rotate pairs of coordinates of X.

        (a, b)  ->  (a cos - b sin, a sin + b cos)

    `score.rotary` computes the same rotation from positions alone.

    Args:
        X: tensor (batch, heads, n, head_dim), or (batch, n, heads * head_dim) with `num_heads`.
        cos_cache, sin_cache: cosine and sine of the angle of each pair, (positions, pairs) with `position_ids`, or
            (batch, n, pairs) without.
        position_ids: positions (batch, n) that index the caches.
        interleaved: 0, the default, rotates the pairs (m, m + pairs); 1 rotates (2m, 2m + 1).
        num_heads: number of heads of a 3-D X.
        rotary_embedding_dim: number of leading coordinates to rotate; 0, the default, means all.

    >>> x, angle = torch.ones(1, 1, 2, 4), torch.tensor([0.0, math.pi]).reshape(1, 2, 1).expand(1, 2, 2)
    >>> rotary_embedding(x, angle.cos(), angle.sin()).round().tolist()
    [[[[1.0, 1.0, 1.0, 1.0], [-1.0, -1.0, -1.0, -1.0]]]]
    """
    x = array_to_tensor(X)
    if x.ndim == 3:
        x = split_heads(x, num_heads, "X", "num_heads")
    elif x.ndim != 4:
        raise ArgumentError(f"X must have 3 or 4 dimensions; got {x.ndim}. Reshape it.")
    rotary_dim = rotary_embedding_dim or x.shape[-1]
    cos, sin = array_to_tensor(cos_cache), array_to_tensor(sin_cache)
    if cos.dim() not in (2, 3) or sin.dim() != cos.dim():
        raise ArgumentError(
            "cos_cache and sin_cache must be (positions, pairs) or (batch, n, pairs); "
            f"got {tuple(cos.shape)} and {tuple(sin.shape)}."
        )
    if position_ids is not None:
        positions = array_to_tensor(position_ids).long()
        num_positions, shape = min(len(cos), len(sin)), (x.shape[0], x.shape[2])
        if positions.shape != shape or bool(((positions < 0) | (positions >= num_positions)).any()):
            raise ArgumentError(
                f"position_ids must be (batch, n) = {shape}, with positions from 0 to {num_positions - 1}; got shape "
                f"{tuple(positions.shape)}."
            )
        cos, sin = cos[positions], sin[positions]
    if 2 * cos.shape[-1] != rotary_dim or cos.shape != sin.shape:
        raise ArgumentError(
            f"cos_cache and sin_cache must have one column for each pair of the {rotary_dim} rotated coordinates; "
            f"got {cos.shape[-1]} and {sin.shape[-1]}. Set rotary_embedding_dim to rotate fewer coordinates."
        )
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    rotary, rest = x[..., :rotary_dim], x[..., rotary_dim:]
    a, b = (rotary[..., 0::2], rotary[..., 1::2]) if interleaved else rotary.chunk(2, dim=-1)
    pair = (a * cos - b * sin, a * sin + b * cos)
    rotated = torch.stack(pair, dim=-1).flatten(-2) if interleaved else torch.cat(pair, dim=-1)
    output = torch.cat((rotated, rest), dim=-1)
    return as_input_type(X, output.transpose(1, 2).flatten(2) if X.ndim == 3 else output)


def _check_attributes(
    mode: int | None, precision: int | None, softcap: float, left_window: int, right_window: int
) -> None:
    if mode not in (None, 0, 1, 2, 3):
        raise ArgumentError(
            f"qk_matmul_output_mode must be 0, 1, 2, 3 or None; got {mode}. "
            "0 returns the scores, 1 after softcap, 2 after the mask, 3 the weights, None nothing."
        )
    if precision is not None and precision not in _SOFTMAX_DTYPES:
        raise ArgumentError(
            f"softmax_precision must be 1, 10, 11 or 16; got {precision}. "
            "These are ONNX's float32, float16, float64 and bfloat16."
        )
    if softcap < 0:
        raise ArgumentError(f"softcap must be 0 or more; got {softcap}. 0 leaves the scores unchanged.")
    for name, size in (("left_window_size", left_window), ("right_window_size", right_window)):
        if size < -1:
            raise ArgumentError(f"{name} must be -1 or more; got {size}. -1 means no limit.")


def _check_cache(has_past_key: bool, has_past_value: bool, has_lengths: bool) -> None:
    if has_past_key != has_past_value:
        present, missing = ("past_key", "past_value") if has_past_key else ("past_value", "past_key")
        raise ArgumentError(f"past_key and past_value must be passed together; got only {present}. Pass {missing} too.")
    if has_past_key and has_lengths:
        raise ArgumentError(
            "nonpad_kv_seqlen and past_key must not be passed together; got both. Use past_key if the node appends to "
            "the cache, and nonpad_kv_seqlen if K and V are the whole cache."
        )


def _to_four_dimensions(
    q: Tensor, k: Tensor, v: Tensor, q_num_heads: int | None, kv_num_heads: int | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return Q, K and V as (batch, heads, length, head_dim), from either layout of ONNX."""
    if not (q.ndim == k.ndim == v.ndim and q.ndim in (3, 4)):
        raise ArgumentError(
            f"Q, K and V must all have 3 dimensions, or all 4; got {q.ndim}, {k.ndim} and {v.ndim}. Reshape them."
        )
    if q.ndim == 3:
        return (
            split_heads(q, q_num_heads, "Q", "q_num_heads"),
            split_heads(k, kv_num_heads, "K", "kv_num_heads"),
            split_heads(v, kv_num_heads, "V", "kv_num_heads"),
        )
    for name, num_heads, tensor in (("q_num_heads", q_num_heads, q), ("kv_num_heads", kv_num_heads, k)):
        if num_heads is not None and num_heads != tensor.shape[1]:
            raise ArgumentError(
                f"{name} must match the second dimension of a 4-D input; got {num_heads} and {tensor.shape[1]}. "
                "Leave it out."
            )
    return q, k, v


def _append(past: Tensor, new: Tensor, name: str) -> Tensor:
    if past.ndim != 4 or past.shape[:2] != new.shape[:2] or past.shape[3] != new.shape[3]:
        batch_size, num_heads, _, head_dim = new.shape
        raise ArgumentError(
            f"past_{name} must have shape ({batch_size}, {num_heads}, past, {head_dim}), like the new {name}; "
            f"got {tuple(past.shape)}. The cache is 4-D even if Q, K and V are 3-D."
        )
    return torch.cat((past, new), dim=2)


def _parse_mask(attn_mask: Tensor | None, n_k: int, dtype: torch.dtype) -> tuple[Tensor | None, Tensor | None]:
    """Return attn_mask as (boolean mask, None) or (None, bias), 4-D and with one column per key."""
    if attn_mask is None:
        return None, None
    if not 1 <= attn_mask.ndim <= 4:
        raise ArgumentError(f"attn_mask must have 1 to 4 dimensions; got {attn_mask.ndim}. Reshape it.")
    if attn_mask.shape[-1] > n_k:
        raise ArgumentError(
            f"attn_mask must have at most one column per key, past keys included; got {attn_mask.shape[-1]} "
            f"columns and {n_k} keys. Use attn_mask[..., :{n_k}]."
        )
    attn_mask = attn_mask.reshape((1,) * (4 - attn_mask.ndim) + attn_mask.shape)
    padding = (0, n_k - attn_mask.shape[-1])
    if attn_mask.dtype == torch.bool:
        return torch.nn.functional.pad(attn_mask, padding, value=False), None
    return None, torch.nn.functional.pad(attn_mask.to(dtype), padding, value=-math.inf)


def _build_mask(
    n_q: int,
    n_k: int,
    is_causal: int,
    left_window: int,
    right_window: int,
    lengths: Tensor | None,
    visible: Tensor | None,
) -> mask.Mask | None:
    """Combine causal mask, windows, key lengths and boolean mask into one mask; None if there are none."""
    parts: list[mask.Mask] = []
    if is_causal:
        parts.append(mask.causal())
    if left_window >= 0 or right_window >= 0:
        # positions range from -n_q to n_k + n_q, so a window of this size masks nothing
        unlimited = n_k + 2 * n_q
        parts.append(
            mask.sliding_window(
                before=left_window + 1 if left_window >= 0 else unlimited,
                after=right_window + 1 if right_window >= 0 else unlimited,
            )
        )
    if lengths is not None:
        parts.append(mask.padding(lengths))
    if visible is not None:
        parts.append(mask.tensor(visible))
    return functools.reduce(operator.and_, parts) if parts else None
