"""Valid calls of `regard.feature`; each feature map is then used in `linear_attention`."""

from typing import Any

import torch

from regard import feature
from regard.mechanism.linear import linear_attention
from tests.sweeps.valid_calls.inputs import qkv
from tests.sweeps.valid_calls.table import ValidCall, given


def use(features: Any) -> Any:
    return linear_attention(*qkv(), features=features)


def named(name: str, *positional: Any, **keywords: Any) -> ValidCall:
    def arguments() -> Any:
        return given(*positional, **keywords)

    return ValidCall(f"regard.feature.{name}", lambda: getattr(feature, name), arguments, use)


CALLS = [
    named("elu"),
    named("relu"),
    named("cosformer", 16),
    named("favor", 8, 16, seed=1),
    named("as_features", torch.exp),
]

CLASSES = ("FeatureMap", "Cosformer", "Elu", "Favor", "Given", "Kernel", "Relu")
LEFT_OUT = {f"regard.feature.{name}": "made by the functions of the module" for name in CLASSES} | {
    "regard.feature.orthogonal": "called by favor",
}
