"""Tests with a `backend` argument run once for each available backend."""

import pytest

import regard


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "backend" in metafunc.fixturenames:
        metafunc.parametrize("backend", regard.available_backends())
