"""Valid calls of `regard.mask`; each mask is then used in a call of `attention`."""

from typing import Any

import torch

from regard import mask
from tests.sweeps.valid_calls.inputs import in_attention
from tests.sweeps.valid_calls.table import ValidCall, given


def named(name: str, *positional: Any, **keywords: Any) -> ValidCall:
    def arguments() -> Any:
        return given(*positional, **keywords)

    return ValidCall(f"regard.mask.{name}", lambda: getattr(mask, name), arguments, in_attention("mask"))


def method(name: str) -> ValidCall:
    return ValidCall(f"regard.mask.Mask.{name}", lambda: getattr(mask.causal(), name), lambda: given(6, 6))


CALLS = [
    named("where", lambda b, h, i, j: j <= i),
    named("tensor", torch.ones(6, 6, dtype=torch.bool)),
    named("causal"),
    named("window", 3),
    named("dilated", 2, 2),
    named("blocks", 2),
    named("strided", 2),
    named("fixed", 2),
    named("padding", torch.tensor([4])),
    named("documents", torch.tensor([0, 0, 0, 1, 1, 1])),
    named("prefix", 2),
    named("tokens", torch.tensor([0, 3])),
    named("random_blocks", 2, 1),
    named("longformer", 2, [0]),
    named("bigbird", 2),
    named("as_mask", torch.ones(6, 6, dtype=torch.bool)),
    method("density"),
    method("regions"),
    method("dense"),
    method("picture"),
]

LEFT_OUT: dict[str, str] = {
    "regard.mask.Mask": "made by the functions of the module",
    "regard.mask.broadcast_lookup": "shared with score.bias, which checks its argument first",
    "regard.mask.from_term": "called by readers of files, which check the term",
}
