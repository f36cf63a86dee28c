"""Parse a call: check its arguments once and convert them to a spec and tensors. Nothing is computed."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard.argument_types import check_signature
from regard.cache import BoundedCache
from regard.call.attention_call import AttentionCall
from regard.call.spec import CallSpec, FormulaText, ParsedCall
from regard.checks import integer, is_integer_tensor, probability
from regard.errors import ArgumentError
from regard.expr.closed_expr import ClosedExpr, QueryOffset, merge_captures
from regard.expr.ir import TRUE, Expr
from regard.expr.score_modifier import ScoreModifier, compose
from regard.expr.serialize import materialize
from regard.expr.tile_coverage import ScoreShape
from regard.feature_map import FeatureMapScore
from regard.mask import Mask, as_mask
from regard.normalizer import DEFAULT_NORMALIZER, Normalizer, as_normalizer
from regard.score import RelativeValues, ScaledDot, Score, as_score
from regard.tensors.convert import as_tensor, flatten_batch_dims
from regard.tensors.nonfinite import isolate_nonfinite
from regard.tensors.storage import check_captured_storage, check_storage

SUPPORTED_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
MAX_POSITION = 2**53  # positions are exact in float64 up to here
MAX_REUSED_BYTES = 2**20  # of the captured tensors of a cached call


def parse_call(call: AttentionCall, full_lengths: tuple[int, int] | None = None) -> ParsedCall:
    """Check the arguments of a call and convert them; an ArgumentError names what is wrong. Nothing is computed.

    `full_lengths` are the numbers of queries and keys of the whole call, if q, k and v hold only a part of them.
    """
    is_numpy = isinstance(call.q, np.ndarray)
    q, k, v = (_parse_tensor(x, name) for x, name in ((call.q, "q"), (call.k, "k"), (call.v, "v")))
    q, k, v = _check_dtype(q, k, v)
    q4, k4, v4, leading = _to_4d(q, k, v)
    score = _align_leading_dims(call.score, "bias", q, leading)
    mask = _align_leading_dims(call.mask, "mask", q, leading)
    dropout = call.dropout
    if type(dropout) is not float or dropout != 0.0:
        dropout = probability(dropout, "dropout", below_one=True)
    n_q, n_k = (q4.shape[2], k4.shape[2]) if full_lengths is None else full_lengths
    head_dims = (q4.shape[-1], k4.shape[-1], v4.shape[-1])
    options = OptionKey(
        *((*q4.shape[:2], n_q, n_k), k4.shape[1], head_dims, q4.dtype, q4.device),
        *(score, mask, call.normalizer, dropout, call.query_offset),
    )
    parsed = (
        _options_cache.get_or_create(options, lambda: _parse_options(options))
        if _can_cache(options)
        else (_parse_options(options))
    )
    if parsed.closed_expr.tensors:
        check_captured_storage(parsed.closed_expr.tensors)
    v4, relative_values = _apply_value(call.value, v, v4, leading)
    spec = parsed.spec if v4.shape[-1] == head_dims[2] else replace(parsed.spec, value_dim=v4.shape[-1])
    if spec.num_kv_heads != k4.shape[1]:
        k4, v4 = (x.repeat_interleave(q4.shape[1] // x.shape[1], dim=1) for x in (k4, v4))
    return ParsedCall(
        spec=spec,
        q=q4,
        k=k4,
        v=v4,
        score=parsed.score,
        normalizer=parsed.normalizer,
        relative_values=relative_values,
        closed_expr=parsed.closed_expr,
        query_offset=parsed.query_offset,
        seed=_parse_seed(call.seed, spec.dropout),
        leading_shape=leading,
        has_heads=q.dim() >= 4,
        is_numpy=is_numpy,
    )


class OptionKey(NamedTuple):
    """Everything in a call except the contents of q, k and v, the value function and the seed."""

    score_shape: ScoreShape
    num_kv_heads: int
    head_dims: tuple[int, int, int]  # of q, k and v
    dtype: torch.dtype
    device: torch.device
    score: Any
    mask: Any
    normalizer: Any
    dropout: float
    query_offset: Any


@dataclass(frozen=True, eq=False)
class ParsedOptions:
    """The parsed options of a call."""

    spec: CallSpec
    score: Score
    normalizer: Normalizer
    closed_expr: ClosedExpr
    query_offset: QueryOffset

    def captured_bytes(self) -> int:
        return sum(t.nbytes for t in self.closed_expr.tensors if isinstance(t, Tensor))


_options_cache: BoundedCache[ParsedOptions] = BoundedCache("parsed options", sizeof=ParsedOptions.captured_bytes)


def _parse_options(options: OptionKey) -> ParsedOptions:
    score_shape, num_kv_heads, head_dims, dtype, device, *_ = options
    normalizer = DEFAULT_NORMALIZER if options.normalizer is None else as_normalizer(options.normalizer)
    mask = None if options.mask is None else as_mask(options.mask)
    score = _parse_score(options.score, normalizer)
    query_offset = _parse_query_offset(options.query_offset, score_shape, device)
    closed_expr, score_mod, mask_expr, parameter = _merge_expressions(
        _combine_score_mods(score.score_mod, normalizer.score_mod), mask, normalizer.parameter
    )
    score.check_head_dims(*head_dims[:2])
    score.check_num_heads(score_shape[1], num_kv_heads)
    if normalizer.checks:
        normalizer.check_shapes(score_shape, query_offset)
    if closed_expr.shape_checks:
        closed_expr.check_shape(score_shape, query_offset)
    row_normalizer = normalizer.row_normalizer
    spec = CallSpec(
        batch_size=score_shape[0],
        num_heads=score_shape[1],
        num_kv_heads=score_shape[1] if score.needs_separate_kv_heads(score_shape[1], num_kv_heads) else num_kv_heads,
        n_q=score_shape[2],
        n_k=score_shape[3],
        head_dim=score.product_dim(head_dims[0]),
        value_dim=head_dims[2],
        dtype=dtype,
        device="cpu" if device.type == "meta" else device.type,  # shapes without tensors: assume the CPU
        score_kind=score.kind,
        scale=score.product_scale(head_dims[0]),
        score_dtype=torch.float64 if torch.float64 in (dtype, score.min_dtype) else torch.float32,
        score_mod=score_mod,
        mask=mask_expr,
        normalizer=row_normalizer if parameter is None else row_normalizer.with_parameter(parameter),
        dropout=options.dropout,
        query_offset=query_offset if isinstance(query_offset, int) else None,
        captured_specs=tuple((tuple(t.shape), t.dtype) for t in closed_expr.tensors if isinstance(t, Tensor)),
        text=FormulaText(score, closed_expr.tensor_names, normalizer.formula, normalizer.is_score_mod_implied),
    )
    return ParsedOptions(spec, score, normalizer, closed_expr, query_offset)


def _parse_score(score: Any, normalizer: Normalizer) -> Score:
    parsed = as_score(score)
    if normalizer.feature_map is None:
        return parsed
    if type(parsed) is not ScaledDot or parsed.score_mod is not None or parsed.scale is not None:
        modified = " with a score modifier" if parsed.score_mod is not None else ""
        raise ArgumentError(
            f"normalizer.kernel defines its own scores, φ(q)·φ(k), so score must be None; got {type(parsed).__name__}"
            f"{modified}. A mask is allowed."
        )
    return FeatureMapScore(feature_map=normalizer.feature_map)


def _can_cache(options: OptionKey) -> bool:
    """Whether the options are immutable and small, so that the same objects mean the same options.

    A function is traced in each call, since the variables that it refers to may have changed.
    """
    score, mask = options.score, options.mask
    score_mod = score.score_mod if type(score) is ScaledDot and not isinstance(score.scale, Tensor) else score
    captured = [t for expr in (score_mod, mask) if isinstance(expr, ClosedExpr) for t in expr.tensors]
    return (
        (score_mod is None or type(score_mod) is ScoreModifier)
        and (mask is None or type(mask) is Mask)
        and options.normalizer is None
        and (options.query_offset is None or isinstance(options.query_offset, int))
        and sum(t.nbytes for t in captured if isinstance(t, Tensor)) <= MAX_REUSED_BYTES
    )


def _parse_tensor(x: Any, name: str) -> Tensor:
    if isinstance(x, (tuple, torch.Size)) and all(isinstance(n, int) for n in x):
        x = torch.empty(x, device="meta")  # a shape is enough for a plan
    tensor = check_storage(x, name) if type(x) is Tensor else as_tensor(x, name)
    if tensor.dtype not in SUPPORTED_DTYPES:
        raise ArgumentError(
            f"{name} must have dtype float64, float32, bfloat16 or float16; got {tensor.dtype}. "
            f"Convert it first, for example with {name}.float()."
        )
    if tensor.dim() < 2:
        raise ArgumentError(
            f"{name} must have at least 2 dimensions, (length, head_dim); got shape {tuple(tensor.shape)}. "
            f"Use {name}[None] for a single vector."
        )
    return tensor


def _check_dtype(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    if not q.device == k.device == v.device:
        raise ArgumentError(
            f"q, k and v must be on the same device; got q on {q.device}, k on {k.device}, v on {v.device}. "
            "Move them with .to(device)."
        )
    if q.dtype == k.dtype == v.dtype:
        return q, k, v
    # autocast mixes dtypes on purpose: use the widest, so that nothing is rounded
    if q.device.type != "meta" and torch.is_autocast_enabled(q.device.type):
        widest = torch.promote_types(torch.promote_types(q.dtype, k.dtype), v.dtype)
        return q.to(widest), k.to(widest), v.to(widest)
    raise ArgumentError(
        f"q, k and v must have the same dtype; got q={q.dtype}, k={k.dtype}, v={v.dtype}. Convert them with .to(dtype)."
    )


def _to_4d(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor, tuple[int, ...]]:
    """q, k and v as (batch, heads, length, head_dim), and the caller's dimensions before the length."""
    if not q.dim() == k.dim() == v.dim():
        raise ArgumentError(f"q, k and v must have the same number of dimensions; got {_format_shapes(q, k, v)}.")
    if k.shape[-2] != v.shape[-2]:
        raise ArgumentError(
            f"k and v must have the same length; got k={k.shape[-2]}, v={v.shape[-2]} ({_format_shapes(q, k, v)})."
        )
    if 0 in (q.shape[-1], k.shape[-1]):
        raise ArgumentError(f"q and k must have a head dimension of at least 1; got {_format_shapes(q, k, v)}.")
    has_heads = q.dim() >= 4
    q_heads, k_heads, v_heads = (x.shape[-3] if has_heads else 1 for x in (q, k, v))
    if k_heads != v_heads or (q_heads != k_heads and (k_heads == 0 or q_heads % k_heads)):
        raise ArgumentError(
            f"k and v must have the same number of heads, which must divide that of q; got q={q_heads}, k={k_heads}, "
            f"v={v_heads} heads ({_format_shapes(q, k, v)})."
        )
    batch = _broadcast_batch(q, k, v, -3 if has_heads else -2)
    flat = [x if x.dim() == 4 and x.shape[0] == batch[0] else _flatten_batch(x, batch) for x in (q, k, v)]
    return flat[0], flat[1], flat[2], (*batch, q_heads) if has_heads else batch


