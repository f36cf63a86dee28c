"""Tensors by name in one safetensors file, written atomically and with a checksum.

The checksum is the CRC-32 of the header (without the checksum itself) and of all bytes of data. It finds damage, such
as flipped bits or a mixed-up copy. It does not protect against somebody who changes a file on purpose, so whoever reads
a file also checks what it says.
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
from regard.errors import LoadError, SpecError
from regard.files.atomic import atomic_file
from regard.files.header import DTYPES, LENGTH_BYTES, METADATA, TensorHeader, read_header

CHECKSUM = "checksum"
NAMES = {dtype: name for name, dtype in DTYPES.items()}


def write_tensors(path: str | Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Writes tensors and metadata into a file, which changes when all of it is on the disk."""
    path = Path(path)
    for name, value in tensors.items():
        checks.tensor(value, f"the tensor {name!r} of {path}")
    # large numbers first, so that every tensor begins at a multiple of its item size
    order = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    entries, end = {}, 0
    for name in order:
        begin, end = end, end + tensors[name].numel() * tensors[name].element_size()
        dtype = _dtype_name(name, tensors[name])
        entries[name] = {"dtype": dtype, "shape": list(tensors[name].shape), "data_offsets": [begin, end]}
    with atomic_file(path) as file:
        file.write(_header_bytes(entries, {**metadata, CHECKSUM: _text_of(0)}))
        checksum = _start(entries, metadata)
        for name in order:
            content = _bytes_of(tensors[name])
            checksum = zlib.crc32(content, checksum)
            file.write(content)
        file.seek(0)
        file.write(_header_bytes(entries, {**metadata, CHECKSUM: _text_of(checksum)}))


@dataclass(frozen=True, eq=False)
class TensorFile:
    """The tensors and the metadata of a file, and whether a checksum confirmed them."""

    tensors: dict[str, Tensor]
    metadata: dict[str, str]
    is_verified: bool


def read_tensors(path: str | Path) -> TensorFile:
    """Reads a safetensors file. Raises `LoadError` where it is damaged.

    A file with a checksum is read into memory and verified. A file without one, which others wrote, is mapped into
    memory: its bytes are read when they are used.
    """
    path = Path(path)
    header = read_header(path)
    metadata = dict(header.metadata)
    expected = metadata.pop(CHECKSUM, None)
    content = _mapped(path, header) if expected is None else _whole(path, header)
    if expected is not None:
        _verify(path, header, metadata, content, expected)
    return TensorFile(_views(path, header, content), metadata, expected is not None)


def _dtype_name(name: str, tensor: Tensor) -> str:
    if tensor.dtype not in NAMES or tensor.layout != torch.strided:
        raise SpecError(
            f"{name!r} must be a dense tensor of one of {', '.join(str(dtype) for dtype in NAMES)} to be saved; got "
            f"{tensor.dtype}, {tensor.layout}. Convert it first."
        )
    return NAMES[tensor.dtype]


def _header_bytes(entries: Mapping[str, Any], metadata: Mapping[str, str]) -> bytes:
    text = json.dumps({METADATA: dict(metadata), **entries}).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(LENGTH_BYTES, "little") + text


def _start(entries: Mapping[str, Any], metadata: Mapping[str, str]) -> int:
    """The checksum of a header, whatever the order and spacing of its JSON."""
    return zlib.crc32(json.dumps({**entries, METADATA: dict(metadata)}, sort_keys=True).encode())


def _text_of(checksum: int) -> str:
    return f"crc32:{checksum:08x}"


def _bytes_of(tensor: Tensor) -> Any:
    plain = tensor.detach().resolve_conj().resolve_neg().to("cpu").contiguous().reshape(-1)
    return plain.view(torch.uint8).numpy().data if plain.numel() else b""


def _mapped(path: Path, header: TensorHeader) -> Tensor:
    if not header.data_bytes:
        return torch.empty(0, dtype=torch.uint8)
    # mode "c": a page that is written to is copied, and the file does not change
    return torch.from_numpy(np.memmap(path, np.uint8, "c", header.begin, (header.data_bytes,)))


def _whole(path: Path, header: TensorHeader) -> Tensor:
    content = torch.empty(header.data_bytes, dtype=torch.uint8)
    room = content.numpy().data
    with path.open("rb", buffering=0) as file:
        file.seek(header.begin)
        while room:
            count = file.readinto(room)
            if not count:
                raise LoadError(
                    f"{path} must stay as it is while it is read; its last {len(room):,} bytes are gone. Copy it again."
                )
            room = room[count:]
    return content


def _verify(path: Path, header: TensorHeader, metadata: dict[str, str], content: Tensor, expected: str) -> None:
    entries = {
        name: {"dtype": e.dtype, "shape": list(e.shape), "data_offsets": [e.begin, e.end]}
        for name, e in header.entries.items()
    }
    actual = _text_of(zlib.crc32(content.numpy().data, _start(entries, metadata)))
    if actual != expected:
        raise LoadError(
            f"{path} is damaged: its checksum must be {expected[:40]}, and its content has {actual}. Copy the file "
            "again, or go back to an earlier one."
        )


def _views(path: Path, header: TensorHeader, content: Tensor) -> dict[str, Tensor]:
    tensors = {}
    for name, entry in header.entries.items():
        if entry.dtype not in DTYPES:
            raise LoadError(f"{name!r} in {path} must have a dtype of {', '.join(DTYPES)}; got {entry.dtype[:40]!r}.")
        dtype = DTYPES[entry.dtype]
        part = content[entry.begin : entry.end]
        if entry.begin % dtype.itemsize or part.data_ptr() % dtype.itemsize:
            part = part.clone()
        tensors[name] = part.view(dtype).view(entry.shape) if part.numel() else torch.empty(entry.shape, dtype=dtype)
    return tensors
