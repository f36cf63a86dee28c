"""Where rows come from: a file, or an array of any kind, a stretch of rows at a time."""

import math
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from regard.distributed.stored import Stored, stored
from regard.errors import LoadError, SpecError
from regard.spec.array import as_tensor


class Source(Protocol):
    """A tensor (..., length, width) of which some rows are asked for at a time."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def shape_alone(self) -> Tensor:
        """A tensor of the same shape and dtype that holds nothing."""

    def nbytes(self, rows: int) -> int:
        """What so many rows take."""

    def rows(self, wanted: range, room: Tensor | None = None) -> Tensor:
        """A copy of these rows, (..., rows, width), in a room of bytes if one is given."""


def source(x: Any, name: str) -> Source:
    """A path or an array as something to read rows from."""
    if isinstance(x, (str, Path)):
        return FileRows(stored(x))
    if not isinstance(x, (Tensor, np.ndarray)):
        raise SpecError(
            f"{name} must be the path of a file, a tensor or an array; got {type(x).__name__}. Name a .npy file, or a "
            "tensor in a safetensors file, as in 'qkv.safetensors:q'."
        )
    if isinstance(x, Tensor) and x.device.type != "cpu":
        raise SpecError(f"{name} must be on the CPU, where files are read; got {x.device}. Use {name}.cpu().")
    if isinstance(x, Tensor) and x.requires_grad and torch.is_grad_enabled():
        raise SpecError(
            f"attention over files has no gradients; got {name} that requires them. Call it under torch.no_grad(), or "
            f"give {name}.detach()."
        )
    return ArrayRows(x, name)


class ArrayRows:
    """Rows of a tensor or an array, also of a mapped one, of which only what is asked for is copied."""

    def __init__(self, array: Any, name: str) -> None:
        self._array = array
        nothing = array[(slice(0, 0),) * array.ndim]
        self._dtype = as_tensor(nothing, name).dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self._array.shape)

    def shape_alone(self) -> Tensor:
        return torch.empty(self.shape, dtype=self._dtype, device="meta")

    def nbytes(self, rows: int) -> int:
        return _nbytes(self.shape, self._dtype, rows)

    def rows(self, wanted: range, room: Tensor | None = None) -> Tensor:
        found = _made(self.shape, self._dtype, len(wanted), room)
        part = self._array[..., wanted.start : wanted.stop, :]
        if isinstance(part, Tensor):
            return found.copy_(part)
        found.numpy()[...] = part
        return found


class FileRows:
    """Rows of a tensor in a file. They are read, not mapped: pages of a map would count as the process's own until they
    are given back, and a file that is cut meanwhile would end the process instead of the call."""

    def __init__(self, there: Stored) -> None:
        self.stored = there

    @property
    def shape(self) -> tuple[int, ...]:
        return self.stored.shape

    def shape_alone(self) -> Tensor:
        return torch.empty(self.shape, dtype=self.stored.dtype, device="meta")

    def nbytes(self, rows: int) -> int:
        return _nbytes(self.shape, self.stored.dtype, rows)

    def rows(self, wanted: range, room: Tensor | None = None) -> Tensor:
        *leading, length, width = self.shape
        found = _made(self.shape, self.stored.dtype, len(wanted), room)
        if not found.numel():
            return found
        row = width * self.stored.dtype.itemsize
        parts = found.view(math.prod(leading), len(wanted) * width).view(torch.uint8)
        try:
            with self.stored.path.open("rb", buffering=0) as file:
                for number, part in enumerate(parts):
                    file.seek(self.stored.begin + (number * length + wanted.start) * row)
                    self._fill(file, part)
        except OSError as error:
            raise LoadError(f"{self.stored.path} must stay readable until the call ends; got: {error}.") from None
        return found

    def _fill(self, file: Any, part: Tensor) -> None:
        room = part.numpy().data
        while room:
            count = file.readinto(room)
            if not count:
                raise LoadError(
                    f"{self.stored.path} must stay as it is while it is read; {len(room):,} bytes that its header "
                    "told of are gone. Start again from a whole file."
                )
            room = room[count:]


def _nbytes(shape: tuple[int, ...], dtype: torch.dtype, rows: int) -> int:
    return math.prod((*shape[:-2], rows, shape[-1])) * dtype.itemsize


def _made(shape: tuple[int, ...], dtype: torch.dtype, rows: int, room: Tensor | None) -> Tensor:
    """A tensor for some rows, in a room if there is one."""
    wanted = (*shape[:-2], rows, shape[-1])
    if room is None:
        return torch.empty(wanted, dtype=dtype)
    return room[: _nbytes(shape, dtype, rows)].view(dtype).view(wanted)