def _broadcast_batch(q: Tensor, k: Tensor, v: Tensor, num_inner_dims: int) -> tuple[int, ...]:
    """The batch dimensions, to which q, k and v broadcast."""
    if q.shape[:num_inner_dims] == k.shape[:num_inner_dims] == v.shape[:num_inner_dims]:
        return tuple(q.shape[:num_inner_dims])
    try:
        return tuple(
            torch.broadcast_shapes(q.shape[:num_inner_dims], k.shape[:num_inner_dims], v.shape[:num_inner_dims])
        )
    except RuntimeError:
        raise ArgumentError(
            f"the batch dimensions of q, k and v must be equal or 1; got {_format_shapes(q, k, v)}."
        ) from None


def _flatten_batch(x: Tensor, batch_shape: tuple[int, ...]) -> Tensor:
    """x with one batch dimension, and with one head if it has no dimension of heads."""
    inner = x.shape[-3:] if x.dim() >= 4 else (1, *x.shape[-2:])
    if x.dim() < 4:
        x = x.unsqueeze(-3)
    return x.expand(*batch_shape, *inner).reshape(math.prod(batch_shape), *inner)


def _format_shapes(q: Tensor, k: Tensor, v: Tensor) -> str:
    return f"q={tuple(q.shape)}, k={tuple(k.shape)}, v={tuple(v.shape)}"


