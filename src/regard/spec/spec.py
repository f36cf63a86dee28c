"""The question: a frozen, hashable spec, and beside it the tensors it is asked about."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.spec.formula import Formula, FromQueries, Start
from regard.spec.normaliser import Normaliser
from regard.spec.regions import Lengths
from regard.spec.score import RelativeValues, Score, TileFunction
from regard.spec.term import Term
from regard.spec.weigh import Weigh


@dataclass(frozen=True)
class Spec:
    """What is asked, in numbers and terms: equal specs have equal plans.

    `width` is that of the product the engine computes, after preparation, and `precision` what scores and sums are
    computed in. `start` is None where it differs by batch element. `tensors` has the shape and dtype of each captured
    tensor; the tensors themselves travel beside the spec.
    """

    batch: int
    heads: int
    key_heads: int
    n_q: int
    n_k: int
    width: int
    value_width: int
    dtype: torch.dtype
    device: str
    score: str
    scale: float
    precision: torch.dtype
    rule: Term | None
    mask: Term
    normaliser: Normaliser
    dropout: float
    start: int | None
    tensors: tuple[tuple[tuple[int, ...], torch.dtype], ...]
    formula: str = field(compare=False, default="")

    @property
    def lengths(self) -> Lengths:
        return self.batch, self.heads, self.n_q, self.n_k

    @property
    def group(self) -> int:
        """How many query heads share a key head."""
        return self.heads // self.key_heads if self.key_heads else 1


class Origin(NamedTuple):
    """Where a call stands in a larger one, as dropout counts.

    Head h, query i and key j of the call are head h + `head`, query `i` + `i_step`·i and key `j` + `j_step`·j there.
    """

    head: int = 0
    i: int = 0
    i_step: int = 1
    j: int = 0
    j_step: int = 1


ORIGIN = Origin()


@dataclass(frozen=True, eq=False)
class Inputs:
    """The tensors of one call: q (batch, heads, n_q, width), k and v with key heads, and what the terms capture."""

    q: Tensor
    k: Tensor
    v: Tensor
    tensors: tuple[Tensor, ...]
    parameters: tuple[Tensor, ...]
    function: TileFunction | None
    start: Start
    seed: int
    origin: Origin = ORIGIN

    def every(self) -> list[Tensor]:
        """All tensors in one list: q, k, v, what the terms capture, the score's parameters."""
        return [self.q, self.k, self.v, *self.tensors, *self.parameters]

    def holding(self, every: Sequence[Tensor]) -> "Inputs":
        """The same call on other tensors, counted as in `every`."""
        q, k, v, *rest = every
        captured = len(self.tensors)
        return replace(self, q=q, k=k, v=v, tensors=tuple(rest[:captured]), parameters=tuple(rest[captured:]))

    def detached(self) -> "Inputs":
        return self.holding([x.detach() for x in self.every()])


@dataclass(frozen=True, eq=False)
class Question:
    """A call, read and checked: its spec, how to make the engine's inputs, and how to shape the answer."""

    spec: Spec
    q: Tensor
    k: Tensor
    v: Tensor
    score: Score
    weigh: Weigh
    relative_values: RelativeValues | None
    formula: Formula
    start: Start
    seed: int
    leading: tuple[int, ...]
    has_heads: bool
    is_numpy: bool

    def inputs(self, exact: torch.dtype | None = None) -> Inputs:
        """Preparation, in plain differentiable torch: what the engine's product is taken of. `exact` converts first."""
        q, k, v = (x if exact is None else x.to(exact) for x in (self.q, self.k, self.v))
        prepared = self.score.prepared(q, k)
        tensors = self.formula.resolved(self.spec.lengths, self.start, q)
        return Inputs(
            q=prepared.q,
            k=prepared.k,
            v=v,
            tensors=tuple(t.to(self.q.device) for t in tensors),
            parameters=prepared.parameters,
            function=prepared.function,
            start=self.start,
            seed=self.seed,
        )

    def captured(self) -> tuple[Tensor, ...]:
        """What the terms capture, for planning: tensors that are made from the queries stand as zeros."""
        nothing = torch.zeros((*self.spec.lengths[:3], 1))
        known = (nothing if isinstance(t, FromQueries) else t for t in self.formula.tensors)
        return replace(self.formula, tensors=tuple(known)).resolved(self.spec.lengths, self.start)

    def shaped(self, result: Tensor) -> Any:
        """A tensor (batch, heads, ...) in the caller's dimensions and kind of array."""
        result = result.reshape(*self.leading, *result.shape[2:])
        return result.detach().cpu().numpy() if self.is_numpy else result
