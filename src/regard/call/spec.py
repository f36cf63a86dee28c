"""A parsed call: a frozen, hashable spec, and the tensors that belong to it."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.expr.closed_expr import ClosedExpr, QueryOffset, TensorFromQueries
from regard.expr.ir import TRUE, Expr, variable
from regard.expr.printing import to_text
from regard.expr.tile_coverage import ScoreShape
from regard.normalizer import Normalizer
from regard.normalizers.streaming import RowNormalizer
from regard.score import RelativeValues, Score, TileFunction


class FormulaText(NamedTuple):
    """The parts of a call's formula that its spec does not have."""

    score: Score
    tensor_names: tuple[str, ...]
    normalizer: str
    is_score_mod_implied: bool  # by the name of the normalizer


@dataclass(frozen=True)
class CallSpec:
    """The shapes, dtypes and expressions of a call. Equal specs have equal plans.

    `head_dim` is that of the dot product after the score has prepared q and k. Scores and sums are computed in
    `score_dtype`. `query_offset` is None if it differs by batch element. `captured_specs` has the shape and dtype of
    each captured tensor; the tensors themselves are in `BackendInputs`.
    """

    batch_size: int
    num_heads: int
    num_kv_heads: int
    n_q: int
    n_k: int
    head_dim: int
    value_dim: int
    dtype: torch.dtype
    device: str
    score_kind: str
    scale: float
    score_dtype: torch.dtype
    score_mod: Expr | None
    mask: Expr
    normalizer: RowNormalizer
    dropout: float
    query_offset: int | None
    captured_specs: tuple[tuple[tuple[int, ...], torch.dtype], ...]
    text: FormulaText = field(compare=False, repr=False)

    @property
    def formula(self) -> str:
        """The formula of the call in a line of text."""
        score, names, normalizer, is_score_mod_implied = self.text
        scores, modifier = score.formula(), self.score_mod
        if is_score_mod_implied:
            modifier = None if score.score_mod is None else score.score_mod.expr
            names = () if score.score_mod is None else score.score_mod.tensor_names
        if modifier is not None and modifier is not variable("s"):
            scores = f"{to_text(modifier, names)} with s = {scores}"
        condition = "" if self.mask is TRUE else f", masked by {to_text(self.mask, self.text.tensor_names)}"
        return f"o = {normalizer}({scores}{condition}) v"

    @property
    def score_shape(self) -> ScoreShape:
        return self.batch_size, self.num_heads, self.n_q, self.n_k

    @property
    def queries_per_kv_head(self) -> int:
        """The number of query heads that share a key-value head."""
        return self.num_heads // self.num_kv_heads if self.num_kv_heads else 1


class DropoutOrigin(NamedTuple):
    """The position of a call in a larger one, so that dropout drops the same weights.

    Head h, query i and key j of the call are head h + `head`, query `i` + `i_step`·i and key `j` + `j_step`·j of the
    larger one.
    """

    head: int = 0
    i: int = 0
    i_step: int = 1
    j: int = 0
    j_step: int = 1


DROPOUT_ORIGIN = DropoutOrigin()


@dataclass(frozen=True, eq=False)
class BackendInputs:
    """The tensors of one call: q (batch, heads, n_q, head_dim), k and v with key-value heads, and captured tensors."""

    q: Tensor
    k: Tensor
    v: Tensor
    tensors: tuple[Tensor, ...]
    parameters: tuple[Tensor, ...]
    score_function: TileFunction | None
    query_offset: QueryOffset
    seed: int
    dropout_origin: DropoutOrigin = DROPOUT_ORIGIN

    def all_tensors(self) -> list[Tensor]:
        """q, k, v, the captured tensors and the score's parameters, in one list."""
        return [self.q, self.k, self.v, *self.tensors, *self.parameters]

    def with_tensors(self, tensors: Sequence[Tensor]) -> "BackendInputs":
        """The same inputs with other tensors, in the order of `all_tensors`."""
        q, k, v, *rest = tensors
        num_captured = len(self.tensors)
        return replace(self, q=q, k=k, v=v, tensors=tuple(rest[:num_captured]), parameters=tuple(rest[num_captured:]))

    def detached(self) -> "BackendInputs":
        return self.with_tensors([x.detach() for x in self.all_tensors()])


@dataclass(frozen=True, eq=False)
class ParsedCall:
    """A checked call: its spec, its tensors, and the shape of its output."""

    spec: CallSpec
    q: Tensor
    k: Tensor
    v: Tensor
    score: Score
    normalizer: Normalizer
    relative_values: RelativeValues | None
    closed_expr: ClosedExpr
    query_offset: QueryOffset
    seed: int
    leading_shape: tuple[int, ...]
    has_heads: bool
    is_numpy: bool

    def prepare_inputs(self, compute_dtype: torch.dtype | None = None) -> BackendInputs:
        """The backend's inputs, by differentiable torch operations. `compute_dtype` is applied to q, k and v first."""
        q, k, v = (x if compute_dtype is None else x.to(compute_dtype) for x in (self.q, self.k, self.v))
        prepared = self.score.prepare_safely(q, k)
        tensors: tuple[Tensor, ...] = ()
        if self.closed_expr.tensors:
            tensors = self.closed_expr.resolve_tensors(self.spec.score_shape, self.query_offset, q)
        return BackendInputs(
            q=prepared.q,
            k=prepared.k,
            v=v,
            tensors=tuple(t.to(self.q.device) for t in tensors),
            parameters=prepared.parameters,
            score_function=prepared.score_function,
            query_offset=self.query_offset,
            seed=self.seed,
        )

    def captured_tensors(self) -> tuple[Tensor, ...]:
        """The captured tensors, for planning. Those that are computed from the queries are zeros."""
        zeros = torch.zeros((*self.spec.score_shape[:3], 1))
        tensors = tuple(zeros if isinstance(t, TensorFromQueries) else t for t in self.closed_expr.tensors)
        return replace(self.closed_expr, tensors=tensors).resolve_tensors(self.spec.score_shape, self.query_offset)

    def restore_shape(self, result: Tensor) -> Any:
        """A tensor (batch, heads, ...) in the caller's dimensions; a NumPy array if the caller passed one."""
        result = result.reshape(*self.leading_shape, *result.shape[2:])
        return result.detach().cpu().numpy() if self.is_numpy else result
