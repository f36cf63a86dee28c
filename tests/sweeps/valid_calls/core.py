"""Valid calls of `regard` itself: attention and its variants, merge, results and their weights, masks' own methods."""

from typing import Any

import regard
from regard import attend, measure
from tests.sweeps.valid_calls.inputs import numbers, qkv
from tests.sweeps.valid_calls.table import Arguments, ValidCall, given


def packed() -> Arguments:
    q, k, v = (numbers(7, 2, 8, seed=seed).transpose(0, 1)[0] for seed in range(3))
    return given(q, k, v, [3, 4])


def parts() -> Arguments:
    halves = [attend(*qkv()), attend(*qkv())]
    return given(*((one.output, one.lse) for one in halves))


def named(name: str, arguments: Any = lambda: given(*qkv())) -> ValidCall:
    return ValidCall(f"regard.{name}", lambda: getattr(regard, name), arguments)


CALLS = [
    named("attention"),
    named("attend"),
    named("explain"),
    named("attention_packed", packed),
    named("merge", parts),
    named("compare", lambda: given(*qkv(), {}, {"mask": regard.mask.causal()}, rounds=1)),
    named("steps", lambda: given(*(x[0, 0, :3, :2] for x in qkv()))),
    named("engines", lambda: given()),
    named("clear_caches", lambda: given()),
    named("mechanisms", lambda: given()),
    named("replacing_sdpa", lambda: given()),
    named("scaled_dot_product_attention"),
    ValidCall("regard.Weights.__getitem__", lambda: attend(*qkv()).weights.__getitem__, lambda: given((0, 1, 2))),
    ValidCall("regard.Weights.measure", lambda: attend(*qkv()).weights.measure, lambda: given(measure.entropy)),
    ValidCall("regard.Weights.dense", lambda: attend(*qkv()).weights.dense, lambda: given()),
]

LEFT_OUT = {
    "regard.Attended": "a result, made by attend",
    "regard.look": "opens the explorer; tests/explorer",
}
