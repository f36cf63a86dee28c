"""A matrix over pairs of queries and keys whose entries are computed when they are indexed."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from regard.errors import ArgumentError
from regard.recording import argument_checks

MAX_PAIRS_PER_BLOCK = 2**24  # pairs of all heads that are computed at a time


class LazyMatrix(ABC):
    """An array (batch, heads, n_q, n_k) that is indexed like `AttentionWeights`.

    Each index applies to its own dimension: an integer, a slice, a list or a boolean mask.
    """

    shape: tuple[int, ...]

    @abstractmethod
    def entries(self, b: Any, h: Any, i: Any, j: Any) -> Tensor:
        """Compute the entries at slices or lists of positions. No dimension is dropped."""

    def __getitem__(self, index: Any) -> Tensor:
        indices = list(index) if isinstance(index, tuple) else [index]
        ellipses = [n for n, entry in enumerate(indices) if entry is Ellipsis]
        if len(indices) - len(ellipses) > len(self.shape) or len(ellipses) > 1:
            raise ArgumentError(
                f"{self!r} takes at most {len(self.shape)} indices and one `...`; got {len(indices)} entries."
            )
        first_missing = ellipses[0] if ellipses else len(indices)
        num_missing = len(self.shape) - len(indices) + len(ellipses)
        indices[first_missing : first_missing + len(ellipses)] = [slice(None)] * num_missing
        positions = [
            argument_checks.axis_index(entry, size, f"an index of dimension {axis}")
            for axis, (entry, size) in enumerate(zip(indices, self.shape, strict=True))
        ]
        part = self.entries(*positions)
        return part[tuple(0 if argument_checks.is_single(entry) else slice(None) for entry in indices)]

    def row_blocks(self) -> Iterator[slice]:
        """Return slices of queries such that all heads of a slice have at most `MAX_PAIRS_PER_BLOCK` pairs."""
        return row_blocks(self.shape)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(shape={self.shape}, computed on request)"


def row_blocks(shape: tuple[int, ...]) -> Iterator[slice]:
    """Return slices of queries for a matrix of this shape. See `LazyMatrix.row_blocks`."""
    batch_size, num_heads, n_q, n_k = shape
    step = max(1, MAX_PAIRS_PER_BLOCK // max(batch_size * num_heads * n_k, 1))
    return (slice(start, min(start + step, n_q)) for start in range(0, n_q, step))
