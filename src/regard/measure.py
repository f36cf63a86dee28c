"""Measures: reductions of the attention matrix in one pass over tiles, without the matrix.

Each measure is a small value; its running part is begun, given every tile that is not empty, and finished. Results
have the caller's dimensions before the length, then the measure's own.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.argument_types import check_types
from regard.engine.parts import Part, Wanted
from regard.errors import BudgetError, SpecError
from regard.spec.evaluate import Evaluation, Positions
from regard.spec.mask import Mask, as_mask
from regard.spec.spec import Inputs, Spec

Shaped = Callable[[Tensor], Any]

MAX_NUMBERS = 2**31  # that a measure keeps: 32 GB
CELL = 4  # keys: smaller cells are nearly as many as pairs


@dataclass(frozen=True, eq=False)
class WeightTile:
    """The weights of some queries and keys, (batch, heads, queries, keys), with their scores and positions.

    What a measure wants to know may have been computed without them. The next tile may be written over this one: what
    must last is copied.
    """

    positions: Positions
    part: Part

    @property
    def scores(self) -> Tensor:
        assert self.part.scores is not None, "a measure wants more than it said"
        return self.part.scores

    @property
    def weights(self) -> Tensor:
        assert self.part.weights is not None, "a measure wants more than it said"
        return self.part.weights

    def entropy(self) -> Tensor:
        """The sum of -a log a over this tile's keys, (batch, heads, queries)."""
        return torch.special.entr(self.weights).sum(-1) if self.part.entropy is None else self.part.entropy

    def received(self) -> Tensor:
        """The sum of the weights over this tile's queries, (batch, heads, keys)."""
        return self.weights.sum(-2) if self.part.received is None else self.part.received

    def largest(self) -> tuple[Tensor, Tensor]:
        """The largest weight of each row and the key that has it, (batch, heads, queries); -1 where nothing is seen."""
        if self.part.largest is not None:
            return self.part.largest
        best, at = torch.where(self.scores == -torch.inf, -1.0, self.weights).max(dim=-1)
        return best, torch.where(best < 0, -1, at + self.first("j"))

    def cells(self, size: int) -> tuple[Tensor, Tensor]:
        """The sum and the maximum of each row's weights in cells of `size` keys, counted from the first of all."""
        if self.part.cells is not None and size == self.part.cell:
            return self.part.cells
        padded = _whole_cells(self.weights, -1, self.first("j"), size)
        cells = padded.unflatten(-1, (-1, size))
        return cells.sum(-1), cells.amax(-1)

    def rows(self, whole: Tensor) -> Tensor:
        """The part of a (batch, heads, n_q, ...) tensor for this tile's queries, the same memory."""
        return whole[self._at("b"), self._at("h"), self._at("i")]

    def columns(self, whole: Tensor) -> Tensor:
        """The part of a (batch, heads, n_k) tensor for this tile's keys, the same memory."""
        return whole[self._at("b"), self._at("h"), self._at("j")]

    def heads(self, whole: Tensor) -> Tensor:
        return whole[self._at("b"), self._at("h")]

    def first(self, name: str) -> int:
        return self._at(name).start  # type: ignore[no-any-return]  # slices of ints

    def _at(self, name: str) -> slice:
        index = self.positions.indices[name]
        assert isinstance(index, range)
        return slice(index.start, index.stop)


class Running(ABC):
    """A measure while it runs; `wanted` says what it asks of tiles."""

    wanted = Wanted(pairs=True)

    @abstractmethod
    def step(self, tile: WeightTile) -> None:
        """Take in one tile."""

    @abstractmethod
    def finish(self, shaped: Shaped) -> Any:
        """The result, in the caller's dimensions."""


@dataclass(frozen=True, eq=False)
class Measure(ABC):
    """Something to be known about the weights."""

    name: str

    @abstractmethod
    def begin(self, spec: Spec, inputs: Inputs) -> Running:
        """Its running part for one call."""


class Measured(tuple[Any, ...]):
    """The results in the order in which the measures were given; also by name: `found.entropy`."""

    names: tuple[str, ...]

    def __new__(cls, measures: Sequence[Measure], results: Sequence[Any]) -> "Measured":
        made = super().__new__(cls, results)
        made.names = tuple(m.name for m in measures)
        return made

    def __getattr__(self, name: str) -> Any:
        names = self.__dict__.get("names", ())
        if names.count(name) == 1:
            return self[names.index(name)]
        raise AttributeError(f"there is no single measure {name!r} here; there are: {', '.join(names)}.")


