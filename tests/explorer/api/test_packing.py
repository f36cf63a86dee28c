"""Responses as bytes."""

import json
import pickle
import struct

import numpy as np
import pytest

from regard.errors import LoadError
from regard.explorer.api.packing import Payload, pack, unpack


def test_unpack_restores_a_packed_response() -> None:
    arrays = {
        "mean": np.arange(6, dtype=np.float32).reshape(2, 3),
        "key": np.array([1, 2, 3], dtype=np.int32),
        "html": np.frombuffer(b"<p>", dtype=np.uint8),
        "half": np.array([[0.5]], dtype=np.float16),
        "none": np.zeros((0, 4), dtype=np.float32),
    }
    response = unpack(pack(Payload({"text": "Straße ☃", "n": [1, {"a": None}]}, arrays)))
    assert response.values == {"text": "Straße ☃", "n": [1, {"a": None}]}
    assert list(response.arrays) == list(arrays)
    for name, array in arrays.items():
        assert response.arrays[name].dtype == array.dtype
        assert np.array_equal(response.arrays[name], array)


def test_arrays_begin_at_multiples_of_eight_bytes() -> None:
    data = pack(Payload({"a": 1}, {"b": np.array([7], dtype=np.uint8), "c": np.array([2.5], dtype=np.float32)}))
    length = struct.unpack_from("<I", data)[0]
    first = -(-(4 + length) // 8) * 8
    assert data[first] == 7
    assert struct.unpack_from("<f", data, first + 8)[0] == 2.5
    assert len(data) == first + 16


def test_nan_and_infinities_become_null() -> None:
    response = unpack(pack(Payload({"a": [float("nan"), float("-inf"), 1.5], "b": np.float32(2.0)})))
    assert response.values == {"a": [None, None, 1.5], "b": 2.0}


def test_an_array_of_an_unsupported_dtype_raises() -> None:
    with pytest.raises(LoadError, match="packed arrays must be float32, float16, int32, uint8; got float64 for w"):
        pack(Payload({}, {"w": np.zeros(2)}))


def test_bytes_of_another_format_raise_and_are_not_unpickled() -> None:
    with pytest.raises(LoadError, match="must begin with the length of its header; got"):
        unpack(pickle.dumps([1, 2, 3]))
    with pytest.raises(LoadError, match="got 0 of 2 bytes"):
        unpack(b"ab")
    header = json.dumps({"values": {}, "arrays": [{"name": "a", "dtype": "object", "shape": [1]}]}).encode()
    with pytest.raises(LoadError, match=r"packed arrays must be .*; got 'object'"):
        unpack(struct.pack("<I", len(header)) + header + bytes(16))
