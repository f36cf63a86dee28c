"""Answers as bytes."""

import json
import pickle
import struct

import numpy as np
import pytest

from regard.errors import LoadError
from regard.explorer.packing import Answer, packed, unpacked


def test_an_answer_comes_back_from_its_bytes() -> None:
    arrays = {
        "mean": np.arange(6, dtype=np.float32).reshape(2, 3),
        "key": np.array([1, 2, 3], dtype=np.int32),
        "html": np.frombuffer(b"<p>", dtype=np.uint8),
        "half": np.array([[0.5]], dtype=np.float16),
        "none": np.zeros((0, 4), dtype=np.float32),
    }
    found = unpacked(packed(Answer({"text": "Straße ☃", "n": [1, {"a": None}]}, arrays)))
    assert found.values == {"text": "Straße ☃", "n": [1, {"a": None}]}
    assert list(found.arrays) == list(arrays)
    for name, array in arrays.items():
        assert found.arrays[name].dtype == array.dtype
        assert np.array_equal(found.arrays[name], array)


def test_arrays_begin_at_multiples_of_eight_bytes() -> None:
    data = packed(Answer({"a": 1}, {"b": np.array([7], dtype=np.uint8), "c": np.array([2.5], dtype=np.float32)}))
    length = struct.unpack_from("<I", data)[0]
    first = -(-(4 + length) // 8) * 8
    assert data[first] == 7
    assert struct.unpack_from("<f", data, first + 8)[0] == 2.5
    assert len(data) == first + 16


def test_numbers_that_json_has_not_become_null() -> None:
    found = unpacked(packed(Answer({"a": [float("nan"), float("-inf"), 1.5], "b": np.float32(2.0)})))
    assert found.values == {"a": [None, None, 1.5], "b": 2.0}


def test_an_array_of_another_kind_is_refused_by_its_name() -> None:
    with pytest.raises(LoadError, match="arrays must be of float32, float16, int32, uint8 to be packed; w is float64"):
        packed(Answer({}, {"w": np.zeros(2)}))


def test_bytes_that_are_no_answer_are_refused_and_never_unpickled() -> None:
    with pytest.raises(LoadError, match="must begin with its header's length; got"):
        unpacked(pickle.dumps([1, 2, 3]))
    with pytest.raises(LoadError, match="got 0 of 2 bytes"):
        unpacked(b"ab")
    header = json.dumps({"values": {}, "arrays": [{"name": "a", "dtype": "object", "shape": [1]}]}).encode()
    with pytest.raises(LoadError, match="to be read; got 'object'"):
        unpacked(struct.pack("<I", len(header)) + header + bytes(16))
