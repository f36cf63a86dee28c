"""Parts of the matrix of weights, for measures: a tile at a time, by torch's operations. `native` has its own way."""

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from torch import Tensor

from regard.engine.dense import block, positions_of
from regard.plan.blocks import Strip, Tiles
from regard.spec.finite import all_finite
from regard.spec.normaliser import Streamed
from regard.spec.spec import Inputs, Spec


@dataclass(frozen=True)
class Wanted:
    """What is to be known of a part: all of its pairs, or only what is said here."""

    pairs: bool = True
    entropy: bool = False
    received: bool = False
    largest: bool = False
    cell: int = 0  # keys in a cell

    def __or__(self, other: "Wanted") -> "Wanted":
        """What either of them wants. Cells can have one size: those of another are made of the pairs."""
        differ = bool(self.cell and other.cell and self.cell != other.cell)
        return Wanted(
            self.pairs or other.pairs or differ,
            self.entropy or other.entropy,
            self.received or other.received,
            self.largest or other.largest,
            self.cell or other.cell,
        )


NOTHING = Wanted(pairs=False)


@dataclass(frozen=True, eq=False)
class Part:
    """Some queries and keys, (batch, heads, queries, keys); what is None was not computed. The next part may be written
    over this one."""

    scores: Tensor | None = None  # -inf where the pair is hidden
    weights: Tensor | None = None
    entropy: Tensor | None = None  # (batch, heads, queries): the sum of -a log a over the keys
    received: Tensor | None = None  # (batch, heads, keys): the sum of the weights over the queries
    # (batch, heads, queries): the largest weight and the key that has it; -1 where nothing is seen
    largest: tuple[Tensor, Tensor] | None = None
    cell: int = 0
    # (batch, heads, queries, cells): the sum and the maximum of a row's weights in cells of so many keys
    cells: tuple[Tensor, Tensor] | None = None


class Parts(Protocol):
    """Who computes them; `tiles` says in what sizes."""

    def tiles(self, wanted: Wanted) -> Tiles: ...

    def part(self, strip: Strip, keys: range, full: bool, wanted: Wanted) -> Part:
        """What is wanted, or more."""
        ...


@dataclass(frozen=True, eq=False)
class Matrix:
    """What any weight follows from: a question whose normaliser is streamed, and the statistic of its rows."""

    spec: Spec
    inputs: Inputs
    statistic: Tensor | None

    def weights(self, scores: Tensor, statistic: Tensor | None) -> Tensor:
        """The weights of any entries, given the statistic of their rows."""
        assert isinstance(self.spec.normaliser, Streamed)
        return self.spec.normaliser.weights(scores, statistic)


@dataclass(frozen=True, eq=False)
class PartsByTorch:
    """Any question on any device."""

    matrix: Matrix
    size: Tiles

    def tiles(self, wanted: Wanted) -> Tiles:
        return self.size

    @cached_property
    def _finite(self) -> bool:
        return all_finite(self.matrix.inputs.q, self.matrix.inputs.k)

    def part(self, strip: Strip, keys: range, full: bool, wanted: Wanted) -> Part:
        spec, inputs, whole = self.matrix.spec, self.matrix.inputs, self.matrix.statistic
        b, h, i, j = (slice(r.start, r.stop) for r in (strip.b, strip.h, strip.i, keys))
        groups = slice(h.start // spec.group, (h.stop - 1) // spec.group + 1)
        q = inputs.q[b, h, i].to(spec.precision)
        k = inputs.k[b, groups, j].to(spec.precision)
        k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
        found = block(spec, inputs, positions_of(spec, inputs, strip.b, strip.h, strip.i, keys), q, k, self._finite)
        statistic = None if whole is None else whole[b, h, i].unsqueeze(-1)
        return Part(found.scores, self.matrix.weights(found.scores, statistic))
