"""Valid calls of `regard.weigh`; each normalizer is then used in a call of `attention`."""

from typing import Any

from regard import feature, weigh
from tests.sweeps.valid_calls.inputs import in_attention
from tests.sweeps.valid_calls.table import ValidCall, given


def named(name: str, *positional: Any, **keywords: Any) -> ValidCall:
    def arguments() -> Any:
        return given(*positional, **keywords)

    return ValidCall(f"regard.weigh.{name}", lambda: getattr(weigh, name), arguments, in_attention("weigh"))


CALLS = [
    named("softmax"),
    named("sink", 0.5),
    named("sigmoid", -1.0),
    named("relu", 0.5),
    named("sparsemax"),
    named("entmax", 1.5),
    named("top", 3),
    named("argmax"),
    named("gumbel", 0.5, seed=1),
    named("kernel", feature.elu()),
    named("sinkhorn", 3),
    named("as_weigh", weigh.softmax()),
]

LEFT_OUT: dict[str, str] = {
    "regard.weigh.Weigh": "made by the functions of the module; a class of one's own is in docs/tour.md"
}
