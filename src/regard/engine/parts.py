"""Parts of the matrix of weights, for measures: a tile at a time, by torch's operations. `native` has its own way."""

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from torch import Tensor

from regard.engine.dense import block, positions_of
from regard.plan.blocks import Strip, Tiles
from regard.spec.finite import all_finite
from regard.spec.spec import Inputs, Spec


@dataclass(frozen=True, eq=False)
class Part:
    """Some queries and keys: (batch, heads, queries, keys) scores and weights; `entropy` sums -a log a over the keys.

    `cells` has the sum and the maximum of each row's weights in cells of keys, (batch, heads, queries, cells).
    A score is -inf where the pair is hidden. The next part may be written over this one.
    """

    scores: Tensor
    weights: Tensor
    entropy: Tensor | None = None
    cells: tuple[Tensor, Tensor] | None = None


class Parts(Protocol):
    """Who computes them; `tiles` says in what sizes. `cell` is the number of keys in a cell, if that is known."""

    @property
    def tiles(self) -> Tiles: ...

    def part(self, strip: Strip, keys: range, full: bool, cell: int = 0) -> Part: ...


@dataclass(frozen=True, eq=False)
class PartsByTorch:
    """Any spec on any device."""

    spec: Spec
    inputs: Inputs
    tiles: Tiles
    statistic: Tensor | None

    @cached_property
    def _finite(self) -> bool:
        return all_finite(self.inputs.q, self.inputs.k)

    def part(self, strip: Strip, keys: range, full: bool, cell: int = 0) -> Part:
        spec, inputs = self.spec, self.inputs
        b, h, i, j = (slice(r.start, r.stop) for r in (strip.b, strip.h, strip.i, keys))
        groups = slice(h.start // spec.group, (h.stop - 1) // spec.group + 1)
        q = inputs.q[b, h, i].to(spec.precision)
        k = inputs.k[b, groups, j].to(spec.precision)
        k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
        found = block(spec, inputs, positions_of(spec, inputs, strip.b, strip.h, strip.i, keys), q, k, self._finite)
        statistic = None if self.statistic is None else self.statistic[b, h, i].unsqueeze(-1)
        return Part(found.scores, spec.normaliser.weights(found.scores, statistic))
