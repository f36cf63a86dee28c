"""Valid calls of `regard.score`; each score or modifier is then used in a call of `attention`."""

from typing import Any

import torch

from regard import score
from tests.sweeps.valid_calls.inputs import in_attention, numbers, qkv
from tests.sweeps.valid_calls.table import ValidCall, args

NUMBERS = "-2.5|nan|list of -1|list of nan"  # any number is valid in a tensor that is added to scores


def valid_call(
    name: str, *positional: Any, use: str | None = "score", accepts: dict[str, str] | None = None, **keywords: Any
) -> ValidCall:
    def arguments() -> Any:
        return args(*positional, **keywords)

    return ValidCall(
        f"regard.score.{name}",
        lambda: getattr(score, name),
        arguments,
        in_attention(use) if use else None,
        accepts or {},
    )


CALLS = [
    valid_call("dot"),
    valid_call("scaled_dot", 0.5),
    valid_call("cosine", 2.0),
    valid_call("gaussian", 1.5),
    valid_call("mahalanobis", torch.eye(8)),
    valid_call("bilinear", numbers(8, 8)),
    valid_call("additive", numbers(8, 4), numbers(8, 4), numbers(4), numbers(4)),
    valid_call("custom", lambda q, k: q @ k.mT),
    valid_call("modifier", lambda s, b, h, i, j: s - i + j),
    valid_call("alibi", torch.tensor([0.5, 0.25]), accepts={"slopes": NUMBERS}),
    valid_call("softcap", 20.0),
    valid_call("bias", numbers(6, 6), accepts={"values": NUMBERS}),
    valid_call("t5_bias", numbers(32, 2)),
    valid_call("shaw_keys", numbers(7, 8)),
    valid_call("shaw_values", numbers(7, 8), use="value"),
    valid_call("rotary", qkv()[0], qkv()[1], torch.arange(6), use=None),
    ValidCall(
        "regard.score.Score.then", lambda: score.dot().then, lambda: args(score.softcap(3.0)), in_attention("score")
    ),
]

LEFT_OUT: dict[str, str] = dict.fromkeys(
    ("regard.score.Score", "regard.score.ScoreModifier"), "made by the functions of the module"
)
