"""Headers of safetensors files, validated against the file size before memory is allocated.

A file consists of 8 bytes with the length of the header, the header in JSON, and the data of the tensors. Nothing is
unpickled.
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
MAX_DIMENSIONS = 64  # limit of torch
MAX_TENSOR_BYTES = 2**63 - 1
METADATA_KEY = "__metadata__"
PICKLE_PREFIXES = (b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
SAFETENSORS_DTYPES = {
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
    """A tensor in the header: dtype name such as "F32", shape, and the bytes [begin, end) of the data."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True)
class TensorHeader:
    """The header of a file: entries by tensor name, metadata, offset and size of the data in bytes."""

    entries: dict[str, TensorEntry]
    metadata: dict[str, str]
    data_offset: int
    data_bytes: int


def read_header(path: Path) -> TensorHeader:
    """Read and validate the header of a safetensors file. Raise `LoadError` unless every tensor fits into the file."""
    if not path.is_file():
        raise _not_safetensors(path, "there is no such file")
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            prefix = file.read(LENGTH_BYTES)
            length = _header_length(prefix, size, path)
            content = file.read(length)
            if prefix.startswith(PICKLE_PREFIXES) and not content.startswith(b"{"):  # lengths may look like a pickle
                raise _pickled(path)
    except OSError as error:
        raise _not_safetensors(path, f"it cannot be read ({error.strerror})") from None
    header = _parse_json(content, path)
    metadata = header.pop(METADATA_KEY, {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise _not_safetensors(path, f"its {METADATA_KEY} must map names to strings")
    data_bytes = size - LENGTH_BYTES - length
    entries = {name: _entry(value, name, data_bytes, path) for name, value in header.items()}
    _check_overlap(entries, path)
    return TensorHeader(entries, metadata, LENGTH_BYTES + length, data_bytes)


def _not_safetensors(path: Path, reason: str) -> LoadError:
    return LoadError(f"{path} must be a safetensors file; {reason}. Copy or save the file again.")


def _header_length(prefix: bytes, size: int, path: Path) -> int:
    length = int.from_bytes(prefix, "little")
    if len(prefix) == LENGTH_BYTES and 2 <= length <= min(MAX_HEADER_BYTES, size - LENGTH_BYTES):
        return length
    raise _pickled(path) if prefix.startswith(PICKLE_PREFIXES) else _not_safetensors(path, "its header size is invalid")


def _pickled(path: Path) -> LoadError:
    return LoadError(
        f"{path} must be a safetensors file; it is pickled, and opening it could run any program. If you trust the "
        "file, convert it with safetensors.torch.save_file."
    )


def _parse_json(content: bytes, path: Path) -> dict[str, Any]:
    try:
        header = json.loads(content)
    except (ValueError, RecursionError):
        raise _not_safetensors(path, "its header is not JSON") from None
    if not isinstance(header, dict):
        raise _not_safetensors(path, "its header is not a JSON object")
    return header


def _entry(value: Any, name: str, data_bytes: int, path: Path) -> TensorEntry:
    if not isinstance(value, dict) or not {"dtype", "shape", "data_offsets"} <= set(value):
        raise LoadError(f"{name!r} in {path} must have a dtype, a shape and offsets; its header has {_shorten(value)}.")
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not _is_count_list(shape) or len(shape) > MAX_DIMENSIONS:
        raise LoadError(f"{name!r} in {path} must have a shape of integers >= 0; its header has {_shorten(shape)}.")
    if not _is_count_list(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise LoadError(f"{name!r} in {path} must have two offsets in order; its header has {_shorten(offsets)}.")
    begin, end = offsets
    if end > data_bytes:
        raise LoadError(
            f"{path} must hold all of its tensors; {name!r} ends at byte {end} of the data, and only {data_bytes} are "
            "there. Copy the file again."
        )
    if not isinstance(dtype, str):
        raise LoadError(f"{name!r} in {path} must have a dtype such as 'F32'; its header has {_shorten(dtype)}.")
    if dtype in SAFETENSORS_DTYPES:
        _check_size(name, shape, SAFETENSORS_DTYPES[dtype], end - begin, path)
    return TensorEntry(dtype, tuple(shape), begin, end)


def _is_count_list(values: Any) -> bool:
    return isinstance(values, list) and all(type(value) is int and value >= 0 for value in values)


def _check_size(name: str, shape: list[int], dtype: torch.dtype, length: int, path: Path) -> None:
    size = math.prod(shape) * dtype.itemsize
    # dimensions beside an empty one take no bytes, but torch multiplies them as well
    if size != length or math.prod(max(n, 1) for n in shape) * dtype.itemsize > MAX_TENSOR_BYTES:
        raise LoadError(
            f"{name!r} in {path} must take {_format_count(size)} bytes, for its shape {tuple(shape)} of {dtype}; its "
            f"header gives it {length:,}."
        )


def _format_count(number: int) -> str:
    return f"{number:,}" if number <= MAX_TENSOR_BYTES else "more than 2**63"


def _check_overlap(entries: dict[str, TensorEntry], path: Path) -> None:
    """Raise `LoadError` if tensors share bytes: a small file could then expand to huge tensors."""
    last_name, last_end = "", 0
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].begin, item[1].end)):
        if entry.begin < last_end and entry.begin != entry.end:
            raise LoadError(f"{path} must not have overlapping tensors; {last_name!r} and {name!r} share bytes.")
        last_name, last_end = (name, entry.end) if entry.end > last_end else (last_name, last_end)


def _shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