def _align_leading_dims(values: Any, name: str, q: Tensor, leading_shape: tuple[int, ...]) -> Any:
    """A mask or bias with the dimensions of q as (batch, heads, n_q, n_k); anything else unchanged."""
    if not isinstance(values, (Tensor, np.ndarray)) or values.ndim != q.dim():
        return values
    tensor = as_tensor(values, name)
    try:
        return flatten_batch_dims(tensor, leading_shape)
    except RuntimeError:
        raise ArgumentError(
            f"a {name} tensor with {q.dim()} dimensions must broadcast to {leading_shape} in all but the last two; got "
            f"shape {tuple(tensor.shape)}."
        ) from None


def _parse_query_offset(query_offset: Any, score_shape: ScoreShape, device: torch.device) -> QueryOffset:
    batch, _, n_q, n_k = score_shape
    if query_offset is None:
        return n_k - n_q
    if isinstance(query_offset, (int, np.integer)):
        return integer(query_offset, "query_offset", at_least=-MAX_POSITION, at_most=MAX_POSITION)
    offsets = as_tensor(query_offset, "query_offset")
    if not is_integer_tensor(offsets) or offsets.dim() > 1 or offsets.numel() not in (1, batch):
        raise ArgumentError(
            f"query_offset must be an integer, or one for each of {batch} batch elements; got {offsets.dtype} of shape "
            f"{tuple(offsets.shape)}."
        )
    return offsets.long().reshape(-1).expand(batch).to(device)


