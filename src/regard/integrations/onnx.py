"""ONNX's Attention (opset 23 to 25) and RotaryEmbedding, spoken with ONNX's own names and computed by regard.

The `onnx` package is not needed. Tensors give tensors; NumPy arrays, also bfloat16 ones of `ml_dtypes`, give
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

from regard import attend, mask, score
from regard.argument_types import check_types
from regard.errors import SpecError
from regard.integrations.onnx_arrays import Array, as_tensor, cut_heads, like

# ONNX numbers its types; these are the ones it lets a softmax run in.
_PRECISIONS = {1: torch.float32, 10: torch.float16, 11: torch.float64, 16: torch.bfloat16}


class AttentionOutputs(NamedTuple, Generic[Array]):
    """The four outputs of an Attention node, in ONNX's order; the last is None if it was not asked for."""

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
    engine: str | None = None,
) -> AttentionOutputs[Array]:
    """What an ONNX Attention node gives for these inputs and attributes.

    Q is (batch, heads, n_q, width); K and V have n_k keys, and as many heads or fewer. Or all three are
    (batch, length, heads * width), and `q_num_heads` and `kv_num_heads` say how to cut them. `past_key` and
    `past_value` (batch, heads, past, width) stand before K and V. `attn_mask` is boolean (True may attend) or
    numbers to add; it broadcasts to (batch, heads, n_q, past + n_k) and hides keys beyond its last column.

        Y = softmax(softcap * tanh(scale * Q K' / softcap) + attn_mask) V

    over keys p - left <= j <= p + right, and j <= p if causal, where query i stands at p = i + past; at
    p = i + nonpad_kv_seqlen - n_q if `nonpad_kv_seqlen` says how many keys are real; at p = i without either.

    `qk_matmul_output` is n_q x n_k: the scores (mode 0), after softcap (1), after the mask (2), or the
    weights (3). Mode None leaves it out, and memory stays linear in the lengths. A `softmax_precision` below
    that of the inputs changes nothing: sums here are never less exact than the inputs. A mask of one column
    is a short mask, as from opset 24 on; opset 23 stretched it over all keys.

    >>> import numpy as np
    >>> q = np.ones((1, 2, 3, 4), dtype=np.float32)
    >>> attention(q, q, q, is_causal=1, qk_matmul_output_mode=None).Y.shape
    (1, 2, 3, 4)
    """
    _check_attributes(qk_matmul_output_mode, softmax_precision, softcap, left_window_size, right_window_size)
    _check_cache(past_key is not None, past_value is not None, nonpad_kv_seqlen is not None)
    q, k, v = _heads_apart(as_tensor(Q), as_tensor(K), as_tensor(V), q_num_heads, kv_num_heads)
    start: int | Tensor = 0
    lengths = None
    if past_key is not None and past_value is not None:
        start = past_key.shape[2]
        k, v = _append(as_tensor(past_key), k, "key"), _append(as_tensor(past_value), v, "value")
    elif nonpad_kv_seqlen is not None:
        lengths = as_tensor(nonpad_kv_seqlen).reshape(-1)
        start = lengths - q.shape[2]

    if not q.shape[3]:
        raise SpecError(f"Q must have a head size of at least 1; got shape {tuple(q.shape)}.")
    working = torch.promote_types(q.dtype, v.dtype)
    if softmax_precision is not None and _PRECISIONS[softmax_precision] == torch.float64:
        working = torch.float64
    allowed, bias = _read_mask(None if attn_mask is None else as_tensor(attn_mask), k.shape[2], working)
    question = _Question(
        q=q.to(working),
        k=k.to(working),
        scale=1 / math.sqrt(q.shape[3]) if scale is None else scale,
        softcap=softcap,
        bias=bias,
        seen=_seen(q.shape[2], k.shape[2], is_causal, left_window_size, right_window_size, lengths, allowed),
        start=start,
        engine=engine,
    )
    output, stage = question.answer(v.to(working), qk_matmul_output_mode)
    if Q.ndim == 3:
        output = output.transpose(1, 2).flatten(2)
    return AttentionOutputs(like(Q, output), like(K, k), like(V, v), None if stage is None else like(Q, stage))


