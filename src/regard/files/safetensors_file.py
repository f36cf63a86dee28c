"""Safetensors files, written atomically and with a checksum.

The checksum is the CRC-32 of the header (without the checksum itself) and of the data. It detects damage, such as
flipped bits or an incomplete copy. It does not protect against deliberate changes, so readers also validate the
content.
"""

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard import checks
from regard.errors import ArgumentError, LoadError
from regard.files.atomic import atomic_file
from regard.files.safetensors_header import LENGTH_BYTES, METADATA_KEY, SAFETENSORS_DTYPES, TensorHeader, read_header

CHECKSUM_KEY = "checksum"
DTYPE_NAMES = {dtype: name for name, dtype in SAFETENSORS_DTYPES.items()}


def write_tensors(path: str | Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write tensors and metadata into a safetensors file, atomically."""
    path = Path(path)
    for name, value in tensors.items():
        checks.tensor(value, f"the tensor {name!r} of {path}")
    # large dtypes first, so that every tensor is aligned to its item size
    order = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    entries, end = {}, 0
    for name in order:
        begin, end = end, end + tensors[name].numel() * tensors[name].element_size()
        dtype = _dtype_name(name, tensors[name])
        entries[name] = {"dtype": dtype, "shape": list(tensors[name].shape), "data_offsets": [begin, end]}
    with atomic_file(path) as file:
        file.write(_header_bytes(entries, {**metadata, CHECKSUM_KEY: _checksum_text(0)}))
        checksum = _header_checksum(entries, metadata)
        for name in order:
            content = _tensor_bytes(tensors[name])
            checksum = zlib.crc32(content, checksum)
            file.write(content)
        file.seek(0)
        file.write(_header_bytes(entries, {**metadata, CHECKSUM_KEY: _checksum_text(checksum)}))


@dataclass(frozen=True, eq=False)
class TensorFile:
    """The tensors and metadata of a file, and whether its checksum was verified."""

    tensors: dict[str, Tensor]
    metadata: dict[str, str]
    is_verified: bool


def read_tensors(path: str | Path) -> TensorFile:
    """Read a safetensors file. Raise `LoadError` if it is damaged.

    A file with a checksum is read into memory and verified. A file without a checksum, written by another program, is
    memory-mapped.
    """
    path = Path(path)
    header = read_header(path)
    metadata = dict(header.metadata)
    expected = metadata.pop(CHECKSUM_KEY, None)
    content = _memmap_data(path, header) if expected is None else _read_data(path, header)
    if expected is not None:
        _verify(path, header, metadata, content, expected)
    return TensorFile(_tensor_views(path, header, content), metadata, expected is not None)


def _dtype_name(name: str, tensor: Tensor) -> str:
    if tensor.dtype not in DTYPE_NAMES or tensor.layout != torch.strided:
        raise ArgumentError(
            f"{name!r} must be a dense tensor of one of {', '.join(str(dtype) for dtype in DTYPE_NAMES)} to be saved; "
            f"got {tensor.dtype}, {tensor.layout}. Convert it first."
        )
    return DTYPE_NAMES[tensor.dtype]


def _header_bytes(entries: Mapping[str, Any], metadata: Mapping[str, str]) -> bytes:
    text = json.dumps({METADATA_KEY: dict(metadata), **entries}).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(LENGTH_BYTES, "little") + text


def _header_checksum(entries: Mapping[str, Any], metadata: Mapping[str, str]) -> int:
    """Return the checksum of a header, independent of the order and spacing of its JSON."""
    return zlib.crc32(json.dumps({**entries, METADATA_KEY: dict(metadata)}, sort_keys=True).encode())


def _checksum_text(checksum: int) -> str:
    return f"crc32:{checksum:08x}"


def _tensor_bytes(tensor: Tensor) -> Any:
    flat = tensor.detach().resolve_conj().resolve_neg().to("cpu").contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data if flat.numel() else b""


def _memmap_data(path: Path, header: TensorHeader) -> Tensor:
    if not header.data_bytes:
        return torch.empty(0, dtype=torch.uint8)
    # mode "c" is copy-on-write: the file does not change
    return torch.from_numpy(np.memmap(path, np.uint8, "c", header.data_offset, (header.data_bytes,)))


def _read_data(path: Path, header: TensorHeader) -> Tensor:
    content = torch.empty(header.data_bytes, dtype=torch.uint8)
    remaining = content.numpy().data
    with path.open("rb", buffering=0) as file:
        file.seek(header.data_offset)
        while remaining:
            count = file.readinto(remaining)
            if not count:
                raise LoadError(
                    f"{path} must not change while it is read; its last {len(remaining):,} bytes are missing. "
                    "Copy it again."
                )
            remaining = remaining[count:]
    return content


def _verify(path: Path, header: TensorHeader, metadata: dict[str, str], content: Tensor, expected: str) -> None:
    entries = {
        name: {"dtype": e.dtype, "shape": list(e.shape), "data_offsets": [e.begin, e.end]}
        for name, e in header.entries.items()
    }
    actual = _checksum_text(zlib.crc32(content.numpy().data, _header_checksum(entries, metadata)))
    if actual != expected:
        raise LoadError(
            f"{path} is damaged: its checksum must be {expected[:40]}; got {actual}. Copy the file again, or use an "
            "earlier one."
        )


def _tensor_views(path: Path, header: TensorHeader, content: Tensor) -> dict[str, Tensor]:
    tensors = {}
    for name, entry in header.entries.items():
        if entry.dtype not in SAFETENSORS_DTYPES:
            raise LoadError(
                f"{name!r} in {path} must have a dtype of {', '.join(SAFETENSORS_DTYPES)}; got {entry.dtype[:40]!r}."
            )
        dtype = SAFETENSORS_DTYPES[entry.dtype]
        part = content[entry.begin : entry.end]
        if entry.begin % dtype.itemsize or part.data_ptr() % dtype.itemsize:
            part = part.clone()
        tensors[name] = part.view(dtype).view(entry.shape) if part.numel() else torch.empty(entry.shape, dtype=dtype)
    return tensors
