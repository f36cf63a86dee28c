"""Responses, and their format as bytes: a header in JSON, then the arrays as they are in memory.

    4 bytes     length of the header, little-endian
    header      {"values": ..., "arrays": [{"name", "dtype", "shape"}, ...]}, padded to a multiple of 8 bytes
    arrays      one after another, each padded to a multiple of 8 bytes

The format contains only JSON and numbers, no pickles.
"""

import json
import math
import struct
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from regard.errors import LoadError
from regard.files.json_values import to_json_value

PACKED_DTYPES = ("float32", "float16", "int32", "uint8")
ALIGNMENT_BYTES = 8  # arrays begin at multiples of it, so that the page can read them without copying


@dataclass(frozen=True, eq=False)
class Payload:
    """A response: JSON values, and arrays by name."""

    values: dict[str, Any] = field(default_factory=dict)
    arrays: dict[str, np.ndarray] = field(default_factory=dict)


def pack(payload: Payload) -> bytes:
    """Convert a response to bytes.

    >>> unpack(pack(Payload({"n": 2}, {"a": np.ones((1, 2), np.float32)}))).arrays["a"].tolist()
    [[1.0, 1.0]]
    """
    arrays = {name: np.ascontiguousarray(array) for name, array in payload.arrays.items()}
    array_headers = [{"name": name, "dtype": str(a.dtype), "shape": list(a.shape)} for name, a in arrays.items()]
    header = json.dumps({"values": to_json_value(payload.values), "arrays": array_headers}, allow_nan=False).encode()
    parts = [_pad_to_alignment(struct.pack("<I", len(header)) + header)]
    for name, array in arrays.items():
        if str(array.dtype) not in PACKED_DTYPES:
            raise LoadError(f"packed arrays must be {', '.join(PACKED_DTYPES)}; got {array.dtype} for {name}.")
        parts.append(_pad_to_alignment(array.tobytes()))
    return b"".join(parts)


def unpack(data: bytes) -> Payload:
    """Convert the bytes of `pack` back to a response."""
    length = struct.unpack_from("<I", data)[0] if len(data) >= 4 else 0
    if not 0 < length <= len(data) - 4:
        raise LoadError(
            f"a packed response must begin with the length of its header; got {length} of {len(data)} bytes."
        )
    header = json.loads(data[4 : 4 + length])
    offset = _align_offset(4 + length)
    arrays = {}
    for entry in header["arrays"]:
        if entry["dtype"] not in PACKED_DTYPES:
            raise LoadError(f"packed arrays must be {', '.join(PACKED_DTYPES)}; got {entry['dtype']!r}.")
        dtype, count = np.dtype(entry["dtype"]), math.prod(entry["shape"])
        arrays[entry["name"]] = np.frombuffer(data, dtype, count, offset).reshape(entry["shape"])
        offset = _align_offset(offset + count * dtype.itemsize)
    return Payload(header["values"], arrays)


def to_float32_array(tensor: Tensor) -> np.ndarray:
    """Convert a tensor to a float32 array that can be packed."""
    return tensor.detach().cpu().float().contiguous().numpy()


def _align_offset(offset: int) -> int:
    return -(-offset // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def _pad_to_alignment(data: bytes) -> bytes:
    return data + bytes(-len(data) % ALIGNMENT_BYTES)
