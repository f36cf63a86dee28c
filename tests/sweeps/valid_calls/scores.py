"""Valid calls of `regard.score`; each score or rule is then used in a call of `attention`."""

from typing import Any

import torch

from regard import score
from tests.sweeps.valid_calls.inputs import in_attention, numbers, qkv
from tests.sweeps.valid_calls.table import ValidCall, given

NUMBERS = "-2.5|nan|list of -1|list of nan"  # of a tensor that is added to scores any number may be meant


def named(
    name: str, *positional: Any, use: str | None = "score", accepts: dict[str, str] | None = None, **keywords: Any
) -> ValidCall:
    def arguments() -> Any:
        return given(*positional, **keywords)

    return ValidCall(
        f"regard.score.{name}",
        lambda: getattr(score, name),
        arguments,
        in_attention(use) if use else None,
        accepts or {},
    )


CALLS = [
    named("dot"),
    named("scaled_dot", 0.5),
    named("cosine", 2.0),
    named("metric", 1.5),
    named("mahalanobis", torch.eye(8)),
    named("multiplicative", numbers(8, 8)),
    named("additive", numbers(8, 4), numbers(8, 4), numbers(4), numbers(4)),
    named("custom", lambda q, k: q @ k.mT),
    named("rule", lambda s, b, h, i, j: s - i + j),
    named("alibi", torch.tensor([0.5, 0.25]), accepts={"slopes": NUMBERS}),
    named("softcap", 20.0),
    named("bias", numbers(6, 6), accepts={"values": NUMBERS}),
    named("relative", numbers(32, 2)),
    named("shaw_keys", numbers(7, 8)),
    named("shaw_values", numbers(7, 8), use="value"),
    named("rotary", qkv()[0], qkv()[1], torch.arange(6), use=None),
    ValidCall(
        "regard.score.Score.then", lambda: score.dot().then, lambda: given(score.softcap(3.0)), in_attention("score")
    ),
]

LEFT_OUT: dict[str, str] = {}
