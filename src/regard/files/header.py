"""The header of a safetensors file, checked against the size of the file before anything is allocated.

A file is 8 bytes with the length of the header, the header in JSON, and the bytes of the tensors. Nothing is unpickled.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from regard.errors import LoadError

LENGTH_BYTES = 8
MAX_HEADER_BYTES = 100_000_000
MAX_DIMENSIONS = 64  # torch has no more
MAX_TENSOR_BYTES = 2**63 - 1
METADATA = "__metadata__"
PICKLED = (b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
    "C64": torch.complex64,
}


@dataclass(frozen=True)
class TensorEntry:
    """One tensor: its dtype by the name that the format gives it, its shape, and its bytes after the header."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True)
class TensorHeader:
    """The entries of a file by name, its metadata, where its data begin, and how many bytes of data there are."""

    entries: dict[str, TensorEntry]
    metadata: dict[str, str]
    begin: int
    data_bytes: int


def read_header(path: Path) -> TensorHeader:
    """The checked header of a safetensors file. Raises `LoadError` unless every tensor fits into the file."""
    if not path.is_file():
        raise _not_safetensors(path, "there is no such file")
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            first = file.read(LENGTH_BYTES)
            length = _header_length(first, size, path)
            content = file.read(length)
    except OSError as error:
        raise _not_safetensors(path, f"it cannot be read ({error.strerror})") from None
    header = _parsed(content, path)
    metadata = header.pop(METADATA, {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise _not_safetensors(path, f"its {METADATA} must be text by name")
    data_bytes = size - LENGTH_BYTES - length
    entries = {name: _entry(value, name, data_bytes, path) for name, value in header.items()}
    _check_overlap(entries, path)
    return TensorHeader(entries, metadata, LENGTH_BYTES + length, data_bytes)


def _not_safetensors(path: Path, reason: str) -> LoadError:
    return LoadError(f"{path} must be a safetensors file; {reason}. Copy or save the file again.")


def _header_length(first: bytes, size: int, path: Path) -> int:
    if first.startswith(PICKLED):
        raise LoadError(
            f"{path} must be a safetensors file; it is pickled, and opening it could run any program. Save it again "
            "with safetensors.torch.save_file where you trust it."
        )
    length = int.from_bytes(first, "little")
    if len(first) < LENGTH_BYTES or not 2 <= length <= min(MAX_HEADER_BYTES, size - LENGTH_BYTES):
        raise _not_safetensors(path, "it does not begin like one")
    return length


def _parsed(content: bytes, path: Path) -> dict[str, Any]:
    try:
        header = json.loads(content)
    except (ValueError, RecursionError):
        raise _not_safetensors(path, "its header is not JSON") from None
    if not isinstance(header, dict):
        raise _not_safetensors(path, "its header names no tensors")
    return header


def _entry(value: Any, name: str, data_bytes: int, path: Path) -> TensorEntry:
    if not isinstance(value, dict) or not {"dtype", "shape", "data_offsets"} <= set(value):
        raise LoadError(f"{name!r} in {path} must have a dtype, a shape and offsets; its header has {_short(value)}.")
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not _are_counts(shape) or len(shape) > MAX_DIMENSIONS:
        raise LoadError(
            f"{name!r} in {path} must have a shape of whole numbers from 0; its header has {_short(shape)}."
        )
    if not _are_counts(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise LoadError(f"{name!r} in {path} must have two offsets in order; its header has {_short(offsets)}.")
    begin, end = offsets
    if end > data_bytes:
        raise LoadError(
            f"{path} must hold all of its tensors; {name!r} ends at byte {end} of the data, and only {data_bytes} are "
            "there. Copy the file again."
        )
    if not isinstance(dtype, str):
        raise LoadError(f"{name!r} in {path} must have a dtype such as 'F32'; its header has {_short(dtype)}.")
    if dtype in DTYPES:
        _check_size(name, shape, DTYPES[dtype], end - begin, path)
    return TensorEntry(dtype, tuple(shape), begin, end)


def _are_counts(values: Any) -> bool:
    return isinstance(values, list) and all(type(value) is int and value >= 0 for value in values)


def _check_size(name: str, shape: list[int], dtype: torch.dtype, length: int, path: Path) -> None:
    size = math.prod(shape) * dtype.itemsize
    # dimensions beside an empty one take no bytes, but torch multiplies them as well
    if size != length or math.prod(max(n, 1) for n in shape) * dtype.itemsize > MAX_TENSOR_BYTES:
        raise LoadError(
            f"{name!r} in {path} must take {_grouped(size)} bytes, for its shape {tuple(shape)} of {dtype}; its header "
            f"gives it {length:,}."
        )


def _grouped(number: int) -> str:
    return f"{number:,}" if number <= MAX_TENSOR_BYTES else "more than 2**63"


def _check_overlap(entries: dict[str, TensorEntry], path: Path) -> None:
    """Refuses tensors that share bytes, by which a small file could stand for a large one."""
    last_name, last_end = "", 0
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].begin, item[1].end)):
        if entry.begin < last_end and entry.begin != entry.end:
            raise LoadError(f"{path} must hold its tensors apart; {last_name!r} and {name!r} share bytes.")
        last_name, last_end = (name, entry.end) if entry.end > last_end else (last_name, last_end)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
