"""Valid calls of `regard.cost`."""

from typing import Any

from regard import cost
from tests.sweeps.valid_calls.table import ValidCall, given

FORWARD = cost.attention(8, 8, 4)


def named(name: str, *positional: Any, **keywords: Any) -> ValidCall:
    return ValidCall(f"regard.cost.{name}", lambda: getattr(cost, name), lambda: given(*positional, **keywords))


CALLS = [
    named("causal_pairs", 6, 8),
    named("attention", 6, 8, 4),
    named("softmax", 6, 8),
    named("additive_scores", 6, 8, 4),
    named("projections", 6, 8, 4),
    named("feed_forward", 6, 4),
    named("vocabulary", 6, 4, 100),
    named("layer", 6, 4),
    named("crossing", cost.layer(6, 4), 6),
    named("backward", FORWARD),
    named("training", FORWARD),
    named("six_n_d", 100, 10),
    named("stored_weights", 6, 8),
    named("activations", 6, 4, 2),
    named("cache", 6, layers=2, key_heads=2, head_width=4),
    named("decode_intensity", 4, 2),
    named("block_parameters", 8),
    named("gpt2_parameters"),
    named("vit_parameters"),
]

LEFT_OUT: dict[str, str] = {
    "regard.cost.Flops": "a result, made by the functions of the module",
    "regard.cost.Growth": "a row of the table GROWTH",
}
