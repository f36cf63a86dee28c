"""Lowers an expression to a function of one pair, as FlexAttention takes masks and score modifiers.

torch compiles such a function to a kernel, or maps it over all pairs. The expression is therefore lowered to a list of
steps, each a torch operation on earlier results. The values equal those of `expr.evaluate`.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from regard.cache import memoize
from regard.expr.bounds import BoundsEvaluator, IndexBoxes
from regard.expr.closed_expr import QueryOffset
from regard.expr.evaluate import DISCONTINUOUS_OPS, NodeUse, argument_uses, compute_op, upcast_entries
from regard.expr.ir import ELEMENTARY_FUNCTIONS, VARIABLES, Expr, Number, apply, postorder, slot_of, variable, walk
from regard.expr.tile_coverage import ScoreShape

MaskMod = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
ScoreMod = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]

# the index into a tensor without dimensions: a number that depends on no pair would take the dtype of others
_PAIR_ZERO = apply("sub", variable("b"), variable("b"))
_ROUNDED_OPS = ELEMENTARY_FUNCTIONS | {"add", "sub", "mul", "div", "floordiv", "mod", "pow"}


class FlexLowering:
    """The functions of one call. One kernel serves all lengths: they and the query offset are captured tensors."""

    def __init__(
        self, tensors: Sequence[Tensor], score_shape: ScoreShape, query_offset: QueryOffset, device: torch.device
    ) -> None:
        batch, _, n_q, n_k = score_shape
        self.tensors = [t.detach() if t.dim() else t.detach().reshape(1) for t in tensors]
        self.query_offset = (
            torch.full((batch,), query_offset, device=device) if isinstance(query_offset, int) else query_offset
        )
        self.n_q, self.n_k = (torch.full((), n, device=device) for n in (n_q, n_k))
        self.device = device

    def mask_mod(self, expr: Expr) -> MaskMod:
        """The mask as a function (b, h, i, j) -> bool."""
        value = self._pair_function(expr, None)

        def mask_function(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return value(None, b, h, i, j)

        return mask_function

    def score_mod(self, expr: Expr, score_dtype: torch.dtype) -> ScoreMod:
        """The score modifier as a function (s, b, h, i, j) -> score."""
        value = self._pair_function(expr, score_dtype)

        def score_function(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return value(s.to(score_dtype), b, h, i, j).to(score_dtype)

        return score_function

    def _pair_function(self, expr: Expr, score_dtype: torch.dtype | None) -> Callable[..., Tensor]:
        numbers, steps, result = _lower(expr, score_dtype, len(self.tensors))
        tensors, query_offset, n_q, n_k, device = self.tensors, self.query_offset, self.n_q, self.n_k, self.device
        has_position = "p" in expr.free_variables

        def value(s: Tensor | None, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            b, h, i, j = b.long(), h.long(), i.long(), j.long()  # products of positions may not fit into 32 bits
            p = i + query_offset[b] if has_position else None
            values: list[Any] = [b, h, i, j, p, s, n_q, n_k, *tensors, *numbers]
            for function, operands in steps:
                values.append(function([values[n] for n in operands], device))
            output = values[result]
            return output if isinstance(output, Tensor) else torch.full((), output, device=device)

        return value


LoweredStep = tuple[Callable[[list[Any], torch.device], Tensor], tuple[int, ...]]


@memoize(512)
def _lower(
    expr: Expr, score_dtype: torch.dtype | None, num_tensors: int
) -> tuple[tuple[Number, ...], tuple[LoweredStep, ...], int]:
    """Constants, steps and the index of the result. Indices count variables, tensors, constants, then steps."""
    builder = _StepBuilder(expr, score_dtype, num_tensors)
    result = builder.emit(expr, score_dtype is not None)
    return tuple(node.value for node in builder.constants), tuple(builder.steps), result  # type: ignore[misc]  # numbers


class _StepBuilder:
    def __init__(self, expr: Expr, score_dtype: torch.dtype | None, num_tensors: int) -> None:
        self.score_dtype = score_dtype
        constants = [node for node in walk(expr) if node.op == "constant"]
        self.constants: dict[Expr, int] = {node: n for n, node in enumerate(constants)}
        self.steps: list[LoweredStep] = []
        self._value_indices: dict[NodeUse, int] = {}
        self._first_constant_index = len(VARIABLES) + num_tensors

    def emit(self, expr: Expr, in_score_dtype: bool) -> int:
        """Append the steps that compute an expression; return the index of its value."""
        for node_use in postorder(((expr, in_score_dtype),), _operand_uses):
            self._value_indices[node_use] = self._emit_node(*node_use)
        return self._value_indices[expr, in_score_dtype]

    def _emit_node(self, expr: Expr, in_score_dtype: bool) -> int:
        if expr.op == "variable":
            return list(VARIABLES).index(str(expr.value))
        if expr.op == "constant":
            return self._first_constant_index + self.constants[expr]
        operands = tuple(self._value_indices[use] for use in _operand_uses((expr, in_score_dtype)))
        if expr.op == "lookup":
            load_entry = partial(_load_entry, self.score_dtype if in_score_dtype else None)
            self.steps.append((load_entry, (len(VARIABLES) + slot_of(expr), *operands)))
        else:
            self.steps.append((partial(compute_op, expr.op), operands))
        return self._first_constant_index + len(self.constants) + len(self.steps) - 1


def _operand_uses(node_use: NodeUse) -> list[NodeUse]:
    expr, in_score_dtype = node_use
    if expr.op == "lookup" and not expr.args:
        return [(_PAIR_ZERO, False)]
    return argument_uses(expr, in_score_dtype)


def _load_entry(score_dtype: torch.dtype | None, operands: list[Any], device: torch.device) -> Tensor:
    tensor, *index = operands
    return upcast_entries(tensor[tuple(index)], score_dtype)


def may_index_out_of_range(
    exprs: Sequence[Expr], tensors: Sequence[Tensor], score_shape: ScoreShape, query_offset: QueryOffset
) -> bool:
    """Whether a lookup index might be out of range for some pair. The lowered functions do not check it."""
    lookups = [node for expr in exprs for node in walk(expr) if node.op == "lookup" and node.args]
    if not lookups:
        return False
    all_pairs = IndexBoxes.all_pairs(score_shape)
    bounds = BoundsEvaluator(tensors, score_shape, query_offset)
    for node in lookups:
        for index, size in zip(node.args, tensors[slot_of(node)].shape, strict=True):
            low, high = bounds.bounds(index, all_pairs)
            if low.min() < -size or high.max() >= size:
                return True
    return False


def rounding_sensitive_ops(exprs: Sequence[Expr]) -> Iterator[str]:
    """Operations on floats that a comparison depends on: another compiler may round them differently."""
    discontinuous = [
        node for expr in exprs for node in walk(expr) if node.op in DISCONTINUOUS_OPS and "s" not in node.free_variables
    ]
    for node in postorder(discontinuous, lambda node: node.args):
        if node.kind == "float" and node.op in _ROUNDED_OPS:
            yield node.op
