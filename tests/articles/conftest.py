"""Every test here that takes an `engine` runs once for each engine of the library."""

import pytest

import regard


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "engine" in metafunc.fixturenames:
        metafunc.parametrize("engine", regard.engines())
