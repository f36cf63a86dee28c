"""Fast path: repeats an earlier call with the same shapes and options, without parsing and planning it again.

It applies to plain 4-D tensors on the CPU that torch neither differentiates nor transforms. The mask and the score
modifier must capture nothing, or a few tensors with the same contents as before. Every other call takes the full path.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from regard.backends.protocol import FastCall
from regard.backends.shared.autograd import is_transform_active
from regard.cache import BoundedCache
from regard.call.attention_call import AttentionCall
from regard.call.parse import MAX_REUSED_BYTES
from regard.expr.closed_expr import ClosedExpr, TensorFromShape
from regard.expr.score_modifier import ScoreModifier
from regard.mask import Mask
from regard.tensors.storage import check_captured_storage

_cache: BoundedCache[FastCall] = BoundedCache("fast calls")


def run_stored_call(call: AttentionCall) -> Tensor | None:
    """The output, if the same call was stored before; else None."""
    captured = _captured_tensors(call)
    if captured is None:
        return None
    if captured:
        check_captured_storage(captured)
    fast_call = _cache.get(_cache_key(call), captured)
    if fast_call is None:
        return None
    q, k, v = call[:3]
    return None if _needs_full_path((q, k, v, *captured)) else fast_call(q, k, v)


def store_fast_call(call: AttentionCall, make_fast_call: Callable[[], FastCall | None]) -> None:
    """Store a call for `run_stored_call`, if it can be recognized."""
    captured = _captured_tensors(call)
    if captured is None or not call.q.shape[0] == call.k.shape[0] == call.v.shape[0]:  # kernels do not broadcast
        return
    if _needs_full_path((call.q, call.k, call.v, *captured)):
        return
    fast_call = make_fast_call()
    if fast_call is not None:
        _cache.put(_cache_key(call), fast_call, captured)


def _captured_tensors(call: AttentionCall) -> Sequence[Tensor] | None:
    """The tensors that the mask and the score modifier capture; None if the call needs the full path."""
    q, k, v, score, mask, normalizer, value, dropout, seed, query_offset, backend = call
    if not (type(q) is type(k) is type(v) is Tensor and q.dim() == k.dim() == v.dim() == 4):
        return None
    if normalizer is not None or value is not None or query_offset is not None or backend is not None:
        return None
    # by type, not by truth: None, [] and "x" must raise an error on a repeated call as well
    if (type(dropout) is not float and type(dropout) is not int) or dropout:
        return None
    if seed is not None and type(seed) is not int:
        return None
    return () if score is None and mask is None else _captured_by(score, mask)


def _captured_by(score: Any, mask: Any) -> Sequence[Tensor] | None:
    captured: list[Any] = []
    if type(mask) is Mask:
        captured += mask.tensors
    elif isinstance(mask, Tensor):
        captured.append(mask)
    elif mask is not None:
        return None
    if type(score) is ScoreModifier:
        captured += score.tensors
    elif score is not None:
        return None
    if not captured:
        return captured
    captured = [t for t in captured if not isinstance(t, TensorFromShape)]  # these follow from the shapes
    is_plain = all(type(t) in (Tensor, Parameter) for t in captured)
    return captured if is_plain and sum(t.nbytes for t in captured) <= MAX_REUSED_BYTES else None


def _cache_key(call: AttentionCall) -> Hashable:
    """Shapes, dtype, mask and score modifier. A mask that is a tensor is compared by its contents.

    Without a mask and a score modifier, the number of keys may differ.
    """
    q, k, v, score, mask = call[:5]
    if score is None and mask is None:
        (k_batch, k_heads, _, k_dim), (v_batch, v_heads, _, v_dim) = k.shape, v.shape
        return q.shape, k_batch, k_heads, k_dim, v_batch, v_heads, v_dim, q.dtype
    return q.shape, k.shape, v.shape, q.dtype, _expr_key(score), Tensor if isinstance(mask, Tensor) else _expr_key(mask)


def _expr_key(expr: ClosedExpr | None) -> Hashable:
    """Equal for masks and score modifiers that differ only in the tensors they capture, whose contents are compared."""
    if expr is None:
        return None
    if not expr.tensors:
        return expr.expr, expr.shape_checks
    constructors = tuple(t.make if isinstance(t, TensorFromShape) else None for t in expr.tensors)
    return expr.expr, constructors, expr.shape_checks


def _needs_full_path(tensors: tuple[Tensor, ...]) -> bool:
    """Whether torch differentiates, transforms or traces the call, or whether autocast is on."""
    is_grad_enabled = torch.is_grad_enabled()
    for x in tensors:
        if x.is_neg() or (is_grad_enabled and x.requires_grad):
            return True
    return (
        is_transform_active()
        or torch._C._len_torch_function_stack() > 0
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._get_tracing_state() is not None
        or torch.is_autocast_enabled("cpu")
    )
