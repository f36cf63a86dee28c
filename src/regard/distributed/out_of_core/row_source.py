"""Row sources: read ranges of rows from a file, a tensor or an array."""

import math
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from regard.distributed.out_of_core.tensor_file import TensorLocation, locate_tensor
from regard.errors import ArgumentError, LoadError
from regard.tensors.convert import as_tensor


class RowSource(Protocol):
    """A tensor (..., length, dim) from which ranges of rows can be read."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def meta_tensor(self) -> Tensor:
        """Return a tensor of the same shape and dtype on the meta device."""

    def nbytes(self, num_rows: int) -> int:
        """Return the size of `num_rows` rows in bytes, over all leading dimensions."""

    def read_rows(self, row_range: range, buffer: Tensor | None = None) -> Tensor:
        """Return a copy (..., rows, dim) of some rows, stored in `buffer` (uint8) if it is given."""


def as_row_source(x: Any, name: str) -> RowSource:
    """Return a row source for a path, a tensor or an array."""
    if isinstance(x, (str, Path)):
        return FileSource(locate_tensor(x))
    if not isinstance(x, (Tensor, np.ndarray)):
        raise ArgumentError(
            f"{name} must be a path, a tensor or an array; got {type(x).__name__}. Pass a .npy file, or a tensor in a "
            "safetensors file, as in 'qkv.safetensors:q'."
        )
    if isinstance(x, Tensor) and x.device.type != "cpu":
        raise ArgumentError(f"{name} must be on the CPU for attention over files; got {x.device}. Use {name}.cpu().")
    if isinstance(x, Tensor) and x.requires_grad and torch.is_grad_enabled():
        raise ArgumentError(
            f"attention over files has no gradients; got {name} with requires_grad=True. Call it under "
            f"torch.no_grad(), or pass {name}.detach()."
        )
    return ArraySource(x, name)


class ArraySource:
    """Rows of a tensor or array; of a memory-mapped one, only the requested rows are read."""

    def __init__(self, array: Any, name: str) -> None:
        self._array = array
        empty = array[(slice(0, 0),) * array.ndim]
        self._dtype = as_tensor(empty, name).dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self._array.shape)

    def meta_tensor(self) -> Tensor:
        return torch.empty(self.shape, dtype=self._dtype, device="meta")

    def nbytes(self, num_rows: int) -> int:
        return _nbytes(self.shape, self._dtype, num_rows)

    def read_rows(self, row_range: range, buffer: Tensor | None = None) -> Tensor:
        rows = _empty_rows(self.shape, self._dtype, len(row_range), buffer)
        source_rows = self._array[..., row_range.start : row_range.stop, :]
        if isinstance(source_rows, Tensor):
            return rows.copy_(source_rows)
        rows.numpy()[...] = source_rows
        return rows


class FileSource:
    """Rows of a tensor in a file.

    The rows are read, not memory-mapped: mapped pages would count as memory of the process, and a file truncated during
    the call would kill the process.
    """

    def __init__(self, location: TensorLocation) -> None:
        self.location = location

    @property
    def shape(self) -> tuple[int, ...]:
        return self.location.shape

    def meta_tensor(self) -> Tensor:
        return torch.empty(self.shape, dtype=self.location.dtype, device="meta")

    def nbytes(self, num_rows: int) -> int:
        return _nbytes(self.shape, self.location.dtype, num_rows)

    def read_rows(self, row_range: range, buffer: Tensor | None = None) -> Tensor:
        *leading, length, dim = self.shape
        rows = _empty_rows(self.shape, self.location.dtype, len(row_range), buffer)
        if not rows.numel():
            return rows
        row_bytes = dim * self.location.dtype.itemsize
        blocks = rows.view(math.prod(leading), len(row_range) * dim).view(torch.uint8)
        try:
            with self.location.path.open("rb", buffering=0) as file:
                for index, block in enumerate(blocks):
                    file.seek(self.location.offset + (index * length + row_range.start) * row_bytes)
                    self._read_into(file, block)
        except OSError as error:
            raise LoadError(f"{self.location.path} must stay readable until the call ends; got: {error}.") from None
        return rows

    def _read_into(self, file: Any, buffer: Tensor) -> None:
        remaining = buffer.numpy().data
        while remaining:
            count = file.readinto(remaining)
            if not count:
                raise LoadError(
                    f"{self.location.path} must not change while it is read; {len(remaining):,} bytes promised by its "
                    "header are missing. Start again with a complete file."
                )
            remaining = remaining[count:]


def _nbytes(shape: tuple[int, ...], dtype: torch.dtype, num_rows: int) -> int:
    return math.prod((*shape[:-2], num_rows, shape[-1])) * dtype.itemsize


def _empty_rows(shape: tuple[int, ...], dtype: torch.dtype, num_rows: int, buffer: Tensor | None) -> Tensor:
    """Return an uninitialized tensor for `num_rows` rows, in `buffer` if it is given."""
    rows_shape = (*shape[:-2], num_rows, shape[-1])
    if buffer is None:
        return torch.empty(rows_shape, dtype=dtype)
    return buffer[: _nbytes(shape, dtype, num_rows)].view(dtype).view(rows_shape)
