"""Valid calls of `regard.measure`; each measure is then computed on weights."""

from typing import Any

from regard import mask, measure
from tests.sweeps.valid_calls.inputs import in_weights
from tests.sweeps.valid_calls.table import ValidCall, args


def valid_call(name: str, *positional: Any) -> ValidCall:
    return ValidCall(f"regard.measure.{name}", lambda: getattr(measure, name), lambda: args(*positional), in_weights)


CALLS = [valid_call("topk", 2), valid_call("pooled_map", 3, 3), valid_call("mass", mask.causal())]

LEFT_OUT = {
    f"regard.measure.{name}": "made and called by the pass over the weights"
    for name in ("Measure", "Measurements", "MeasureState", "PooledMap", "TopKWeights", "WeightTile")
}