@dataclass(frozen=True)
class _Question:
    """An Attention node read into regard's terms: prepared tensors, score, mask and positions."""

    q: Tensor
    k: Tensor
    scale: float
    softcap: float
    bias: Tensor | None
    seen: mask.Mask | None
    start: int | Tensor
    engine: str | None

    def answer(self, v: Tensor, mode: int | None) -> tuple[Tensor, Tensor | None]:
        """The output, and what `qk_matmul_output` shows in this mode."""
        chosen = score.scaled_dot(self.scale)
        if self.softcap:
            chosen = chosen.then(score.softcap(self.softcap))
        if self.bias is not None:
            chosen = chosen.then(score.bias(self.bias))
        attended = attend(self.q, self.k, v, score=chosen, mask=self.seen, start=self.start, engine=self.engine)
        if mode is None:
            return attended.output, None
        return attended.output, attended.weights[...] if mode == 3 else self._scores(mode)

    def _scores(self, mode: int) -> Tensor:
        """The dense scores: as multiplied (mode 0), softcapped (1), or with the mask (2)."""
        wide = torch.promote_types(self.q.dtype, torch.float32)
        groups = self.q.to(wide).unflatten(1, (self.k.shape[1], -1))
        scores: Tensor = (self.scale * groups @ self.k.to(wide).unsqueeze(2).mT).flatten(1, 2)
        if mode == 0:
            return scores
        if self.softcap:
            scores = self.softcap * torch.tanh(scores / self.softcap)
        if mode == 1:
            return scores
        if self.bias is not None:
            scores = scores + self.bias
        if self.seen is None:
            return scores
        batch, heads, queries, keys = scores.shape
        visible = self.seen.dense(queries, keys, batch=batch, heads=heads, start=self.start)
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
    """X with its coordinates turned in pairs, as an ONNX RotaryEmbedding node turns them.

    X is (batch, heads, length, width), or (batch, length, heads * width) with `num_heads`. The caches hold a
    cosine and a sine for each pair: (positions, pairs) looked up by `position_ids` (batch, length), or
    (batch, length, pairs). Pairs are (m, m + pairs), or (2m, 2m + 1) if `interleaved`; only the first
    `rotary_embedding_dim` coordinates turn if it is not 0.

        (a, b)  ->  (a cos - b sin, a sin + b cos)

    `score.rotary` makes the same turn from positions alone; here the model brings its own angles.

    >>> x, angle = torch.ones(1, 1, 2, 4), torch.tensor([0.0, math.pi]).reshape(1, 2, 1).expand(1, 2, 2)
    >>> rotary_embedding(x, angle.cos(), angle.sin()).round().tolist()
    [[[[1.0, 1.0, 1.0, 1.0], [-1.0, -1.0, -1.0, -1.0]]]]
    """
    x = as_tensor(X)
    if x.ndim == 3:
        x = cut_heads(x, num_heads, "X", "num_heads")
    elif x.ndim != 4:
        raise SpecError(f"X must have 3 or 4 dimensions; got {x.ndim}. Reshape it.")
    width = rotary_embedding_dim or x.shape[-1]
    cos, sin = as_tensor(cos_cache), as_tensor(sin_cache)
    if cos.dim() not in (2, 3) or sin.dim() != cos.dim():
        raise SpecError(
            "cos_cache and sin_cache must be (positions, pairs) or (batch, n, pairs); "
            f"got {tuple(cos.shape)} and {tuple(sin.shape)}."
        )
    if position_ids is not None:
        where = as_tensor(position_ids).long()
        rows, shape = min(len(cos), len(sin)), (x.shape[0], x.shape[2])
        if where.shape != shape or bool(((where < 0) | (where >= rows)).any()):
            raise SpecError(
                f"position_ids must be (batch, n) = {shape}, with positions from 0 to {rows - 1}; got shape "
                f"{tuple(where.shape)}."
            )
        cos, sin = cos[where], sin[where]
    if 2 * cos.shape[-1] != width or cos.shape != sin.shape:
        raise SpecError(
            f"cos_cache and sin_cache must hold one number for each pair of the {width} turning coordinates; "
            f"got {cos.shape[-1]} and {sin.shape[-1]}. Set rotary_embedding_dim to turn fewer coordinates."
        )
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    turning, rest = x[..., :width], x[..., width:]
    a, b = (turning[..., 0::2], turning[..., 1::2]) if interleaved else turning.chunk(2, dim=-1)
    pair = (a * cos - b * sin, a * sin + b * cos)
    turned = torch.stack(pair, dim=-1).flatten(-2) if interleaved else torch.cat(pair, dim=-1)
    turned = torch.cat((turned, rest), dim=-1)
    return like(X, turned.transpose(1, 2).flatten(2) if X.ndim == 3 else turned)


