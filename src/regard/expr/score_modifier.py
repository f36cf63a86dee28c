"""Score modifiers: expressions of the score s and of the positions b, h, i (or p) and j."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.argument_types import check_types
from regard.cache import memoize
from regard.checks import describe, tensor
from regard.errors import ArgumentError
from regard.expr.closed_expr import (
    CapturedTensor,
    ClosedExpr,
    TensorFromQueries,
    TensorFromShape,
    broadcast_lookup,
    check_closed_expr,
    merge_captures,
    trace_builtin,
)
from regard.expr.ir import Expr, apply, substitute, variable
from regard.expr.serialize import materialize, serializable
from regard.expr.shape_checks import check_scalar_or_per_head, require_one_per
from regard.expr.tile_coverage import ScoreShape
from regard.expr.trace import SCORE_VARIABLES, trace
from regard.stage_spec import StageSpec
from regard.tensors.convert import ArrayLike, as_tensor
from regard.tensors.nonfinite import isolate_nonfinite
from regard.tensors.precision import upcast, upcast_like

MODIFIER_STAGE = StageSpec("modifier", "changed by a score modifier")


@dataclass(frozen=True, eq=False)
class ScoreModifier(ClosedExpr):
    """An expression that modifies the score s of a query-key pair, as FlexAttention's `score_mod`.

    `stage` has the name and the description of its stage in `regard.steps`, and its formulas if the expression is too
    long to print.
    """

    stage: StageSpec = MODIFIER_STAGE


def as_score_modifier(value: Any) -> ScoreModifier:
    """Convert a score modifier, a function (s, b, h, i, j) or a bias tensor to a score modifier."""
    value = materialize(value)
    if isinstance(value, ScoreModifier):
        return value
    if isinstance(value, (Tensor, np.ndarray)):
        return bias(value)
    if callable(value) and not isinstance(value, ClosedExpr):
        traced: ScoreModifier = materialize(modifier(value))
        return traced
    raise ArgumentError(
        "a score modifier must be a function (s, b, h, i, j), a bias tensor or array, or one of regard.score; got "
        f"{type(value).__name__}."
    )


def compose(first: ClosedExpr, second: ClosedExpr) -> ScoreModifier:
    """Return the modifier that applies `first`, then `second`."""
    (inner, outer), tensors, names, checks = merge_captures([first, second])
    return ScoreModifier(substitute(outer, {variable("s"): inner}), tensors, names, checks)


def trace_builtin_modifier(
    function: Callable[..., Any], *variables: str, stage: StageSpec = MODIFIER_STAGE, **options: Any
) -> ScoreModifier:
    """Trace a deterministic function into a score modifier; see `trace_builtin` for the options."""
    traced = trace_builtin(function, *variables, **options)
    expr = apply("to_float", traced.expr)
    return ScoreModifier(expr, traced.tensors, traced.tensor_names, traced.shape_checks, stage)


@serializable
def modifier(function: Callable[..., Any]) -> ScoreModifier:
    """Trace a function (s, b, h, i, j), such as FlexAttention's `score_mod`, into a reusable score modifier.

    >>> from regard.expr.printing import to_text
    >>> to_text(modifier(lambda s, b, h, i, j: s - 0.5 * abs(i - j)).expr)
    's - 0.5 * |i - j|'
    """
    traced = trace(function, SCORE_VARIABLES)
    return modifier_from_expr(apply("to_float", traced.expr), traced.tensors, traced.tensor_names)


@serializable
def modifier_from_expr(expr: Expr, tensors: Sequence[CapturedTensor], tensor_names: Sequence[str]) -> ScoreModifier:
    """Return the score modifier of a float expression over the captured tensors."""
    check_closed_expr(expr, tensors, tensor_names, "float")
    return ScoreModifier(expr, tuple(tensors), tuple(tensor_names))


@serializable
def alibi(slopes: Tensor | None = None) -> ScoreModifier:
    """Return ALiBi (Press et al., 2021): s - slopes[h] · |p - j|.

    `slopes` has shape (num_heads,). The default, None, takes the slopes of the paper: 2^(-8h/H) for head h of H.

    >>> import regard
    >>> x = torch.zeros(2, 3, 4)
    >>> regard.attention_with_weights(x, x, x, score=alibi(torch.tensor([1.0]))).weights[0, 0]
    tensor([0.6652, 0.2447, 0.0900])
    """
    table = torch.zeros(1) if slopes is None else as_tensor(slopes, "slopes")
    deferred = (table, TensorFromShape(_standard_slopes)) if slopes is None else None
    checks = () if slopes is None else (require_one_per("slopes", table, 0, "heads"),)
    return trace_builtin_modifier(
        lambda s, h, p, j: s - table[h] * abs(p - j),
        *("s", "h", "p", "j"),
        tensor_names=("slopes",),
        deferred_tensor=deferred,
        shape_checks=checks,
        stage=StageSpec("alibi", "minus a slope times the distance"),
    )


@memoize(64)
def alibi_slopes(num_heads: int) -> Tensor:
    """Return the slopes of the ALiBi paper: 2^(-8h/H) for head h = 1, ..., H if H is a power of two.

    Otherwise the slopes of the next smaller power of two are followed by every other slope of the next larger one.

    >>> alibi_slopes(8)[:3].tolist()
    [0.5, 0.25, 0.125]
    """
    power = 2 ** int(math.log2(max(num_heads, 1)))
    slopes = [2.0 ** (-8.0 * (h + 1) / power) for h in range(power)]
    extra = [2.0 ** (-8.0 * (h + 1) / (2 * power)) for h in range(0, 2 * power, 2)]
    return torch.tensor((slopes + extra)[:num_heads])


def _standard_slopes(score_shape: ScoreShape) -> Tensor:
    return alibi_slopes(score_shape[1])


@serializable
@check_types
def softcap(cap: float | Tensor) -> ScoreModifier:
    """Return the soft cap: cap · tanh(s / cap), which bounds the scores by ±cap.

    `cap` is greater than 0. A tensor `cap` may be learned; its shape is () or (heads,).

    >>> import regard
    >>> q, k = torch.eye(1), torch.tensor([[0.0], [100.0]])
    >>> regard.attention_with_weights(q, k, k, score=softcap(1.0)).weights[0]
    tensor([0.2689, 0.7311])
    """
    check_scalar_or_per_head(cap, "cap")
    if not isinstance(cap, Tensor) and not cap > 0:
        raise ArgumentError(f"cap must be greater than 0; got {cap}.")
    stage = StageSpec("softcap", "tanh keeps every score below the cap")
    if isinstance(cap, Tensor) and cap.numel() > 1:
        return trace_builtin_modifier(
            lambda s, h: cap[h] * torch.tanh(s / cap[h]),
            *("s", "h"),
            tensor_names=("cap",),
            shape_checks=(require_one_per("cap", cap, 0, "heads"),),
            stage=stage,
        )
    return trace_builtin_modifier(lambda s: cap * torch.tanh(s / cap), "s", tensor_names=("cap",), stage=stage)


@serializable
def bias(values: ArrayLike) -> ScoreModifier:
    """Return an additive bias: s + values[b, h, i, j].

    `values` are floats whose shape broadcasts to (batch, heads, n_q, n_k); -inf hides a pair.

    >>> import regard
    >>> x = torch.zeros(2, 4)
    >>> regard.attention_with_weights(x, x, x, score=bias(torch.tensor([0.0, -torch.inf]))).weights[0]
    tensor([1., 0.])
    """
    values = as_tensor(values, "bias")
    if not values.is_floating_point():
        raise ArgumentError(f"a bias tensor must hold floats; got {values.dtype}. For a boolean mask use mask=.")
    entry, tensors, names, checks = broadcast_lookup(values, "bias")
    stage = StageSpec("bias", "plus a number for each pair")
    return ScoreModifier(apply("add", variable("s"), entry), tensors, names, checks, stage)


@serializable
@check_types
def t5_bias(table: Tensor, *, bidirectional: bool = True, max_distance: int = 128) -> ScoreModifier:
    """Return T5's relative bias: s + table[bucket(j - p), h].

    Small distances have one bucket each; larger ones share logarithmically wider buckets. T5 itself uses `score.dot()`.

    Args:
        table: The biases, (num_buckets, num_heads); they may be learned.
        bidirectional: If True (default), half of the buckets are for keys after the query; if False, all keys after the
            query share bucket 0.
        max_distance: Distances from here on share the last bucket. Default: 128.

    >>> import regard
    >>> x = torch.randn(4, 6, 8)
    >>> regard.attention(x, x, x, score=regard.score.dot().then(t5_bias(torch.zeros(32, 1)))).shape
    torch.Size([4, 6, 8])
    """
    tensor(table, "table", dims=(2,), dtype_kind="floats")
    buckets = len(table) // 2 if bidirectional else len(table)
    if buckets < 2 or max_distance <= buckets // 2:
        limits = f"at least {4 if bidirectional else 2} buckets, and max_distance must be above {buckets // 2}"
        raise ArgumentError(f"table must have {limits}; got {len(table)} buckets and max_distance={max_distance}.")
    checks = (require_one_per("table", table, 1, "heads"),)

    def add_bias(s: Any, h: Any, p: Any, j: Any) -> Any:
        return s + table[_t5_bucket(j - p, table.shape[0], bidirectional, max_distance), h]

    return trace_builtin_modifier(
        add_bias,
        *("s", "h", "p", "j"),
        tensor_names=("table",),
        shape_checks=checks,
        stage=StageSpec("t5_bias", "plus a learned number for each distance"),
    )


def _t5_bucket(distance: Any, num_buckets: int, bidirectional: bool, max_distance: int) -> Any:
    first_bucket = 0
    if bidirectional:
        num_buckets //= 2
        first_bucket = (distance > 0).long() * num_buckets
        distance = abs(distance)
    else:
        distance = -torch.clamp(distance, max=0)
    num_exact = num_buckets // 2
    ratio = torch.log(torch.clamp(distance, min=1).float() / num_exact) / math.log(max_distance / num_exact)
    log_bucket = torch.clamp(num_exact + (ratio * (num_buckets - num_exact)).long(), max=num_buckets - 1)
    return first_bucket + torch.where(distance < num_exact, distance, log_bucket)


@serializable
@check_types
def shaw_keys(table: Tensor, scale: float | None = None) -> ScoreModifier:
    """Return the relative keys of Shaw et al. (2018): s + scale · q_i·table[clip(j - p) + max_distance].

    `table` has shape (2 · max_distance + 1, head_dim): row 0 is for keys `max_distance` or more before the query, the
    last row for keys `max_distance` or more after it. `scale` defaults to 1/√head_dim.

    >>> import regard
    >>> x = torch.randn(5, 8)
    >>> regard.attention(x, x, x, score=shaw_keys(torch.randn(9, 8))).shape
    torch.Size([5, 8])
    """
    max_distance = shaw_max_distance(table)
    products = torch.zeros(1, 1, 1, 1)
    return trace_builtin_modifier(
        lambda s, b, h, i, p, j: s + products[b, h, i, torch.clamp(j - p, -max_distance, max_distance) + max_distance],
        *("s", "b", "h", "i", "p", "j"),
        tensor_names=("relative",),
        deferred_tensor=(products, TensorFromQueries(_QueryTableProduct(table, scale))),
        stage=StageSpec("shaw_keys", "plus the dot product of the query with a learned vector for each distance"),
    )


@dataclass(frozen=True, eq=False)
class _QueryTableProduct:
    """The scaled product of each query with each row of a table: (batch, heads, n_q, rows)."""

    table: Tensor
    scale: float | None

    def __call__(self, q: Tensor) -> Tensor:
        table, head_dim = self.table, q.shape[-1]
        if table.shape[-1] != head_dim:
            raise ArgumentError(
                f"the table of shaw_keys must have the head dimension of q; got {table.shape[-1]} and {head_dim}."
            )
        scale = 1.0 / math.sqrt(head_dim) if self.scale is None else self.scale
        (products,) = isolate_nonfinite(lambda x: (upcast(x) @ upcast_like(table, x).mT * scale,), q)
        return products


def shaw_max_distance(table: Tensor) -> int:
    """Return the largest distance that has its own row in a table of shape (2 · max_distance + 1, head_dim)."""
    if table.dim() != 2 or table.shape[0] % 2 == 0 or not table.is_floating_point():
        raise ArgumentError(
            f"table must be a float tensor of shape (2 * max_distance + 1, head_dim); got {describe(table)}."
        )
    return table.shape[0] // 2
