"""Valid calls of `regard.feature_map`; each feature map is then used in `linear_attention`."""

from typing import Any

import torch

from regard import feature_map
from regard.mechanisms.linear import linear_attention
from tests.sweeps.valid_calls.inputs import qkv
from tests.sweeps.valid_calls.table import ValidCall, args


def use(features: Any) -> Any:
    return linear_attention(*qkv(), feature_map=features)


def valid_call(name: str, *positional: Any, **keywords: Any) -> ValidCall:
    def arguments() -> Any:
        return args(*positional, **keywords)

    return ValidCall(f"regard.feature_map.{name}", lambda: getattr(feature_map, name), arguments, use)


CALLS = [
    valid_call("elu"),
    valid_call("relu"),
    valid_call("cosformer", 16),
    valid_call("favor", 8, 16, seed=1),
    valid_call("as_feature_map", torch.exp),
]

LEFT_OUT = {"regard.feature_map.FeatureMap": "made by the functions of the module"}