def _check_attributes(
    mode: int | None, precision: int | None, softcap: float, left_window: int, right_window: int
) -> None:
    if mode not in (None, 0, 1, 2, 3):
        raise SpecError(
            f"qk_matmul_output_mode must be 0, 1, 2, 3 or None; got {mode}. "
            "0 shows the scores, 1 after softcap, 2 after the mask, 3 the weights, None nothing."
        )
    if precision is not None and precision not in _PRECISIONS:
        raise SpecError(
            f"softmax_precision must be 1, 10, 11 or 16; got {precision}. "
            "These are ONNX's float32, float16, float64 and bfloat16."
        )
    if softcap < 0:
        raise SpecError(f"softcap must be 0 or more; got {softcap}. 0 leaves the scores as they are.")
    for name, size in (("left_window_size", left_window), ("right_window_size", right_window)):
        if size < -1:
            raise SpecError(f"{name} must be -1 or more; got {size}. -1 leaves that side open.")


def _check_cache(has_past_key: bool, has_past_value: bool, has_lengths: bool) -> None:
    if has_past_key != has_past_value:
        given, missing = ("past_key", "past_value") if has_past_key else ("past_value", "past_key")
        raise SpecError(f"past_key and past_value must come together; got {given} alone. Give {missing} too.")
    if has_past_key and has_lengths:
        raise SpecError(
            "nonpad_kv_seqlen and past_key must not come together; got both. Either the node appends to the "
            "cache (past_key), or K and V are the whole cache (nonpad_kv_seqlen)."
        )


def _heads_apart(
    q: Tensor, k: Tensor, v: Tensor, q_heads: int | None, kv_heads: int | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Q, K and V as (batch, heads, length, width), whichever of ONNX's two layouts they came in."""
    if not (q.ndim == k.ndim == v.ndim and q.ndim in (3, 4)):
        raise SpecError(
            f"Q, K and V must all have 3 dimensions, or all 4; got {q.ndim}, {k.ndim} and {v.ndim}. Reshape them."
        )
    if q.ndim == 3:
        return (
            cut_heads(q, q_heads, "Q", "q_num_heads"),
            cut_heads(k, kv_heads, "K", "kv_num_heads"),
            cut_heads(v, kv_heads, "V", "kv_num_heads"),
        )
    for name, said, tensor in (("q_num_heads", q_heads, q), ("kv_num_heads", kv_heads, k)):
        if said is not None and said != tensor.shape[1]:
            raise SpecError(
                f"{name} must match the second dimension of a 4-D input; got {said} and {tensor.shape[1]}. "
                "Leave it out."
            )
    return q, k, v


def _append(past: Tensor, new: Tensor, name: str) -> Tensor:
    if past.ndim != 4 or past.shape[:2] != new.shape[:2] or past.shape[3] != new.shape[3]:
        batch, heads, _, width = new.shape
        raise SpecError(
            f"past_{name} must have shape ({batch}, {heads}, past, {width}), as the new ones do; "
            f"got {tuple(past.shape)}. Both are kept with their heads apart."
        )
    return torch.cat((past, new), dim=2)


def _read_mask(given: Tensor | None, keys: int, dtype: torch.dtype) -> tuple[Tensor | None, Tensor | None]:
    """ONNX's mask as what it turns out to be, what is allowed or a bias: 4-D, with a column for every key."""
    if given is None:
        return None, None
    if not 1 <= given.ndim <= 4:
        raise SpecError(f"attn_mask must have 1 to 4 dimensions; got {given.ndim}. Reshape it.")
    if given.shape[-1] > keys:
        raise SpecError(
            f"attn_mask must have at most one column per key, past keys included; got {given.shape[-1]} "
            f"columns and {keys} keys. Cut it."
        )
    given = given.reshape((1,) * (4 - given.ndim) + given.shape)
    missing = (0, keys - given.shape[-1])
    if given.dtype == torch.bool:
        return torch.nn.functional.pad(given, missing, value=False), None
    return None, torch.nn.functional.pad(given.to(dtype), missing, value=-math.inf)


def _seen(
    queries: int,
    keys: int,
    is_causal: int,
    left_window: int,
    right_window: int,
    lengths: Tensor | None,
    allowed: Tensor | None,
) -> mask.Mask | None:
    """All that hides keys, except the -inf in a bias, as one mask."""
    parts: list[mask.Mask] = []
    if is_causal:
        parts.append(mask.causal())
    if left_window >= 0 or right_window >= 0:
        # Positions run from -queries to keys + queries, so this far away nothing is left to hide.
        beyond = keys + 2 * queries
        parts.append(
            mask.window(
                before=left_window + 1 if left_window >= 0 else beyond,
                after=right_window + 1 if right_window >= 0 else beyond,
            )
        )
    if lengths is not None:
        parts.append(mask.padding(lengths))
    if allowed is not None:
        parts.append(mask.tensor(allowed))
    return functools.reduce(operator.and_, parts) if parts else None
