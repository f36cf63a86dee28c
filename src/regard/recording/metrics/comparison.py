"""Compare two recordings: how much, and where, the weights of each head differ.

Two rows of weights a and b differ by their total variation ½ sum |a - b|, from 0 (equal) to 1 (disjoint). The
difference of a head is the mean over its rows. Recordings of different lengths are compared by pooled maps of equal
size, whose cells hold fractions of the total weight.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from regard import measure
from regard.errors import ArgumentError, OutOfRangeError
from regard.recording import argument_checks
from regard.recording.lazy_matrix import LazyMatrix
from regard.recording.metrics.head_table import HeadRow, HeadTable
from regard.recording.recorded_layer import RecordedLayer

DEFAULT_RESOLUTION = 64  # cells per side of the maps that compare different lengths
MAX_RESOLUTION = 4096


class RecordingComparison:
    """The difference of two recordings, layer by layer.

    `head_differences` is a table of all heads, `difference(layer)` the lazy matrix a - b, and `difference_map(layer)`
    a pooled map of it.
    """

    def __init__(self, layers: Sequence[RecordedLayer], other_layers: Sequence[RecordedLayer]) -> None:
        others = {layer.index: layer for layer in other_layers}
        self._pairs = {layer.index: (layer, others[layer.index]) for layer in layers if layer.index in others}
        if not self._pairs:
            raise ArgumentError("recordings must have layers in common to be compared; these two have none.")
        for a, b in self._pairs.values():
            batch_sizes = a.merged_call.q.shape[0], b.merged_call.q.shape[0]
            if a.head_indices != b.head_indices or batch_sizes[0] != batch_sizes[1]:
                raise ArgumentError(
                    f"recordings must have the same heads and batch size to be compared; layer {a.index} has heads "
                    f"{a.head_indices} and {b.head_indices}, batch sizes {batch_sizes[0]} and {batch_sizes[1]}."
                )

    @cached_property
    def head_differences(self) -> HeadTable:
        """The `total_variation` of each head, from 0 to 1, the largest first.

        For equal lengths there are also the `max_difference` of a weight, and its `query`, `key` and `batch` index.
        """
        rows = [row for pair in self._pairs.values() for row in _head_difference_rows(*pair)]
        return HeadTable(rows).sort("total_variation")

    def difference(self, layer: int) -> "WeightDifference":
        """Return the difference of the weights of a layer, as a lazy matrix. The lengths must be equal."""
        return WeightDifference(*self._pair(layer))

    def difference_map(self, layer: int, *, resolution: int = DEFAULT_RESOLUTION) -> Tensor:
        """Return the difference of the pooled maps of a layer (batch, heads, resolution, resolution).

        Each map holds fractions of the total weight of a head and sums to 1.
        """
        a, b = self._pair(layer)
        resolution = argument_checks.integer(resolution, "resolution", 1, MAX_RESOLUTION)
        return _pooled_mass(a, resolution) - _pooled_mass(b, resolution)

    def _pair(self, layer: int) -> tuple[RecordedLayer, RecordedLayer]:
        index = argument_checks.integer(layer, "layer")
        if index not in self._pairs:
            known = ", ".join(map(str, self._pairs))
            raise OutOfRangeError(f"layer must be in both recordings: {known}; got {layer}.")
        return self._pairs[index]


class WeightDifference(LazyMatrix):
    """The weights of one layer minus those of another with the same shape."""

    def __init__(self, a: RecordedLayer, b: RecordedLayer) -> None:
        self._a, self._b = a.result.weights, b.result.weights
        self.shape = self._a.shape
        if self.shape != self._b.shape:
            raise ArgumentError(
                f"weights must have the same shape to be subtracted; got {self.shape} and {self._b.shape}. Use "
                "difference_map."
            )

    def entries(self, b: Any, h: Any, i: Any, j: Any) -> Tensor:
        output: Tensor = self._a[b, h, i, j] - self._b[b, h, i, j]
        return output


def _head_difference_rows(a: RecordedLayer, b: RecordedLayer) -> list[HeadRow]:
    head_names = [{"layer": a.index, "head": head, "path": a.path} for head in a.head_indices]
    if a.result.weights.shape != b.result.weights.shape:
        map_difference = _pooled_mass(a, DEFAULT_RESOLUTION) - _pooled_mass(b, DEFAULT_RESOLUTION)
        variations = map_difference.abs().sum((-2, -1)).mean(0) / 2
        return [
            {**head_name, "total_variation": float(variation)}
            for head_name, variation in zip(head_names, variations, strict=True)
        ]
    difference = WeightDifference(a, b)
    batch_size, num_heads, n_q, n_k = difference.shape
    total = torch.zeros(num_heads, dtype=torch.float64)
    maxima, max_indices = torch.full((num_heads,), -1.0), torch.zeros(num_heads, 3, dtype=torch.int64)
    for rows in difference.row_blocks():
        block = difference[:, :, rows].abs()
        total += block.double().sum((0, 2, 3)) / 2
        block_max, flat_index = block.transpose(0, 1).flatten(1).max(1)
        num_rows = block.shape[2]
        indices = torch.stack(
            (flat_index // (num_rows * n_k), flat_index // n_k % num_rows + rows.start, flat_index % n_k), 1
        )
        max_indices = torch.where((block_max > maxima)[:, None], indices, max_indices)
        maxima = torch.maximum(maxima, block_max)
    variations = total / (batch_size * n_q)
    return [
        {
            **head_name,
            "total_variation": float(variation),
            "max_difference": float(maximum),
            "batch": int(index[0]),
            "query": int(index[1]),
            "key": int(index[2]),
        }
        for head_name, variation, maximum, index in zip(head_names, variations, maxima, max_indices, strict=True)
    ]


def _pooled_mass(layer: RecordedLayer, resolution: int) -> Tensor:
    """Return the fraction of a head's total weight in each of resolution x resolution cells."""
    pooled = layer.result.weights.measure(measure.pooled_map(4 * resolution, 4 * resolution)).pooled_map.mean.float()
    cells = torch.nn.functional.interpolate(pooled, size=(resolution, resolution), mode="area")
    return cells / cells.sum((-2, -1), keepdim=True).clamp(min=1e-30)
