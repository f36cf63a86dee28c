"""The numbers that the unit tests of the page compare with are those that Python computes now."""

import json
import zlib
from base64 import b64decode
from typing import Any

import pytest

from regard.explorer.api.packing import unpack
from tests.explorer import frontend_numbers


def decode(text: str, *, is_compressed: bool) -> dict[str, Any]:
    """Return a packed response as JSON values; compressed bytes depend on the version of zlib."""
    data = b64decode(text)
    payload = unpack(zlib.decompress(data) if is_compressed else data)
    return {"values": payload.values, "arrays": {name: array.tolist() for name, array in payload.arrays.items()}}


def decoded(numbers: dict[str, Any]) -> dict[str, Any]:
    responses = {key: decode(text, is_compressed=True) for key, text in numbers["responses"].items()}
    responses["state{}"]["values"] = responses["state{}"]["values"]["sessions"]  # also has an id of the process
    packed = {name: decode(text, is_compressed=False) for name, text in numbers["packed"].items()}
    return {**numbers, "responses": responses, "packed": packed}


def assert_close(actual: Any, expected: Any, path: str) -> None:
    if isinstance(expected, dict):
        assert list(actual) == list(expected), path
        for name, value in expected.items():
            assert_close(actual[name], value, f"{path}.{name}")
    elif isinstance(expected, list):
        assert len(actual) == len(expected), path
        for n, value in enumerate(expected):
            assert_close(actual[n], value, f"{path}[{n}]")
    elif isinstance(expected, float):
        assert actual == pytest.approx(expected, rel=1e-5, abs=1e-6), path  # weights are float32
    else:
        assert actual == expected, path


def test_the_numbers_of_the_unit_tests_are_those_of_python() -> None:
    """If this fails after a change of a formula or an endpoint: run `python -m tests.explorer.frontend_numbers`."""
    committed = json.loads(frontend_numbers.PATH.read_text(encoding="utf8"))
    computed = json.loads(json.dumps(frontend_numbers.compute()))
    assert_close(decoded(computed), decoded(committed), "numbers")
