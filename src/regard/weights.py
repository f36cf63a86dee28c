"""The attention matrix as a lazy array: entries are computed exactly when they are indexed or measured.

a_ij follows from q_i, k_j and one statistic per row, so indexing computes only the selected entries.
"""

import functools
import math
import operator
import re
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.backends.shared.dense import make_positions, score_block
from regard.backends.shared.weight_tiles import (
    EMPTY_REQUEST,
    WeightInputs,
    WeightTileData,
    WeightTileRequest,
    WeightTileSource,
)
from regard.call.spec import BackendInputs, ParsedCall
from regard.errors import ArgumentError, BudgetError, OutOfRangeError
from regard.expr.tile_coverage import TileCoverage
from regard.measure import Measure, Measurements, WeightTile
from regard.plan.choose import Plan
from regard.plan.tiling import call_coverage, query_strips
from regard.tensors.convert import as_tensor
from regard.tensors.nonfinite import all_finite
from regard.tensors.precision import without_autocast


class AttentionWeights:
    """The weights a_ij of one call, before dropout, as a lazy array of shape (..., num_heads, n_q, n_k).

    Indexing takes integers, slices, `...`, and lists or 1-D tensors of integers or booleans. Each index applies to its
    own dimension. The result is differentiable. `measure` reduces the matrix tile by tile, and `to_dense` returns
    all of it.

    >>> import regard
    >>> x = torch.eye(3)
    >>> weights = regard.attention_with_weights(x, x, x, mask=regard.mask.causal()).weights
    >>> weights
    AttentionWeights(shape=(3, 3), computed on request)
    >>> weights[1, :2]
    tensor([0.3595, 0.6405])
    """

    def __init__(
        self,
        call: ParsedCall,
        plan: Plan,
        inputs: BackendInputs,
        statistic: Tensor | None,
        make_matrix: Callable[[], WeightInputs],
        make_tile_source: Callable[[WeightInputs], WeightTileSource],
    ) -> None:
        self._call, self._plan, self._inputs, self._statistic = call, plan, inputs, statistic
        self._make_matrix, self._make_tile_source = make_matrix, make_tile_source

    @property
    def shape(self) -> tuple[int, ...]:
        """The leading dimensions of the call, then (n_q, n_k)."""
        return (*self._call.leading_shape, self._plan.spec.n_q, self._plan.spec.n_k)

    @property
    def normalizer_iterations(self) -> int:
        """The number of Sinkhorn iterations; 1 for every other normalizer."""
        return self._call.normalizer.iterations

    @property
    def plan(self) -> Plan:
        """The plan of the call, with the nonempty tiles of the mask."""
        return self._plan.with_coverage(self._cover)

    @cached_property
    def _cover(self) -> TileCoverage:
        return call_coverage(self._plan.spec, self._inputs.tensors, self._inputs.query_offset, self._plan.tiling)

    @cached_property
    def _matrix(self) -> WeightInputs:
        return self._make_matrix()

    def __repr__(self) -> str:
        return f"AttentionWeights(shape={self.shape}, computed on request)"

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        raise ArgumentError(
            "weights cannot be iterated, because they are computed when indexed. Index them, or compute all of them "
            "with to_dense()."
        )

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return np.asarray(self.to_dense(), dtype=dtype)

    def __getitem__(self, index: Any) -> Any:
        positions = _parse_index(index, self.shape)
        *leading, i, j = (p if isinstance(p, Tensor) else torch.tensor([p]) for p in positions)
        b, h = self._batch_and_head_indices(list(leading))
        with without_autocast(self._inputs.q.device.type):
            entries = self._entries(b, h, i, j)
        if self._plan.spec.dtype != torch.float64:
            entries = entries.float()
        entries = entries.reshape([len(axis) for axis in (*leading, i, j)])
        entries = entries[tuple(0 if isinstance(p, int) else slice(None) for p in positions)]
        return entries.detach().cpu().numpy() if self._call.is_numpy else entries

    def to_dense(self, budget: str | float = "1GB") -> Any:
        """Return all weights as one tensor of shape `shape`.

        `budget` is the maximum size in bytes, a number or a text such as "512MiB". Default: "1GB". A larger matrix
        raises `BudgetError`.

        >>> import regard
        >>> x = torch.eye(2)
        >>> regard.attention_with_weights(x, x, x, mask=regard.mask.causal()).weights.to_dense()
        tensor([[1.0000, 0.0000],
                [0.3302, 0.6698]])
        """
        element_size = torch.empty((), dtype=self._plan.spec.score_dtype).element_size()
        num_bytes = element_size * self._plan.cost.pairs
        if num_bytes > parse_byte_count(budget):
            raise BudgetError(
                f"the dense weights {self.shape} must fit the budget of {budget}; they take {num_bytes:,} bytes. "
                "Index the rows you need, use measure(...), or pass a larger budget."
            )
        return self[...]

    def measure(self, *measures: Measure) -> Measurements:
        """Compute measures of `regard.measure` in one pass over the nonempty tiles; return the results in order.

        >>> import regard
        >>> from regard import measure
        >>> x = torch.randn(100, 8)
        >>> results = regard.attention_with_weights(x, x, x).weights.measure(measure.entropy, measure.topk(3))
        >>> results.entropy.shape, results.topk.indices.shape
        (torch.Size([100]), torch.Size([100, 3]))
        """
        for measure in measures:
            if not isinstance(measure, Measure):
                raise ArgumentError(
                    f"measures must be those of regard.measure, such as measure.entropy; got {measure!r}."
                )
        with torch.no_grad(), without_autocast(self._inputs.q.device.type):
            states = [m.make_state(self._plan.spec, self._inputs) for m in measures]
            requirements = functools.reduce(operator.or_, (state.requirements for state in states), EMPTY_REQUEST)
            for tile in self._tiles(requirements):
                for state in states:
                    state.update(tile)
            return Measurements(measures, [state.compute(self._call.restore_shape) for state in states])

    def _batch_and_head_indices(self, leading: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Turn indices of the leading dimensions into indices of the flattened batch and of the heads."""
        sizes = list(self._call.leading_shape)
        zero = torch.zeros(1, dtype=torch.int64)
        h = leading.pop() if self._call.has_heads else zero
        b = zero
        for index, size in zip(leading, sizes, strict=False):
            b = (b[:, None] * size + index).flatten()
        return b, h

    def _entries(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        spec, inputs, row_statistic = self._matrix.spec, self._matrix.inputs, self._matrix.statistic
        device = inputs.q.device
        b, h, i, j = (x.to(device) for x in (b, h, i, j))
        q = inputs.q[b][:, h][:, :, i].to(spec.score_dtype)
        k = inputs.k[b][:, h // spec.queries_per_kv_head][:, :, j].to(spec.score_dtype)
        positions = make_positions(spec, inputs, b, h, i, j)
        block = score_block(spec, inputs, positions, q, k, all_finite(q, k))
        statistic = None if row_statistic is None else row_statistic[b][:, h][:, :, i].unsqueeze(-1)
        weights = self._matrix.weights(block.scores, statistic)
        factor = self._normalizer_factor()
        return weights * (factor[b][:, h][:, :, i].unsqueeze(-1) if isinstance(factor, Tensor) else factor)

    def _normalizer_factor(self) -> Tensor | float:
        """Return the factor of the normalizer for all weights, or for each row, (batch, heads, n_q)."""
        function, spec = self._call.normalizer.factor, self._plan.spec
        factor = 1.0 if function is None else function(self._statistic, spec.n_k)
        return factor.expand(spec.score_shape[:3]) if isinstance(factor, Tensor) else factor

    def _tiles(self, requirements: WeightTileRequest) -> Iterator[WeightTile]:
        spec, inputs = self._plan.spec, self._inputs
        source, factor = self._make_tile_source(self._matrix), self._normalizer_factor()
        has_factor = self._call.normalizer.factor is not None
        if has_factor:  # statistics of the kernel would lack the factor
            requirements = WeightTileRequest(all_pairs=True)
        tiling = source.tiling(requirements)
        for strip in query_strips(spec, call_coverage(spec, inputs.tensors, inputs.query_offset, tiling), tiling):
            b, h, i = (slice(r.start, r.stop) for r in (strip.b, strip.h, strip.i))
            for keys, is_full in strip.keys:
                data = source.compute_tile(strip, keys, is_full, requirements)
                if has_factor:
                    assert data.weights is not None
                    row_factor = factor[b, h, i].unsqueeze(-1) if isinstance(factor, Tensor) else factor
                    data = WeightTileData(data.scores, data.weights * row_factor)
                yield WeightTile(make_positions(spec, inputs, strip.b, strip.h, strip.i, keys), data)


def _parse_index(index: Any, shape: tuple[int, ...]) -> list[int | Tensor]:
    """Return an index for every dimension: an integer, or a tensor of positions."""
    entries = list(index) if isinstance(index, tuple) else [index]
    num_ellipses = sum(e is Ellipsis for e in entries)
    if num_ellipses > 1:
        raise ArgumentError(f"an index must have at most one `...`; got {num_ellipses}.")
    if num_ellipses == 0:
        entries.append(Ellipsis)
    ellipsis = next(n for n, e in enumerate(entries) if e is Ellipsis)
    missing = len(shape) - len(entries) + 1
    if missing < 0:
        raise ArgumentError(f"weights of shape {shape} take at most {len(shape)} indices; got {len(entries) - 1}.")
    entries[ellipsis : ellipsis + 1] = [slice(None)] * missing
    return [_axis_positions(e, size, axis) for axis, (e, size) in enumerate(zip(entries, shape, strict=True))]


def _axis_positions(entry: Any, size: int, axis: int) -> int | Tensor:
    if isinstance(entry, slice):
        if entry.step == 0:
            raise ArgumentError(f"a slice of dimension {axis} must have a step other than 0; got {entry!r}.")
        return torch.tensor(list(range(*entry.indices(size))), dtype=torch.int64)
    type_error = ArgumentError(f"an index of weights must be an integer, a slice or a list of integers; got {entry!r}.")
    if entry is None or isinstance(entry, (str, bool)):
        raise type_error
    positions = as_tensor(entry, "an index of weights")
    is_scalar = positions.dim() == 0
    if positions.dtype == torch.bool and positions.dim() == 1:
        if len(positions) != size:
            raise ArgumentError(
                f"a boolean index must have the size {size} of dimension {axis}; got {len(positions)} entries."
            )
        positions = positions.nonzero().flatten()
    positions = positions.long() if positions.numel() == 0 else positions.reshape(-1) if is_scalar else positions
    if positions.is_floating_point() or positions.dtype == torch.bool or positions.dim() != 1:
        raise type_error
    positions = positions.long()
    if len(positions) and (int(positions.min()) < -size or int(positions.max()) >= size):
        raise OutOfRangeError(f"index {entry!r} is out of range for dimension {axis} of size {size}.")
    positions = positions % size if size else positions
    return int(positions[0]) if is_scalar else positions


_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


def parse_byte_count(budget: Any) -> int:
    """Convert a budget such as 1000, "1GB" or "512 MiB" to a number of bytes.

    >>> parse_byte_count("512 MiB")
    536870912
    """
    if isinstance(budget, (int, float, np.number)) and not isinstance(budget, bool):
        if not 0 <= budget < math.inf:  # also NaN
            raise ArgumentError(
                f"a budget must be a nonnegative number of bytes, such as '1GB' or 10**9; got {budget!r}."
            )
        return int(budget)
    match = re.fullmatch(r"\s*(\d+\.?\d*|\.\d+)\s*([A-Za-z]*)\s*", budget) if isinstance(budget, str) else None
    if match is None or match[2].upper() not in _UNITS:
        raise ArgumentError(f"a budget must be a number of bytes such as '1GB' or '512MiB'; got {budget!r}.")
    return int(float(match[1]) * _UNITS[match[2].upper()])
