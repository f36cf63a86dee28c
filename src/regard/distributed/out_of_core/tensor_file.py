"""Locate a tensor in a .npy or safetensors file and check that the file is complete.

Only headers are read. Nothing is unpickled, and the safetensors package is not needed.
"""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.lib import format as npy
from torch import Tensor

from regard.errors import LoadError
from regard.files.safetensors_header import read_header

NPY_SUFFIX, SAFETENSORS_SUFFIX = ".npy", ".safetensors"
MAX_FILE_DIM_SIZE = 2**62
FLOAT_DTYPES = {"F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
INT_DTYPES = {"I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8}
DTYPE_BY_NAME = FLOAT_DTYPES | INT_DTYPES
NAME_BY_NPY_CODE = {
    "f8": "F64",
    "f4": "F32",
    "f2": "F16",
    "i8": "I64",
    "i4": "I32",
    "i2": "I16",
    "i1": "I8",
    "u1": "U8",
}


@dataclass(frozen=True)
class TensorLocation:
    """A contiguous tensor of this shape and dtype that starts at byte `offset` of a file."""

    path: Path
    shape: tuple[int, ...]
    dtype: torch.dtype
    offset: int

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def open_memmap(source: str | Path) -> Tensor:
    """Return the tensor in a file, memory-mapped: only the parts that are accessed are read.

    `source` is the path of a .npy file, or the path of a safetensors file followed by a colon and the name of a tensor.
    The mapping is copy-on-write: writing to the tensor does not change the file.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "k.npy"
    >>> np.save(path, np.arange(6.0).reshape(3, 2))
    >>> open_memmap(path)[1:]
    tensor([[2., 3.],
            [4., 5.]], dtype=torch.float64)
    """
    location = locate_tensor(source)
    if location.nbytes == 0:
        return torch.empty(location.shape, dtype=location.dtype)
    data = np.memmap(location.path, np.uint8, "c", location.offset, (location.nbytes,))  # "c" is copy-on-write
    return torch.from_numpy(data).view(location.dtype).view(location.shape)


def locate_tensor(source: str | Path) -> TensorLocation:
    """Return the location of the tensor that `source` names; raise `LoadError` if it is invalid or incomplete."""
    path, name = split_source(source)
    if not path.is_file():
        raise LoadError(f"{path} must be an existing file; it does not exist.")
    location = _locate_in_safetensors(path, name) if path.suffix == SAFETENSORS_SUFFIX else _locate_in_npy(path)
    data_bytes = path.stat().st_size - location.offset
    if data_bytes < location.nbytes:
        raise LoadError(
            f"{source} must contain its whole tensor, {location.nbytes:,} bytes after its header; got {data_bytes:,}. "
            "Copy the file again."
        )
    return location


def split_source(source: str | Path) -> tuple[Path, str | None]:
    """Split "file.safetensors:name" into the path and the tensor name, which is None if there is none."""
    text = str(source)
    stem, separator, name = text.rpartition(f"{SAFETENSORS_SUFFIX}:")
    path = Path(stem + SAFETENSORS_SUFFIX if separator else text)
    if path.suffix not in (NPY_SUFFIX, SAFETENSORS_SUFFIX):
        raise LoadError(f"a file must be named *{NPY_SUFFIX} or *{SAFETENSORS_SUFFIX}:name; got {text}.")
    return path, name if separator else None


def _locate_in_npy(path: Path) -> TensorLocation:
    try:
        with path.open("rb") as file:
            version = npy.read_magic(file)
            read_npy_header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
            shape, is_fortran_order, dtype = read_npy_header(file)
            offset = file.tell()
    except Exception as error:  # numpy evaluates the header as Python source, which fails in many ways
        raise LoadError(f"{path} must be a file written by numpy.save; its header is invalid: {error}.") from None
    if dtype.str[1:] not in NAME_BY_NPY_CODE or dtype.byteorder == ">":
        raise LoadError(
            f"{path} must contain little-endian floats or integers; got dtype {dtype.str}. Save it again with "
            "numpy.save(path, x.astype('<f4'))."
        )
    if not all(type(n) is int and 0 <= n <= MAX_FILE_DIM_SIZE for n in shape):
        raise LoadError(f"{path} must have a shape of non-negative integers; got {str(shape)[:80]}.")
    if is_fortran_order and sum(n > 1 for n in shape) > 1:
        raise LoadError(
            f"{path} must be in C order; got Fortran order. Save it again with "
            "numpy.save(path, numpy.ascontiguousarray(x))."
        )
    return TensorLocation(path, shape, DTYPE_BY_NAME[NAME_BY_NPY_CODE[dtype.str[1:]]], offset)


def _locate_in_safetensors(path: Path, name: str | None) -> TensorLocation:
    header = read_header(path)
    names = sorted(header.entries)
    if name is None and len(names) == 1:
        name = names[0]
    if name is None or name not in header.entries:
        available = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
        got = "no name" if name is None else repr(name)
        raise LoadError(
            f"{path} must be followed by the name of one of its {len(names)} tensors; got {got}. It contains "
            f"{available}."
        )
    entry = header.entries[name]
    if entry.dtype not in DTYPE_BY_NAME:
        raise LoadError(f"{name!r} in {path} must have a dtype that attention supports; got {entry.dtype[:40]}.")
    return TensorLocation(path, entry.shape, DTYPE_BY_NAME[entry.dtype], header.data_offset + entry.begin)
