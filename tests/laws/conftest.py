"""Every law with a `backend` argument runs on each backend of the library, and on `tiled` once more in small tiles.

The problems of hypothesis are smaller than a tile of the library. Small tiles split them, so that the laws also cover
the borders between tiles.
"""

from collections.abc import Iterator

import pytest

import regard
from regard.backends.tiled import TiledBackend
from regard.plan.tiling import Tiling

# On the CPU `flex` runs the eager definition of its kernels, about 10 ms per call and 60 ms with gradients.
LONG_ON_FLEX = ("test_determinism", "test_gradients", "test_hidden_pairs", "test_memory")


class InSmallTiles(str):
    """The name of a backend that runs in tiles of a few rows and columns."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "backend" not in metafunc.fixturenames or _is_parametrized(metafunc):
        return
    is_long = metafunc.module.__name__.rpartition(".")[2] in LONG_ON_FLEX
    backends = [
        pytest.param(name, id=name, marks=[pytest.mark.long] if is_long and name == "flex" else [])
        for name in regard.available_backends()
    ]
    is_generated = hasattr(metafunc.function, "hypothesis")
    has_several_tiles = "tile" in metafunc.function.__name__
    if is_generated and not has_several_tiles:
        backends.append(pytest.param(InSmallTiles("tiled"), id="tiled in small tiles"))
    metafunc.parametrize("backend", backends)


def _is_parametrized(metafunc: pytest.Metafunc) -> bool:
    marks = metafunc.definition.iter_markers("parametrize")
    return any("backend" in mark.args[0].replace(" ", "").split(",") for mark in marks)


@pytest.fixture(autouse=True)
def small_tiles(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    callspec = getattr(request.node, "callspec", None)
    if callspec is None or not isinstance(callspec.params.get("backend"), InSmallTiles):
        yield
        return
    regard.clear_caches()  # plans of equal calls have the usual tiles
    monkeypatch.setattr(TiledBackend, "tiling", lambda self, spec: Tiling(3, 4, 40, 8))
    yield
    regard.clear_caches()
