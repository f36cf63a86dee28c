"""Answers, and answers as bytes: a header in JSON, then arrays as they lie in memory.

    4 bytes     the header's length, little-endian
    header      {"values": ..., "arrays": [{"name", "dtype", "shape"}, ...]}, filled up to a multiple of 8
    arrays      one after another, each filled up to a multiple of 8

Nothing is pickled: what is read back is JSON and numbers.
"""

import json
import math
import struct
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from regard.errors import LoadError

TYPES = ("float32", "float16", "int32", "uint8")
STEP = 8  # arrays begin at multiples of it, so that a page can look at them without copying


@dataclass(frozen=True, eq=False)
class Answer:
    """What a question is answered with: values that JSON can hold, and arrays by name."""

    values: dict[str, Any] = field(default_factory=dict)
    arrays: dict[str, np.ndarray] = field(default_factory=dict)


def packed(answer: Answer) -> bytes:
    """An answer as bytes.

    >>> unpacked(packed(Answer({"n": 2}, {"a": np.ones((1, 2), np.float32)}))).arrays["a"].tolist()
    [[1.0, 1.0]]
    """
    arrays = {name: np.ascontiguousarray(array) for name, array in answer.arrays.items()}
    listed = [{"name": name, "dtype": str(a.dtype), "shape": list(a.shape)} for name, a in arrays.items()]
    header = json.dumps({"values": plain(answer.values), "arrays": listed}, allow_nan=False).encode()
    parts = [_filled(struct.pack("<I", len(header)) + header)]
    for name, array in arrays.items():
        if str(array.dtype) not in TYPES:
            raise LoadError(f"arrays must be of {', '.join(TYPES)} to be packed; {name} is {array.dtype}.")
        parts.append(_filled(array.tobytes()))
    return b"".join(parts)


def unpacked(data: bytes) -> Answer:
    """An answer from its bytes."""
    length = struct.unpack_from("<I", data)[0] if len(data) >= 4 else 0
    if not 0 < length <= len(data) - 4:
        raise LoadError(f"a packed answer must begin with its header's length; got {length} of {len(data)} bytes.")
    header = json.loads(data[4 : 4 + length])
    place = _after(4 + length)
    arrays = {}
    for said in header["arrays"]:
        if said["dtype"] not in TYPES:
            raise LoadError(f"arrays must be of {', '.join(TYPES)} to be read; got {said['dtype']!r}.")
        kind, count = np.dtype(said["dtype"]), math.prod(said["shape"])
        arrays[said["name"]] = np.frombuffer(data, kind, count, place).reshape(said["shape"])
        place = _after(place + count * kind.itemsize)
    return Answer(header["values"], arrays)


def plain(value: Any) -> Any:
    """The same with None for what JSON has no number for."""
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    if isinstance(value, Tensor | np.ndarray):
        return plain(value.tolist())
    if isinstance(value, np.generic):
        return plain(value.item())
    return None if isinstance(value, float) and not math.isfinite(value) else value


def numbers(tensor: Tensor) -> np.ndarray:
    """A tensor as an array of float32 that can be packed."""
    return tensor.detach().cpu().float().contiguous().numpy()


def _after(place: int) -> int:
    return -(-place // STEP) * STEP


def _filled(data: bytes) -> bytes:
    return data + bytes(-len(data) % STEP)
