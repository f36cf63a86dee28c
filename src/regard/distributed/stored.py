"""A tensor in a file, NumPy's .npy or safetensors: where it lies, and whether all of it is there.

Only headers are read here. Nothing is unpickled, and no package is needed for either format.
"""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.lib import format as npy
from torch import Tensor

from regard.errors import LoadError
from regard.files.header import read_header

NPY, SAFETENSORS = ".npy", ".safetensors"
MAX_DIMENSION = 2**62
FLOATS = {"F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
WHOLE = {"I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8}
NAMES = FLOATS | WHOLE
NUMPY = {"f8": "F64", "f4": "F32", "f2": "F16", "i8": "I64", "i4": "I32", "i2": "I16", "i1": "I8", "u1": "U8"}


@dataclass(frozen=True)
class Stored:
    """A tensor of this shape and dtype, row after row, from byte `begin` of a file on."""

    path: Path
    shape: tuple[int, ...]
    dtype: torch.dtype
    begin: int

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def mapped(source: str | Path) -> Tensor:
    """The tensor in a file, memory-mapped: only what is looked at is read.

    `source` is the path of a .npy file, or of a safetensors file and, behind a colon, the name of a tensor in it. What
    is written to the tensor stays in memory; the file does not change.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "k.npy"
    >>> np.save(path, np.arange(6.0).reshape(3, 2))
    >>> mapped(path)[1:]
    tensor([[2., 3.],
            [4., 5.]], dtype=torch.float64)
    """
    there = stored(source)
    if there.nbytes == 0:
        return torch.empty(there.shape, dtype=there.dtype)
    # mode "c" copies a page when it is written to
    whole = np.memmap(there.path, np.uint8, "c", there.begin, (there.nbytes,))
    return torch.from_numpy(whole).view(there.dtype).view(there.shape)


def stored(source: str | Path) -> Stored:
    """Where the tensor lies that `source` names, if the file is one of these and all of the tensor is there."""
    path, name = divided(source)
    if not path.is_file():
        raise LoadError(f"{path} must be a file with a tensor in it; there is no such file.")
    found = _in_safetensors(path, name) if path.suffix == SAFETENSORS else _in_npy(path)
    there = path.stat().st_size - found.begin
    if there < found.nbytes:
        raise LoadError(
            f"{source} must hold all of its tensor, {found.nbytes:,} bytes behind its header; only {there:,} are "
            "there. Copy the file again."
        )
    return found


def divided(source: str | Path) -> tuple[Path, str | None]:
    """A path, and the name of a tensor behind it: what.safetensors:name."""
    text = str(source)
    before, colon, name = text.rpartition(f"{SAFETENSORS}:")
    path = Path(before + SAFETENSORS if colon else text)
    if path.suffix not in (NPY, SAFETENSORS):
        raise LoadError(f"a file must be named *{NPY} or *{SAFETENSORS}:name; got {text}.")
    return path, name if colon else None


def _in_npy(path: Path) -> Stored:
    try:
        with path.open("rb") as file:
            version = npy.read_magic(file)
            header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
            shape, in_columns, dtype = header(file)
            begin = file.tell()
    except Exception as error:  # numpy evaluates the header as Python text, which fails in many ways
        raise LoadError(f"{path} must be a file that numpy.save wrote; its beginning is not ({error}).") from None
    if dtype.str[1:] not in NUMPY or dtype.byteorder == ">":
        raise LoadError(
            f"{path} must hold plain numbers, the low byte first; got {dtype.str}. Save it again, as in "
            "numpy.save(path, x.astype('<f4'))."
        )
    if not all(type(n) is int and 0 <= n <= MAX_DIMENSION for n in shape):
        raise LoadError(f"{path} must have a shape of whole numbers from 0; its header has {str(shape)[:80]}.")
    if in_columns and sum(n > 1 for n in shape) > 1:
        raise LoadError(
            f"{path} must hold its numbers row by row; got Fortran order, column by column. Save "
            "numpy.ascontiguousarray(x)."
        )
    return Stored(path, shape, NAMES[NUMPY[dtype.str[1:]]], begin)


def _in_safetensors(path: Path, name: str | None) -> Stored:
    header = read_header(path)
    names = sorted(header.entries)
    if name is None and len(names) == 1:
        name = names[0]
    if name is None or name not in header.entries:
        some = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
        got = f"no name for one of {len(names)}" if name is None else repr(name)
        raise LoadError(f"{path} must hold the tensor that is named behind it; got {got}, and it holds {some}.")
    entry = header.entries[name]
    if entry.dtype not in NAMES:
        raise LoadError(f"{name!r} in {path} must have a dtype that attention supports; got {entry.dtype[:40]}.")
    return Stored(path, entry.shape, NAMES[entry.dtype], header.begin + entry.begin)
