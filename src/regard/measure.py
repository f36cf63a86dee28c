"""Measures: reductions of the attention matrix in one pass over its tiles, in linear memory.

`weights.measure(...)` runs any number of measures in the same pass. The shape of a result begins with the leading
dimensions of the call, (..., num_heads). A new measure subclasses `Measure` and `MeasureState`.

>>> import regard
>>> from regard import measure
>>> x = torch.randn(8, 1000, 64)
>>> weights = regard.attention_with_weights(x, x, x).weights
>>> results = weights.measure(measure.entropy, measure.topk(5))
>>> results.entropy.shape, results.topk.indices.shape
(torch.Size([8, 1000]), torch.Size([8, 1000, 5]))
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.argument_types import check_types
from regard.backends.shared.weight_tiles import WeightTileData, WeightTileRequest
from regard.call.spec import BackendInputs, CallSpec
from regard.errors import ArgumentError, BudgetError
from regard.expr.evaluate import Evaluator, IndexGrid
from regard.mask import Mask, MaskLike, as_mask
from regard.tensors.diagonals import diagonal_sums

__all__ = [
    "Measure",
    "MeasureState",
    "Measurements",
    "PooledMap",
    "TopKWeights",
    "WeightTile",
    "column_mass",
    "diagonals",
    "distance",
    "entropy",
    "mass",
    "pooled_map",
    "topk",
]


def __dir__() -> list[str]:
    return sorted(__all__)


RestoreShape = Callable[[Tensor], Any]

MAX_TOPK_ELEMENTS = 2**31  # of the result of `topk`: 32 GB
MIN_CELL_KEYS = 4  # with smaller cells, pooling in the kernel saves too little memory


@dataclass(frozen=True, eq=False)
class WeightTile:
    """A tile of the attention matrix: weights and scores (batch, heads, queries, keys) with their positions.

    Kernels may compute only the statistics that the measures require, without the weights. The memory of a tile is
    reused by the next one, so a measure must copy the values that it stores.
    """

    positions: IndexGrid
    data: WeightTileData

    @property
    def scores(self) -> Tensor:
        """The scores (batch, heads, queries, keys); -inf for hidden pairs."""
        assert self.data.scores is not None, (
            "the requirements of a measure must include all_pairs to use scores or weights"
        )
        return self.data.scores

    @property
    def weights(self) -> Tensor:
        """The weights (batch, heads, queries, keys)."""
        assert self.data.weights is not None, (
            "the requirements of a measure must include all_pairs to use scores or weights"
        )
        return self.data.weights

    def entropy(self) -> Tensor:
        """Return the sum of -a log a over the keys of the tile, (batch, heads, queries)."""
        return torch.special.entr(self.weights).sum(-1) if self.data.entropy is None else self.data.entropy

    def column_mass(self) -> Tensor:
        """Return the sum of the weights over the queries of the tile, (batch, heads, keys)."""
        return self.weights.sum(-2) if self.data.column_sums is None else self.data.column_sums

    def row_max(self) -> tuple[Tensor, Tensor]:
        """Return the largest weight and its key index, (batch, heads, queries); -1 for a fully masked row."""
        if self.data.max_weight is not None:
            return self.data.max_weight
        values, indices = torch.where(self.scores == -torch.inf, -1.0, self.weights).max(dim=-1)
        return values, torch.where(values < 0, -1, indices + self.first_index("j"))

    def pool_keys(self, cell_size: int) -> tuple[Tensor, Tensor]:
        """Return the sum and the maximum of each row in cells of `cell_size` keys, aligned to key 0."""
        if self.data.cell_statistics is not None and cell_size == self.data.cell_size:
            return self.data.cell_statistics
        padded = _pad_to_cells(self.weights, -1, self.first_index("j"), cell_size)
        cells = padded.unflatten(-1, (-1, cell_size))
        return cells.sum(-1), cells.amax(-1)

    def query_slice(self, tensor: Tensor) -> Tensor:
        """Return a view of a (batch, heads, n_q, ...) tensor for the queries of the tile."""
        return tensor[self._axis_slice("b"), self._axis_slice("h"), self._axis_slice("i")]

    def key_slice(self, tensor: Tensor) -> Tensor:
        """Return a view of a (batch, heads, n_k) tensor for the keys of the tile."""
        return tensor[self._axis_slice("b"), self._axis_slice("h"), self._axis_slice("j")]

    def head_slice(self, tensor: Tensor) -> Tensor:
        """Return a view of a (batch, heads, ...) tensor for the heads of the tile."""
        return tensor[self._axis_slice("b"), self._axis_slice("h")]

    def first_index(self, axis: str) -> int:
        """Return the first index of the tile along an axis: "b", "h", "i" or "j"."""
        start: int = self._axis_slice(axis).start
        return start

    def _axis_slice(self, axis: str) -> slice:
        index = self.positions.indices[axis]
        assert isinstance(index, range)
        return slice(index.start, index.stop)


class MeasureState(ABC):
    """The accumulator of a measure during one pass. `requirements` lists the statistics that it needs of each tile."""

    requirements = WeightTileRequest(all_pairs=True)

    @abstractmethod
    def update(self, tile: WeightTile) -> None:
        """Accumulate one tile. Empty tiles are skipped."""

    @abstractmethod
    def compute(self, restore_shape: RestoreShape) -> object:
        """Return the result. `restore_shape` turns (batch, heads, ...) into the leading dimensions of the call."""


@dataclass(frozen=True, eq=False)
class Measure(ABC):
    """A reduction of the attention matrix. `name` is the attribute of its result in `Measurements`."""

    name: str

    @abstractmethod
    def make_state(self, spec: CallSpec, inputs: BackendInputs) -> MeasureState:
        """Return the accumulator for one call."""


class Measurements(tuple[Any, ...]):
    """The results of measures, in order; a result is also an attribute: `results.entropy`."""

    names: tuple[str, ...]

    def __new__(cls, measures: Sequence[Measure], results: Sequence[Any]) -> "Measurements":
        self = super().__new__(cls, results)
        self.names = tuple(m.name for m in measures)
        return self

    def __getattr__(self, name: str) -> Any:
        names = self.__dict__.get("names", ())
        if names.count(name) == 1:
            return self[names.index(name)]
        raise AttributeError(f"expected exactly one measure {name!r} in the results; got {', '.join(names)}.")


def _zeros(spec: CallSpec, inputs: BackendInputs, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.zeros((spec.batch_size, spec.num_heads, *shape), dtype=dtype, device=inputs.q.device)


@dataclass(frozen=True, eq=False)
class _RowSum(Measure):
    """A sum over each row. `tile_sum` returns the sum over the keys of a tile."""

    tile_sum: Callable[[WeightTile], Tensor]
    divide_by_mass: bool = False
    requirements: WeightTileRequest = MeasureState.requirements

    def make_state(self, spec: CallSpec, inputs: BackendInputs) -> MeasureState:
        return _RowSumState(spec, inputs, self.tile_sum, self.divide_by_mass, self.requirements)


class _RowSumState(MeasureState):
    def __init__(
        self,
        spec: CallSpec,
        inputs: BackendInputs,
        tile_sum: Callable[[WeightTile], Tensor],
        divide_by_mass: bool = False,
        requirements: WeightTileRequest = MeasureState.requirements,
    ) -> None:
        self.tile_sum, self.result_dtype, self.requirements = tile_sum, spec.score_dtype, requirements
        self.total = _zeros(spec, inputs, spec.n_q)
        self.mass = _zeros(spec, inputs, spec.n_q) if divide_by_mass else None

    def update(self, tile: WeightTile) -> None:
        tile.query_slice(self.total).add_(self.tile_sum(tile))
        if self.mass is not None:
            tile.query_slice(self.mass).add_(tile.weights.sum(-1))

    def compute(self, restore_shape: RestoreShape) -> object:
        total = self.total
        if self.mass is not None:
            total = torch.where(self.mass > 0, total / self.mass, 0.0)
        return restore_shape(total.to(self.result_dtype))


def _tile_distance_sum(tile: WeightTile) -> Tensor:
    p, j = (torch.as_tensor(tile.positions[name]) for name in "pj")
    return (tile.weights * (p - j).abs()).sum(-1)


entropy: Measure = _RowSum("entropy", WeightTile.entropy, requirements=WeightTileRequest(all_pairs=False, entropy=True))
"""Entropy of each row, -sum_j a_ij log a_ij, in nats: (..., n_q).