def _parse_seed(seed: int | None, dropout: float) -> int:
    if seed is None:
        return int(torch.randint(2**62, ())) if dropout else 0
    return integer(seed, "seed", at_least=-(2**63), at_most=2**63 - 1)


def _combine_score_mods(score_mod: ClosedExpr | None, normalizer_mod: ClosedExpr | None) -> ClosedExpr | None:
    if score_mod is None or normalizer_mod is None:
        return score_mod or normalizer_mod
    return compose(score_mod, normalizer_mod)


def _merge_expressions(
    score_mod: ClosedExpr | None, mask: Mask | None, parameter: ClosedExpr | None
) -> tuple[ClosedExpr, Expr | None, Expr, Expr | None]:
    """The score modifier, the mask and the normalizer's parameter, over one list of captured tensors."""
    if score_mod is None and parameter is None:  # the usual case
        return (ClosedExpr(TRUE), None, TRUE, None) if mask is None else (mask, None, mask.expr, None)
    closed = (score_mod, mask, parameter)
    exprs, tensors, names, checks = merge_captures([x for x in closed if x is not None])
    remaining = iter(exprs)
    score_mod_expr, mask_expr, parameter_expr = (None if x is None else next(remaining) for x in closed)
    mask_expr = TRUE if mask_expr is None else mask_expr
    return ClosedExpr(mask_expr, tensors, names, checks), score_mod_expr, mask_expr, parameter_expr


def _apply_value(
    value: Any, v: Tensor, v4: Tensor, leading_shape: tuple[int, ...]
) -> tuple[Tensor, RelativeValues | None]:
    """The values of a call, and its relative values, if any."""
    if value is None:
        return v4, None
    value = materialize(value)
    if isinstance(value, RelativeValues):
        value.check_head_dim(v4.shape[-1])
        return v4, value
    return _transform_values(value, v, v4, leading_shape), None


def _transform_values(
    value: Callable[[Tensor], Tensor], v: Tensor, v4: Tensor, leading_shape: tuple[int, ...]
) -> Tensor:
    check_signature(value, "value", "v")
    if v.device.type == "meta":
        return v4  # the function is not called for shapes
    (transformed,) = isolate_nonfinite(lambda x: (value(x),), v)
    if not isinstance(transformed, Tensor) or transformed.shape[:-1] != v.shape[:-1]:
        got = tuple(transformed.shape) if isinstance(transformed, Tensor) else type(transformed).__name__
        raise ArgumentError(f"value must keep all dimensions of v but the last, {tuple(v.shape[:-1])}; got {got}.")
    if transformed.dtype != v.dtype:
        transformed = transformed.to(v.dtype)
    outer = leading_shape[:-1] if v.dim() >= 4 else leading_shape
    expanded = transformed.expand(*outer, *transformed.shape[-3 if v.dim() >= 4 else -2 :])
    return expanded.reshape(*v4.shape[:3], transformed.shape[-1])
