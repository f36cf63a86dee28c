"""Valid calls of `regard.mask`; each mask is then used in a call of `attention`."""

from typing import Any

import torch

from regard import mask
from tests.sweeps.valid_calls.inputs import in_attention
from tests.sweeps.valid_calls.table import ValidCall, args


def valid_call(name: str, *positional: Any, **keywords: Any) -> ValidCall:
    def arguments() -> Any:
        return args(*positional, **keywords)

    return ValidCall(f"regard.mask.{name}", lambda: getattr(mask, name), arguments, in_attention("mask"))


def method(name: str) -> ValidCall:
    return ValidCall(f"regard.mask.Mask.{name}", lambda: getattr(mask.causal(), name), lambda: args(6, 6))


CALLS = [
    valid_call("from_function", lambda b, h, i, j: j <= i),
    valid_call("tensor", torch.ones(6, 6, dtype=torch.bool)),
    valid_call("causal"),
    valid_call("sliding_window", 3),
    valid_call("dilated", 2, 2),
    valid_call("chunked", 2),
    valid_call("strided", 2),
    valid_call("fixed", 2),
    valid_call("padding", torch.tensor([4])),
    valid_call("document", torch.tensor([0, 0, 0, 1, 1, 1])),
    valid_call("prefix", 2),
    valid_call("global_tokens", torch.tensor([0, 3])),
    valid_call("random_blocks", 2, 1),
    valid_call("longformer", 2, [0]),
    valid_call("bigbird", 2),
    valid_call("as_mask", torch.ones(6, 6, dtype=torch.bool)),
    method("density"),
    method("tile_coverage"),
    method("to_dense"),
    method("render_text"),
]

LEFT_OUT: dict[str, str] = {
    "regard.mask.Mask": "made by the functions of the module",
}
