"""Write a tensor to a file block by block; the file appears under its name only when it is complete."""

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

from regard.distributed.out_of_core.tensor_file import DTYPE_BY_NAME, NAME_BY_NPY_CODE, SAFETENSORS_SUFFIX, split_source
from regard.errors import ArgumentError, BudgetError
from regard.files.atomic import atomic_file
from regard.files.safetensors_header import LENGTH_BYTES
from regard.plan.report import format_bytes
from regard.tensors.convert import as_tensor

DEFAULT_TENSOR_NAME = "o"  # in a safetensors file


@dataclass(frozen=True)
class OutputFile:
    """Path of an output file, and the name of the tensor in it (safetensors only)."""

    path: Path
    tensor_name: str


def resolve_output(out: str | Path) -> OutputFile:
    """Return the output file that `out` names; it must not exist yet, but its directory must."""
    path, name = split_source(out)
    if path.exists():
        raise ArgumentError(f"out must name a new file; {path} exists. Remove it, or choose another name.")
    if not path.absolute().parent.is_dir():
        raise ArgumentError(f"out must be in an existing directory; got {path}. Create the directory first.")
    return OutputFile(path, DEFAULT_TENSOR_NAME if name is None else name)


class MemoryWriter:
    """Writes rows (dimension -2) of a tensor in memory."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    def write_rows(self, rows: range, block: Tensor) -> None:
        self.tensor[..., rows.start : rows.stop, :] = block


class FileWriter(MemoryWriter):
    """Writes rows of a tensor in a file; memory-mapping would count written pages as memory of the process."""

    def __init__(self, file: BinaryIO, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        self._file, self._offset = file, file.tell()
        self._num_rows, self._row_bytes = shape[-2], shape[-1] * dtype.itemsize

    def write_rows(self, rows: range, block: Tensor) -> None:
        if not rows or not self._row_bytes:
            return
        matrices = block.contiguous().flatten(0, -3) if block.dim() > 2 else block.contiguous().unsqueeze(0)
        for index, matrix in enumerate(matrices.view(torch.uint8)):
            self._file.seek(self._offset + (index * self._num_rows + rows.start) * self._row_bytes)
            self._file.write(matrix.numpy().data)


@contextmanager
def open_writer(target: OutputFile, shape: tuple[int, ...], dtype: torch.dtype) -> Iterator[FileWriter]:
    """Open a new file for writing rows; it gets its name when the context ends, and is deleted on an error."""
    header = _header(target, shape, dtype)
    size = len(header) + math.prod(shape) * dtype.itemsize
    _check_disk_space(target.path, size)
    with atomic_file(target.path) as file:
        _reserve(file, target.path, size)
        file.write(header)
        yield FileWriter(file, shape, dtype)


def memory_writer(out: Any, shape: tuple[int, ...], dtype: torch.dtype) -> MemoryWriter:
    """Return a writer into the array `out`, or into a new tensor if `out` is None."""
    if out is None:
        return MemoryWriter(torch.empty(shape, dtype=dtype))
    if isinstance(out, np.ndarray) and not out.flags.writeable:
        raise ArgumentError("out must be writable; got a read-only array. Open it with mode='r+'.")
    tensor = as_tensor(out, "out")
    if tuple(tensor.shape) != shape or tensor.dtype != dtype:
        raise ArgumentError(
            f"out must have shape {shape} and dtype {dtype}; got {tuple(tensor.shape)} and {tensor.dtype}. "
            "Pass a path to create a file of the right shape."
        )
    return MemoryWriter(tensor)


def _header(target: OutputFile, shape: tuple[int, ...], dtype: torch.dtype) -> bytes:
    name = next(name for name, candidate in DTYPE_BY_NAME.items() if candidate == dtype)
    if target.path.suffix == SAFETENSORS_SUFFIX:
        entry = {"dtype": name, "shape": list(shape), "data_offsets": [0, math.prod(shape) * dtype.itemsize]}
        text = json.dumps({target.tensor_name: entry}).encode()
        text += b" " * (-len(text) % 8)  # aligns the data to 8 bytes
        return len(text).to_bytes(LENGTH_BYTES, "little") + text
    npy_codes = {dtype_name: code for code, dtype_name in NAME_BY_NPY_CODE.items()}
    if name not in npy_codes:
        raise ArgumentError(f"out must support {dtype}, which .npy files do not; got {target.path}. Use .safetensors.")
    header = io.BytesIO()
    npy.write_array_header_1_0(header, {"descr": "<" + npy_codes[name], "fortran_order": False, "shape": shape})
    return header.getvalue()


def _check_disk_space(path: Path, size: int) -> None:
    free = shutil.disk_usage(path.absolute().parent).free
    if free < size:
        raise BudgetError(
            f"the disk must have room for the output, {format_bytes(size)} ({size:,} bytes); got {free:,} free bytes "
            f"for {path}. Choose another disk."
        )


def _reserve(file: BinaryIO, path: Path, size: int) -> None:
    """Reserve the whole file, so that a full disk raises before any computation."""
    if not hasattr(os, "posix_fallocate"):
        return
    try:
        os.posix_fallocate(file.fileno(), 0, size)
    except OSError as error:
        raise BudgetError(
            f"the disk must have room for the output, {size:,} bytes; got an error for {path}: {error}."
        ) from None
