"""Valid calls of `regard.theory`: the checks of a layer, and the experiments with small settings."""

from typing import Any

import torch

from regard import theory
from tests.sweeps.valid_calls.inputs import numbers
from tests.sweeps.valid_calls.table import Arguments, Enough, ValidCall, args


def stop(fraction: float) -> None:
    raise Enough


SMALL: dict[str, dict[str, Any]] = {
    "bottleneck": {"num_samples": 50},
    "rank_collapse": {"num_tokens": 4, "num_layers": 2},
    "complexity": {"embed_dim": 4, "num_tokens": 8, "window": 2},
    "equivariance": {"num_tokens": 4, "embed_dim": 4},
    "gradient_flow": {"num_tokens": 3, "time": 0.5},
    "gradients": {"num_tokens": 4, "embed_dim": 4, "num_layers": 2},
    "heat_diffusion": {"dim": 2, "time": 0.5},
    "kernel_methods": {"num_tokens": 8, "steps": 5},
    "score_scaling": {"num_keys": 64, "num_samples": 200},
    "shaped_attention": {"embed_dim": 16, "num_samples": 200},
}


def layer() -> Any:
    torch.manual_seed(0)
    return torch.nn.Linear(4, 4)


def valid_call(name: str, *positional: Any, **keywords: Any) -> ValidCall:
    def arguments() -> Arguments:
        return args(*(value() if isinstance(value, type(layer)) else value for value in positional), **keywords)

    return ValidCall(f"regard.theory.{name}", lambda: getattr(theory, name), arguments)


def quick(name: str) -> ValidCall:
    """An experiment that ends at the first report of its progress."""
    return ValidCall(
        f"regard.theory.{name}",
        lambda: getattr(theory, name),
        lambda: args(progress=stop, **SMALL[name]),
        skip={"progress": "the experiment would run to its end"},
    )


CALLS = [
    valid_call("check_causality", layer, 4, lengths=(1, 3)),
    valid_call("check_equivariance", layer, 4, lengths=(1, 3)),
    valid_call("check_batch_independence", layer, 4, lengths=(1, 3)),
    valid_call("check_normalized", torch.softmax(numbers(2, 3), -1)),
    valid_call("position_influence", layer, numbers(1, 3, 4)),
    valid_call("gradient_path_norms", lambda: torch.nn.TransformerEncoderLayer(4, 2, 8), numbers(3, 1, 4)),
    valid_call("get_experiment", "score_scaling"),
    valid_call("list_experiments"),
    *(quick(name) for name in SMALL),
]

LEFT_OUT = {
    **{
        f"regard.theory.{name}": "a result"
        for name in ("CheckResult", "Claim", "Experiment", "ExperimentResult", "PathNorms", "Slider", "Violation")
    },
    "regard.theory.token_clustering": "takes seconds with the smallest settings; tests/theory",
}
