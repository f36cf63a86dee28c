"""Closed expressions: an expression with its captured tensors and the checks of their shapes."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from regard.errors import ArgumentError
from regard.expr.ir import Expr, ScalarKind, constant, lookup, renumber_slots, variable
from regard.expr.node_list import check_lookups
from regard.expr.shape_checks import RequireBroadcastable
from regard.expr.tile_coverage import ScoreShape
from regard.expr.trace import trace_once

QueryOffset = int | Tensor


@dataclass(frozen=True, eq=False)
class TensorFromShape:
    """A tensor that is computed from the shape of the scores, (batch, heads, n_q, n_k)."""

    make: Callable[[ScoreShape], Tensor]


@dataclass(frozen=True, eq=False)
class TensorFromQueries:
    """A tensor that is computed differentiably from the queries, (batch, heads, n_q, head_dim)."""

    make: Callable[[Tensor], Tensor]


CapturedTensor = Tensor | TensorFromShape | TensorFromQueries
ShapeCheck = Callable[[ScoreShape, QueryOffset], None]


@dataclass(frozen=True, eq=False)
class ClosedExpr:
    """An expression and its captured tensors: slot n is `tensors[n]`, printed as `tensor_names[n]`.

    `shape_checks` raise an error if the tensors do not fit the shape of the scores.
    """

    expr: Expr
    tensors: tuple[CapturedTensor, ...] = ()
    tensor_names: tuple[str, ...] = ()
    shape_checks: tuple[ShapeCheck, ...] = field(default=())
    constructor_call: ClassVar[Any] = None  # set by `serializable`; see `expr/serialize.py`

    def check_shape(self, score_shape: ScoreShape, query_offset: QueryOffset) -> None:
        for check in self.shape_checks:
            check(score_shape, query_offset)

    def resolve_tensors(
        self, score_shape: ScoreShape, query_offset: QueryOffset, queries: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """Check the shapes, and return the captured tensors; deferred tensors are computed."""
        self.check_shape(score_shape, query_offset)
        return tuple(_resolve(t, score_shape, queries) for t in self.tensors)


def check_closed_expr(
    expr: Expr, tensors: Sequence[CapturedTensor], tensor_names: Sequence[str], kind: ScalarKind
) -> None:
    """Check that an expression has this kind and that its lookups fit the captured tensors.

    A mask has kind bool and must not depend on the score.
    """
    if not isinstance(expr, Expr) or expr.kind != kind:
        raise ArgumentError(f"the expression must be of kind {kind}; got {getattr(expr, 'kind', type(expr).__name__)}.")
    if kind == "bool" and "s" in expr.free_variables:
        raise ArgumentError("the expression of a mask must not depend on the score s; got one that does.")
    if not all(isinstance(t, (Tensor, TensorFromShape, TensorFromQueries)) for t in tensors):
        raise ArgumentError(f"captured values must be tensors; got {sorted({type(t).__name__ for t in tensors})}.")
    if not all(isinstance(name, str) for name in tensor_names):
        raise ArgumentError(
            f"names of captured tensors must be strings; got {sorted({type(n).__name__ for n in tensor_names})}."
        )
    check_lookups(expr, [(kind_of(t.dtype), t.dim()) if isinstance(t, Tensor) else None for t in tensors])


def kind_of(dtype: torch.dtype) -> ScalarKind:
    """Return the kind of the entries of a captured tensor."""
    if dtype.is_complex or dtype == torch.uint64:
        raise ArgumentError(f"a captured tensor must hold booleans, floats or integers of up to 63 bits; got {dtype}.")
    return "bool" if dtype == torch.bool else "float" if dtype.is_floating_point else "int"


def _resolve(tensor: CapturedTensor, score_shape: ScoreShape, queries: Tensor | None) -> Tensor:
    if isinstance(tensor, TensorFromShape):
        return tensor.make(score_shape)
    if isinstance(tensor, TensorFromQueries):
        assert queries is not None, "a mask does not depend on the queries"
        return tensor.make(queries)
    return tensor


def trace_builtin(
    function: Callable[..., Any],
    *variables: str,
    tensor_names: Iterable[str] = (),
    shape_checks: Iterable[ShapeCheck] = (),
    deferred_tensor: tuple[Tensor, TensorFromShape | TensorFromQueries] | None = None,
) -> ClosedExpr:
    """Trace a function of these variables that is part of regard, and therefore known to be deterministic.

    `deferred_tensor` is a placeholder tensor that the function captures, and its replacement: a tensor that is computed
    for each call.
    """
    traced = trace_once(function, variables)
    placeholder, replacement = deferred_tensor or (None, None)
    tensors = tuple(replacement if replacement is not None and t is placeholder else t for t in traced.tensors)
    return ClosedExpr(traced.expr, tensors, tuple(tensor_names) or traced.tensor_names, tuple(shape_checks))


def broadcast_lookup(
    values: Tensor, name: str
) -> tuple[Expr, tuple[Tensor, ...], tuple[str, ...], tuple[ShapeCheck, ...]]:
    """Return the fields of a `ClosedExpr` that indexes a broadcastable tensor by (b, h, i, j)."""
    if values.dim() > 4:
        raise ArgumentError(f"a {name} tensor must have at most 4 dimensions; got shape {tuple(values.shape)}.")
    kind = "bool" if values.dtype == torch.bool else "float"
    axes = "bhij"[4 - values.dim() :]
    indices = tuple(variable(axis) if size != 1 else constant(0) for axis, size in zip(axes, values.shape, strict=True))
    shape_check = RequireBroadcastable(name, tuple(values.shape))
    return lookup(0, indices, kind), (values,), (name,), (shape_check,)  # type: ignore[arg-type]  # one of the kinds


def merge_captures(
    closed_exprs: Iterable[ClosedExpr],
) -> tuple[list[Expr], tuple[CapturedTensor, ...], tuple[str, ...], tuple[ShapeCheck, ...]]:
    """Return several expressions with a common list of captured tensors, in which a shared tensor occurs once."""
    exprs: list[Expr] = []
    tensors: list[CapturedTensor] = []
    names: list[str] = []
    checks: list[ShapeCheck] = []
    for closed_expr in closed_exprs:
        slots = {}
        for slot, tensor in enumerate(closed_expr.tensors):
            slots[slot] = next((n for n, merged in enumerate(tensors) if merged is tensor), len(tensors))
            if slots[slot] == len(tensors):
                name = closed_expr.tensor_names[slot] if slot < len(closed_expr.tensor_names) else "t"
                tensors.append(tensor)
                names.append(_unique_name(name, names))
        exprs.append(renumber_slots(closed_expr.expr, slots))
        checks.extend(closed_expr.shape_checks)
    return exprs, tuple(tensors), tuple(names), tuple(checks)


def _unique_name(name: str, used_names: list[str]) -> str:
    if name not in used_names:
        return name
    return next(f"{name}{n}" for n in range(2, len(used_names) + 3) if f"{name}{n}" not in used_names)
