"""Valid calls of `regard.measure`; each measure is then taken of some weights."""

from typing import Any

from regard import mask, measure
from tests.sweeps.valid_calls.inputs import in_weights
from tests.sweeps.valid_calls.table import ValidCall, given


def named(name: str, *positional: Any) -> ValidCall:
    return ValidCall(f"regard.measure.{name}", lambda: getattr(measure, name), lambda: given(*positional), in_weights)


CALLS = [named("top", 2), named("pool", 3, 3), named("mass", mask.causal())]

LEFT_OUT = {
    f"regard.measure.{name}": "made and called by the pass over the weights"
    for name in ("Measure", "Measured", "Pooled", "Running", "Top", "WeightTile")
}
