"""A matrix of a layer that is never there: any part of it, computed when it is asked for."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from regard.errors import SpecError
from regard.inside import arguments

CELLS = 2**24  # pairs of all heads that are there at a time


class Matrix(ABC):
    """(batch, heads, n_q, n_k). Index it as weights are indexed: each entry acts on its own dimension."""

    shape: tuple[int, ...]

    @abstractmethod
    def part(self, b: Any, h: Any, i: Any, j: Any) -> Tensor:
        """The part at some places of each dimension, slices or lists; none is dropped."""

    def __getitem__(self, index: Any) -> Tensor:
        entries = list(index) if isinstance(index, tuple) else [index]
        ellipses = [n for n, e in enumerate(entries) if e is Ellipsis]
        if len(entries) - len(ellipses) > len(self.shape) or len(ellipses) > 1:
            raise SpecError(
                f"{self!r} must get at most {len(self.shape)} indices and one `...`; got {len(entries)} entries."
            )
        at = ellipses[0] if ellipses else len(entries)
        missing = len(self.shape) - len(entries) + len(ellipses)
        entries[at : at + len(ellipses)] = [slice(None)] * missing
        places = [
            arguments.index(e, n, f"an index of dimension {axis}") for axis, (e, n) in _sized(entries, self.shape)
        ]
        part = self.part(*places)
        return part[tuple(0 if arguments.is_single(e) else slice(None) for e in entries)]

    def row_blocks(self) -> Iterator[slice]:
        """Queries by the block, so that a block of all heads has at most `CELLS` pairs."""
        return row_blocks(self.shape)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(shape={self.shape}, computed on request)"


def _sized(entries: list[Any], shape: tuple[int, ...]) -> Iterator[tuple[int, tuple[Any, int]]]:
    return enumerate(zip(entries, shape, strict=True))


def row_blocks(shape: tuple[int, ...]) -> Iterator[slice]:
    batch, heads, n_q, n_k = shape
    step = max(1, CELLS // max(batch * heads * n_k, 1))
    return (slice(first, min(first + step, n_q)) for first in range(0, n_q, step))