def _zeros(spec: Spec, inputs: Inputs, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.zeros((spec.batch, spec.heads, *shape), dtype=dtype, device=inputs.q.device)


@dataclass(frozen=True, eq=False)
class _RowSum(Measure):
    """A sum over each row: `of` gives that over the keys of a tile."""

    of: Callable[[WeightTile], Tensor]
    over_mass: bool = False
    wanted: Wanted = Running.wanted

    def begin(self, spec: Spec, inputs: Inputs) -> Running:
        return _RunningRows(spec, inputs, self.of, self.over_mass, self.wanted)


class _RunningRows(Running):
    def __init__(
        self,
        spec: Spec,
        inputs: Inputs,
        of: Callable[[WeightTile], Tensor],
        over_mass: bool = False,
        wanted: Wanted = Running.wanted,
    ) -> None:
        self.of, self.exact, self.wanted = of, spec.precision, wanted
        self.total = _zeros(spec, inputs, spec.n_q)
        self.mass = _zeros(spec, inputs, spec.n_q) if over_mass else None

    def step(self, tile: WeightTile) -> None:
        tile.rows(self.total).add_(self.of(tile))
        if self.mass is not None:
            tile.rows(self.mass).add_(tile.weights.sum(-1))

    def finish(self, shaped: Shaped) -> Any:
        total = self.total
        if self.mass is not None:
            total = torch.where(self.mass > 0, total / self.mass, 0.0)
        return shaped(total.to(self.exact))


def _distances(tile: WeightTile) -> Tensor:
    p, j = (torch.as_tensor(tile.positions[name]) for name in "pj")
    return (tile.weights * (p - j).abs()).sum(-1)


entropy: Measure = _RowSum("entropy", WeightTile.entropy, wanted=Wanted(pairs=False, entropy=True))
"""-sum a log a of each row, in nats: 0 if one key has all the weight, log n if all have the same."""

distance: Measure = _RowSum("distance", _distances, over_mass=True)
"""How far each query looks on average: sum a |p - j| / sum a; 0 for a row that sees nothing."""


@dataclass(frozen=True, eq=False)
class _Received(Measure):
    def begin(self, spec: Spec, inputs: Inputs) -> Running:
        return _RunningColumns(spec, inputs)


class _RunningColumns(Running):
    wanted = Wanted(pairs=False, received=True)

    def __init__(self, spec: Spec, inputs: Inputs) -> None:
        self.exact = spec.precision
        self.total = _zeros(spec, inputs, spec.n_k)

    def step(self, tile: WeightTile) -> None:
        tile.columns(self.total).add_(tile.received())

    def finish(self, shaped: Shaped) -> Any:
        return shaped(self.total.to(self.exact))


received: Measure = _Received("received")
"""How much weight each key receives from all queries together."""


class Top(NamedTuple):
    """The largest weights of each row and the keys that have them; -1 where a query sees fewer keys."""

    values: Any
    indices: Any


@dataclass(frozen=True, eq=False)
class _Top(Measure):
    count: int

    def begin(self, spec: Spec, inputs: Inputs) -> Running:
        rows = spec.batch * spec.heads * spec.n_q
        if rows * self.count > MAX_NUMBERS:
            raise BudgetError(
                f"top must keep at most {MAX_NUMBERS:,} weights in all; got {rows:,} rows times {self.count:,}."
            )
        return _RunningTop(spec, inputs, self.count)


class _RunningTop(Running):
    def __init__(self, spec: Spec, inputs: Inputs, count: int) -> None:
        self.values = _zeros(spec, inputs, spec.n_q, count, dtype=spec.precision) - 1.0
        self.indices = _zeros(spec, inputs, spec.n_q, count, dtype=torch.int64) - 1
        self.count = count
        self.wanted = Wanted(pairs=count > 1, largest=count == 1)

    def step(self, tile: WeightTile) -> None:
        values, indices = tile.rows(self.values), tile.rows(self.indices)
        if self.count == 1:
            best, at = (x.unsqueeze(-1) for x in tile.largest())
            larger = ~(best <= values)  # of a NaN as well
            values.copy_(torch.where(larger, best.to(values.dtype), values))
            indices.copy_(torch.where(larger, at, indices))
            return
        seen = torch.where(tile.scores == -torch.inf, -1.0, tile.weights)
        best, at = seen.topk(min(self.count, seen.shape[-1]), dim=-1)
        at = torch.where(best < 0, -1, at + tile.first("j"))
        both = torch.cat([values, best.to(values.dtype)], -1)
        kept, which = both.topk(self.count, dim=-1)
        indices.copy_(torch.cat([indices, at], -1).gather(-1, which))
        values.copy_(kept)

    def finish(self, shaped: Shaped) -> Any:
        return Top(shaped(self.values.clamp_(min=0.0)), shaped(self.indices))


@check_types
def top(count: int) -> Measure:
    """The `count` largest weights of each row, and which keys have them."""
    if count < 1:
        raise SpecError(f"top must keep at least 1; got {count}.")
    return _Top("top", count)


class Pooled(NamedTuple):
    """A small map of the matrix: mean and maximum of each cell of `cell` = (queries, keys)."""

    mean: Any
    max: Any
    cell: tuple[int, int]


def _whole_cells(x: Tensor, dim: int, first: int, size: int) -> Tensor:
    """The rows or columns from `first` on, with as many zeros around them as fill whole cells.

    Weights are never negative, so zeros change neither sums nor maxima.
    """
    before = first % size
    after = -(before + x.shape[dim]) % size
    around = (before, after) if dim == -1 else (0, 0, before, after)
    return torch.nn.functional.pad(x, around) if before or after else x


@dataclass(frozen=True, eq=False)
class _Pool(Measure):
    rows: int
    columns: int

    def begin(self, spec: Spec, inputs: Inputs) -> Running:
        return _RunningPool(spec, inputs, self.rows, self.columns)


class _RunningPool(Running):
    def __init__(self, spec: Spec, inputs: Inputs, rows: int, columns: int) -> None:
        self.exact = spec.precision
        self.cell = (max(1, -(-spec.n_q // rows)), max(1, -(-spec.n_k // columns)))
        self.wanted = Wanted(pairs=False, cell=self.cell[1]) if self.cell[1] >= CELL else Wanted(pairs=True)
        self.lengths = (spec.n_q, spec.n_k)
        shape = [-(-n // c) for n, c in zip(self.lengths, self.cell, strict=True)]
        self.total = _zeros(spec, inputs, *shape)
        self.largest = _zeros(spec, inputs, *shape, dtype=spec.precision)

    def step(self, tile: WeightTile) -> None:
        height, width = self.cell
        sums, tops = (
            _whole_cells(x, -2, tile.first("i"), height).unflatten(-2, (-1, height)) for x in tile.cells(width)
        )
        row, column = tile.first("i") // height, tile.first("j") // width
        at = (slice(None), slice(None), slice(row, row + sums.shape[-3]), slice(column, column + sums.shape[-1]))
        tile.heads(self.total)[at].add_(sums.sum(-2))
        largest = tile.heads(self.largest)[at]
        torch.maximum(largest, tops.amax(-2), out=largest)

    def finish(self, shaped: Shaped) -> Any:
        sizes = []
        for length, cell in zip(self.lengths, self.cell, strict=True):
            edges = torch.arange(0, length + cell, cell, device=self.total.device).clamp(max=length)
            sizes.append(edges.diff()[: -(-length // cell)])
        mean = self.total / (sizes[0][:, None] * sizes[1])
        return Pooled(shaped(mean.to(self.exact)), shaped(self.largest), self.cell)


@check_types
def pool(rows: int, columns: int) -> Measure:
    """The matrix as a map of at most rows x columns cells, each with the mean and the maximum of its weights."""
    if rows < 1 or columns < 1:
        raise SpecError(f"pool must have at least 1 row and 1 column; got {rows} x {columns}.")
    return _Pool("pool", rows, columns)


@dataclass(frozen=True, eq=False)
class _Mass(Measure):
    mask: Mask

    def begin(self, spec: Spec, inputs: Inputs) -> Running:
        tensors = [t.to(inputs.q.device) for t in self.mask.resolved(spec.lengths, inputs.start)]

        def inside(tile: WeightTile) -> Tensor:
            return (tile.weights * Evaluation(tensors, tile.positions).condition(self.mask.term)).sum(-1)

        return _RunningRows(spec, inputs, inside)


def mass(mask: Any) -> Measure:
    """How much of each row's weight lies where a mask is true: the score of a head type."""
    return _Mass("mass", as_mask(mask))


@dataclass(frozen=True, eq=False)
class _Diagonals(Measure):
    def begin(self, spec: Spec, inputs: Inputs) -> Running:
        return _RunningDiagonals(spec, inputs)


class _RunningDiagonals(Running):
    def __init__(self, spec: Spec, inputs: Inputs) -> None:
        self.exact, self.zero = spec.precision, max(spec.n_q - 1, 0)
        self.total = _zeros(spec, inputs, max(spec.n_q + spec.n_k - 1, 0))

    def step(self, tile: WeightTile) -> None:
        height, width = tile.weights.shape[-2:]
        # rows upside down and each a place further right: diagonals become columns
        skewed = torch.nn.functional.pad(tile.weights.flip(-2), (0, height)).flatten(-2)
        skewed = skewed[..., : height * (width + height - 1)].unflatten(-1, (height, width + height - 1))
        first = self.zero + tile.first("j") - tile.first("i") - height + 1
        tile.heads(self.total)[..., first : first + width + height - 1].add_(skewed.sum(-2))

    def finish(self, shaped: Shaped) -> Any:
        return shaped(self.total.to(self.exact))


diagonals: Measure = _Diagonals("diagonals")
"""The sum along each diagonal j - i, from -(n_q - 1) to n_k - 1."""
