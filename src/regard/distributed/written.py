"""A tensor written into a file block by block: it appears under its name complete, or not at all."""

import io
import json
import math
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.lib import format as npy
from torch import Tensor

from regard.distributed.stored import NAMES, NUMPY, SAFETENSORS, divided
from regard.errors import BudgetError, SpecError
from regard.files.atomic import atomic_file
from regard.files.header import LENGTH_BYTES
from regard.plan.report import in_bytes
from regard.spec.array import as_tensor

NAME = "o"  # of the tensor in a safetensors file, unless it is named


@dataclass(frozen=True)
class Target:
    """A file to write a tensor into."""

    path: Path
    name: str


def target(out: str | Path) -> Target:
    """Where to write, if nothing is there yet."""
    path, name = divided(out)
    if path.exists():
        raise SpecError(f"out must name a new file; {path} exists. Remove it, or name another one.")
    if not path.absolute().parent.is_dir():
        raise SpecError(f"out must lie in a directory that exists; got {path}. Make the directory first.")
    return Target(path, NAME if name is None else name)


class Rows:
    """A tensor that is filled by rows: `put` takes those of its dimension before the last."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    def put(self, rows: range, block: Tensor) -> None:
        self.tensor[..., rows.start : rows.stop, :] = block


class RowsInFile(Rows):
    """The same in a file. Rows are written, not mapped, so that they take no memory of the process."""

    def __init__(self, file: BinaryIO, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        self._file, self._begin = file, file.tell()
        self._length, self._row = shape[-2], shape[-1] * dtype.itemsize

    def put(self, rows: range, block: Tensor) -> None:
        if not rows or not self._row:
            return
        parts = block.contiguous().flatten(0, -3) if block.dim() > 2 else block.contiguous().unsqueeze(0)
        for number, part in enumerate(parts.view(torch.uint8)):
            self._file.seek(self._begin + (number * self._length + rows.start) * self._row)
            self._file.write(part.numpy().data)


@contextmanager
def writing(where: Target, shape: tuple[int, ...], dtype: torch.dtype) -> Iterator[RowsInFile]:
    """Rows of a new file, which gets its name when the block ends, and is gone if the block fails."""
    header = _header(where, shape, dtype)
    size = len(header) + math.prod(shape) * dtype.itemsize
    _check_room(where.path, size)
    with atomic_file(where.path) as file:
        _reserve(file, where.path, size)
        file.write(header)
        yield RowsInFile(file, shape, dtype)


def given(out: Any, shape: tuple[int, ...], dtype: torch.dtype) -> Rows:
    """Rows of an array that the caller made; None makes one in memory."""
    if out is None:
        return Rows(torch.empty(shape, dtype=dtype))
    if isinstance(out, np.ndarray) and not out.flags.writeable:
        raise SpecError("out must be writable; got an array that is not. Open it with mode='r+'.")
    tensor = as_tensor(out, "out")
    if tuple(tensor.shape) != shape or tensor.dtype != dtype:
        got = f"{tuple(tensor.shape)} of {tensor.dtype}"
        raise SpecError(f"out must have the shape {shape} and hold {dtype}; got {got}. A path makes a file that fits.")
    return Rows(tensor)


def _header(where: Target, shape: tuple[int, ...], dtype: torch.dtype) -> bytes:
    name = next(name for name, known in NAMES.items() if known == dtype)
    if where.path.suffix == SAFETENSORS:
        entry = {"dtype": name, "shape": list(shape), "data_offsets": [0, math.prod(shape) * dtype.itemsize]}
        text = json.dumps({where.name: entry}).encode()
        text += b" " * (-len(text) % 8)  # so that numbers lie at multiples of their size
        return len(text).to_bytes(LENGTH_BYTES, "little") + text
    kinds = {known: code for code, known in NUMPY.items()}
    if name not in kinds:
        raise SpecError(
            f"out must be a file that can hold {dtype}, and .npy cannot; got {where.path}. Use .safetensors."
        )
    begin = io.BytesIO()
    npy.write_array_header_1_0(begin, {"descr": "<" + kinds[name], "fortran_order": False, "shape": shape})
    return begin.getvalue()


def _check_room(path: Path, size: int) -> None:
    free = shutil.disk_usage(path.absolute().parent).free
    if free < size:
        raise BudgetError(
            f"the disk must have room for the output, {in_bytes(size)} ({size:,} bytes); {free:,} bytes are free "
            f"where {path} would lie. Name another place."
        )


def _reserve(file: BinaryIO, path: Path, size: int) -> None:
    """All of the room at once, so that a disk that is full says so before any work is done."""
    if not hasattr(os, "posix_fallocate"):
        return
    try:
        os.posix_fallocate(file.fileno(), 0, size)
    except OSError as error:
        raise BudgetError(
            f"the disk must have room for the output, {size:,} bytes; where {path} would lie it has not ({error})."
        ) from None
