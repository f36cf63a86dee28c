"""Valid calls of `regard.normalizer`; each normalizer is then used in a call of `attention`."""

from typing import Any

from regard import feature_map, normalizer
from tests.sweeps.valid_calls.inputs import in_attention
from tests.sweeps.valid_calls.table import ValidCall, args


def valid_call(name: str, *positional: Any, **keywords: Any) -> ValidCall:
    def arguments() -> Any:
        return args(*positional, **keywords)

    return ValidCall(
        f"regard.normalizer.{name}", lambda: getattr(normalizer, name), arguments, in_attention("normalizer")
    )


CALLS = [
    valid_call("softmax"),
    valid_call("sink", 0.5),
    valid_call("sigmoid", -1.0),
    valid_call("relu", 0.5),
    valid_call("sparsemax"),
    valid_call("entmax", 1.5),
    valid_call("topk", 3),
    valid_call("hardmax"),
    valid_call("gumbel", 0.5, seed=1),
    valid_call("kernel", feature_map.elu()),
    valid_call("sinkhorn", 3),
    valid_call("as_normalizer", normalizer.softmax()),
]

LEFT_OUT: dict[str, str] = {
    "regard.normalizer.Normalizer": "made by the functions of the module; docs/tour.md shows a custom class"
}
