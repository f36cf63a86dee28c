"""Valid calls of `regard.cost`."""

from typing import Any

from regard import cost
from tests.sweeps.valid_calls.table import ValidCall, args

FORWARD = cost.attention(8, 8, 4)


def valid_call(name: str, *positional: Any, **keywords: Any) -> ValidCall:
    return ValidCall(f"regard.cost.{name}", lambda: getattr(cost, name), lambda: args(*positional, **keywords))


CALLS = [
    valid_call("causal_pairs", 6, 8),
    valid_call("attention", 6, 8, 4),
    valid_call("softmax", 6, 8),
    valid_call("additive_scores", 6, 8, 4),
    valid_call("projections", 6, 8, 4),
    valid_call("feed_forward", 6, 4),
    valid_call("lm_head", 6, 4, 100),
    valid_call("layer", 6, 4),
    valid_call("crossover_length", cost.layer(6, 4), 6),
    valid_call("backward", FORWARD),
    valid_call("training", FORWARD),
    valid_call("six_n_d", 100, 10),
    valid_call("attention_weights_bytes", 6, 8),
    valid_call("activation_bytes", 6, 4, 2),
    valid_call("kv_cache_bytes", 6, num_layers=2, num_kv_heads=2, head_dim=4),
    valid_call("decode_intensity", 4, 2),
    valid_call("layer_parameters", 8),
    valid_call("gpt2_parameters"),
    valid_call("vit_parameters"),
]

LEFT_OUT: dict[str, str] = {
    "regard.cost.Flops": "a result, made by the functions of the module",
    "regard.cost.Complexity": "a row of the table COMPLEXITIES",
}