It is 0 if one key has all the weight, and log n_k if all keys have the same weight.
"""

distance: Measure = _RowSum("distance", _tile_distance_sum, divide_by_mass=True)
"""Mean distance of each query to the keys, sum_j a_ij |p - j| / sum_j a_ij: (..., n_q); 0 for a fully masked row."""


@dataclass(frozen=True, eq=False)
class _ColumnMass(Measure):
    def make_state(self, spec: CallSpec, inputs: BackendInputs) -> MeasureState:
        return _ColumnMassState(spec, inputs)


class _ColumnMassState(MeasureState):
    requirements = WeightTileRequest(all_pairs=False, column_sums=True)

    def __init__(self, spec: CallSpec, inputs: BackendInputs) -> None:
        self.result_dtype = spec.score_dtype
        self.total = _zeros(spec, inputs, spec.n_k)

    def update(self, tile: WeightTile) -> None:
        tile.key_slice(self.total).add_(tile.column_mass())

    def compute(self, restore_shape: RestoreShape) -> object:
        return restore_shape(self.total.to(self.result_dtype))


column_mass: Measure = _ColumnMass("column_mass")
"""Weight that each key receives from all queries, sum_i a_ij: (..., n_k)."""


class TopKWeights(NamedTuple):
    """The largest weights of each row in descending order, and their key indices: both (..., n_q, k).

    A query with fewer than k visible keys has weights 0 and indices -1 at the end.
    """

    values: Any
    indices: Any


@dataclass(frozen=True, eq=False)
class _TopKMeasure(Measure):
    k: int

    def make_state(self, spec: CallSpec, inputs: BackendInputs) -> MeasureState:
        rows = spec.batch_size * spec.num_heads * spec.n_q
        if rows * self.k > MAX_TOPK_ELEMENTS:
            raise BudgetError(
                f"topk must return at most {MAX_TOPK_ELEMENTS:,} weights; got {rows:,} rows times k={self.k:,}. "
                "Use a smaller k."
            )
        return _TopKState(spec, inputs, self.k)


class _TopKState(MeasureState):
    def __init__(self, spec: CallSpec, inputs: BackendInputs, k: int) -> None:
        self.values = _zeros(spec, inputs, spec.n_q, k, dtype=spec.score_dtype) - 1.0
        self.indices = _zeros(spec, inputs, spec.n_q, k, dtype=torch.int64) - 1
        self.k = k
        self.requirements = WeightTileRequest(all_pairs=k > 1, max_weight=k == 1)

    def update(self, tile: WeightTile) -> None:
        values, indices = tile.query_slice(self.values), tile.query_slice(self.indices)
        if self.k == 1:
            tile_values, tile_indices = (x.unsqueeze(-1) for x in tile.row_max())
            is_larger = ~(tile_values <= values)  # also for NaN
            values.copy_(torch.where(is_larger, tile_values.to(values.dtype), values))
            indices.copy_(torch.where(is_larger, tile_indices, indices))
            return
        visible_weights = torch.where(tile.scores == -torch.inf, -1.0, tile.weights)
        tile_values, tile_indices = visible_weights.topk(min(self.k, visible_weights.shape[-1]), dim=-1)
        tile_indices = torch.where(tile_values < 0, -1, tile_indices + tile.first_index("j"))
        candidates = torch.cat([values, tile_values.to(values.dtype)], -1)
        largest, order = candidates.topk(self.k, dim=-1)
        indices.copy_(torch.cat([indices, tile_indices], -1).gather(-1, order))
        values.copy_(largest)

    def compute(self, restore_shape: RestoreShape) -> object:
        return TopKWeights(restore_shape(self.values.clamp_(min=0.0)), restore_shape(self.indices))


@check_types
def topk(k: int) -> Measure:
    """Return a measure of the `k` largest weights of each row and their keys, a `TopKWeights`.

    >>> import regard
    >>> x = torch.eye(3)
    >>> weights = regard.attention_with_weights(x, x, x).weights
    >>> weights.measure(topk(1)).topk.indices[:, 0]
    tensor([0, 1, 2])
    """
    if k < 1:
        raise ArgumentError(f"k must be at least 1; got {k}.")
    return _TopKMeasure("topk", k)


class PooledMap(NamedTuple):
    """The attention matrix pooled to cells of `cell_size` = (queries, keys).

    `mean` and `max` are those of the weights of each cell, (..., rows, columns).
    """

    mean: Any
    max: Any
    cell_size: tuple[int, int]


def _pad_to_cells(x: Tensor, dim: int, offset: int, cell_size: int) -> Tensor:
    """Pad rows or columns that begin at `offset` with zeros to complete cells.

    Weights are never negative, so zeros change neither sums nor maxima.
    """
    before = offset % cell_size
    after = -(before + x.shape[dim]) % cell_size
    padding = (before, after) if dim == -1 else (0, 0, before, after)
    return torch.nn.functional.pad(x, padding) if before or after else x


@dataclass(frozen=True, eq=False)
class _PooledMapMeasure(Measure):
    max_rows: int
    max_columns: int

    def make_state(self, spec: CallSpec, inputs: BackendInputs) -> MeasureState:
        return _PooledMapState(spec, inputs, self.max_rows, self.max_columns)


class _PooledMapState(MeasureState):
    def __init__(self, spec: CallSpec, inputs: BackendInputs, max_rows: int, max_columns: int) -> None:
        self.result_dtype = spec.score_dtype
        self.cell_size = (max(1, -(-spec.n_q // max_rows)), max(1, -(-spec.n_k // max_columns)))
        self.requirements = (
            WeightTileRequest(all_pairs=False, cell_size=self.cell_size[1])
            if self.cell_size[1] >= MIN_CELL_KEYS
            else WeightTileRequest(all_pairs=True)
        )
        self.lengths = (spec.n_q, spec.n_k)
        shape = [-(-n // c) for n, c in zip(self.lengths, self.cell_size, strict=True)]
        self.total = _zeros(spec, inputs, *shape)
        self.maximum = _zeros(spec, inputs, *shape, dtype=spec.score_dtype)

    def update(self, tile: WeightTile) -> None:
        height, width = self.cell_size
        sums, maxima = (
            _pad_to_cells(x, -2, tile.first_index("i"), height).unflatten(-2, (-1, height))
            for x in tile.pool_keys(width)
        )
        row, column = tile.first_index("i") // height, tile.first_index("j") // width
        cells = (..., slice(row, row + sums.shape[-3]), slice(column, column + sums.shape[-1]))
        tile.head_slice(self.total)[cells].add_(sums.sum(-2))
        maximum = tile.head_slice(self.maximum)[cells]
        torch.maximum(maximum, maxima.amax(-2), out=maximum)

    def compute(self, restore_shape: RestoreShape) -> object:
        sizes = []
        for length, cell in zip(self.lengths, self.cell_size, strict=True):
            edges = torch.arange(0, length + cell, cell, device=self.total.device).clamp(max=length)
            sizes.append(edges.diff()[: -(-length // cell)])
        mean = self.total / (sizes[0][:, None] * sizes[1])
        return PooledMap(restore_shape(mean.to(self.result_dtype)), restore_shape(self.maximum), self.cell_size)


@check_types
def pooled_map(max_rows: int, max_columns: int) -> Measure:
    """Return a measure that pools the matrix to at most `max_rows` x `max_columns` cells, a `PooledMap`.

    >>> import regard
    >>> x = torch.zeros(1000, 8)
    >>> regard.attention_with_weights(x, x, x).weights.measure(pooled_map(2, 2)).pooled_map.mean
    tensor([[0.0010, 0.0010],
            [0.0010, 0.0010]])
    """
    if max_rows < 1 or max_columns < 1:
        raise ArgumentError(
            f"max_rows and max_columns must be at least 1; got max_rows={max_rows}, max_columns={max_columns}."
        )
    return _PooledMapMeasure("pooled_map", max_rows, max_columns)


@dataclass(frozen=True, eq=False)
class _Mass(Measure):
    mask: Mask

    def make_state(self, spec: CallSpec, inputs: BackendInputs) -> MeasureState:
        tensors = [t.to(inputs.q.device) for t in self.mask.resolve_tensors(spec.score_shape, inputs.query_offset)]

        def tile_mass(tile: WeightTile) -> Tensor:
            return (tile.weights * Evaluator(tensors, tile.positions).mask_value(self.mask.expr)).sum(-1)

        return _RowSumState(spec, inputs, tile_mass)


def mass(mask: MaskLike) -> Measure:
    """Return a measure of the weight of each row on the pairs of a mask, sum_j a_ij [mask_ij]: (..., n_q).

    `mask` is a mask, a boolean tensor or a function (b, h, i, j), as in `attention`.

    >>> import regard
    >>> x = torch.zeros(4, 8)
    >>> weights = regard.attention_with_weights(x, x, x).weights
    >>> weights.measure(mass(regard.mask.causal())).mass
    tensor([0.2500, 0.5000, 0.7500, 1.0000])
    """
    return _Mass("mass", as_mask(mask))


@dataclass(frozen=True, eq=False)
class _Diagonals(Measure):
    def make_state(self, spec: CallSpec, inputs: BackendInputs) -> MeasureState:
        return _DiagonalsState(spec, inputs)


class _DiagonalsState(MeasureState):
    def __init__(self, spec: CallSpec, inputs: BackendInputs) -> None:
        self.result_dtype, self.main_diagonal_index = spec.score_dtype, max(spec.n_q - 1, 0)
        self.total = _zeros(spec, inputs, max(spec.n_q + spec.n_k - 1, 0))

    def update(self, tile: WeightTile) -> None:
        height, width = tile.weights.shape[-2:]
        first = self.main_diagonal_index + tile.first_index("j") - tile.first_index("i") - height + 1
        tile.head_slice(self.total)[..., first : first + width + height - 1].add_(diagonal_sums(tile.weights))

    def compute(self, restore_shape: RestoreShape) -> object:
        return restore_shape(self.total.to(self.result_dtype))


diagonals: Measure = _Diagonals("diagonals")
"""Sum along each diagonal j - i, from -(n_q - 1) to n_k - 1: (..., n_q + n_k - 1)."""
