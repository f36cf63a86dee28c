"""Valid calls of the functions of `regard` itself, and of the methods of attention weights."""

from typing import Any

import regard
from regard import attention_with_weights, measure
from tests.sweeps.valid_calls.inputs import numbers, qkv
from tests.sweeps.valid_calls.table import Arguments, ValidCall, args


def varlen() -> Arguments:
    q, k, v = (numbers(7, 2, 8, seed=seed).transpose(0, 1)[0] for seed in range(3))
    return args(q, k, v, [3, 4])


def partial_results() -> Arguments:
    halves = [attention_with_weights(*qkv()), attention_with_weights(*qkv())]
    return args(*((half.output, half.lse) for half in halves))


def valid_call(name: str, arguments: Any = lambda: args(*qkv())) -> ValidCall:
    return ValidCall(f"regard.{name}", lambda: getattr(regard, name), arguments)


CALLS = [
    valid_call("attention"),
    valid_call("attention_with_weights"),
    valid_call("explain"),
    valid_call("attention_varlen", varlen),
    valid_call("merge_states", partial_results),
    valid_call("compare", lambda: args(*qkv(), {}, {"mask": regard.mask.causal()}, rounds=1)),
    valid_call("steps", lambda: args(*(x[0, 0, :3, :2] for x in qkv()))),
    valid_call("available_backends", lambda: args()),
    valid_call("clear_caches", lambda: args()),
    valid_call("override_sdpa", lambda: args()),
    valid_call("scaled_dot_product_attention"),
    ValidCall(
        "regard.weights.Weights.__getitem__",
        lambda: attention_with_weights(*qkv()).weights.__getitem__,
        lambda: args((0, 1, 2)),
    ),
    ValidCall(
        "regard.weights.Weights.measure",
        lambda: attention_with_weights(*qkv()).weights.measure,
        lambda: args(measure.entropy),
    ),
    ValidCall(
        "regard.weights.Weights.to_dense", lambda: attention_with_weights(*qkv()).weights.to_dense, lambda: args()
    ),
]

LEFT_OUT = {
    "regard.AttentionResult": "returned by attention_with_weights",
    "regard.explore": "opens the explorer; tests/explorer",
}
