"""The backends of this installation, in the order in which they are tried."""

from regard.backends.flex.backend import FlexBackend
from regard.backends.native.backend import NativeBackend, float32_build
from regard.backends.protocol import Backend, SupportsFastPath, SupportsWeightTiles
from regard.backends.reference import ReferenceBackend
from regard.backends.shared.weight_tiles import TorchWeightTiles, WeightInputs, WeightTileSource
from regard.backends.tiled import TiledBackend
from regard.plan.choose import Plan

_TILED = TiledBackend()
NATIVE = NativeBackend(fallback=_TILED)
NATIVE_FLOAT32 = NativeBackend(fallback=_TILED, build=float32_build(), name="native_float32")
BACKENDS: tuple[Backend, ...] = (
    NATIVE,
    NATIVE_FLOAT32,
    FlexBackend(fallback=_TILED),
    _TILED,
    ReferenceBackend(),
)
BACKENDS_BY_NAME = {backend.name: backend for backend in BACKENDS}
FAST_PATH_BACKENDS = {backend.name: backend for backend in BACKENDS if isinstance(backend, SupportsFastPath)}


def available_backends() -> tuple[str, ...]:
    """Return the names of the backends, in the order in which they are tried.

    `reference`, and `flex` on the CPU, store every score and run only if they are requested by name. One more name may
    be requested, `native_float32`: the backend `native` with products in float32, also of bfloat16 inputs.

    >>> "tiled" in available_backends()
    True
    """
    return tuple(name for name in BACKENDS_BY_NAME if name != NATIVE_FLOAT32.name)


def weight_tile_source(plan: Plan, weight_inputs: WeightInputs) -> WeightTileSource:
    """The source of tiles of the attention matrix: the planned backend's own kernel, or torch operations."""
    backend, spec, statistic = BACKENDS_BY_NAME[plan.backend], weight_inputs.spec, weight_inputs.statistic
    source = None
    if isinstance(backend, SupportsWeightTiles) and statistic is not None:
        source = backend.weight_tiles(spec, weight_inputs.inputs, plan.tiling, statistic)
    return source or TorchWeightTiles(weight_inputs, _TILED.tiling(spec))
