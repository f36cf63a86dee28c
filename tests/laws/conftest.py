"""Every law that takes an `engine` runs once for each engine of the library, and on `tiled` once more in small tiles.

The shapes that hypothesis makes are small, and the tiles of the library are not: without small tiles most of these
problems would be a single tile, and nothing would be seen of what happens between two of them.
"""

import pytest

import regard
from regard.engine.tiled import Tiled
from regard.plan.blocks import Tiles

# On the CPU `fused` runs torch's definition of its kernels, some 10 ms for a call and 60 with gradients.
LONG_ON_FUSED = ("test_determinism", "test_gradients", "test_hidden", "test_memory")


class InSmallTiles(str):
    """The name of an engine that is to run in tiles of a few rows and columns."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "engine" not in metafunc.fixturenames:
        return
    long = metafunc.module.__name__.rpartition(".")[2] in LONG_ON_FUSED
    engines = [
        pytest.param(name, id=name, marks=[pytest.mark.long] if long and name == "fused" else [])
        for name in regard.engines()
    ]
    shapes_are_made = hasattr(metafunc.function, "hypothesis")
    crosses_tiles_anyway = "tile" in metafunc.function.__name__
    if shapes_are_made and not crosses_tiles_anyway:
        engines.append(pytest.param(InSmallTiles("tiled"), id="tiled in small tiles"))
    metafunc.parametrize("engine", engines)


@pytest.fixture(autouse=True)
def small_tiles(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = getattr(request.node, "callspec", None)
    if chosen is not None and isinstance(chosen.params.get("engine"), InSmallTiles):
        monkeypatch.setattr(Tiled, "tiles", lambda engine, spec: Tiles(3, 4, 40, 8))
