"""Valid calls of `regard.theory`: the checks of a layer, and the experiments with small settings."""

from typing import Any

import torch

from regard import theory
from tests.sweeps.valid_calls.inputs import numbers
from tests.sweeps.valid_calls.table import Arguments, Enough, ValidCall, given


def stop(share: float) -> None:
    raise Enough


SMALL: dict[str, dict[str, Any]] = {
    "bottleneck": {"samples": 50},
    "collapse": {"tokens": 4, "layers": 2},
    "complexity": {"width": 4, "tokens": 8, "window": 2},
    "equivariance": {"tokens": 4, "width": 4},
    "flow": {"tokens": 3, "time": 0.5},
    "gradients": {"tokens": 4, "width": 4, "layers": 2},
    "heat": {"width": 2, "time": 0.5},
    "kernels": {"tokens": 8, "steps": 5},
    "scaling": {"keys": 64, "samples": 200},
    "shaped": {"width": 16, "samples": 200},
}


def layer() -> Any:
    torch.manual_seed(0)
    return torch.nn.Linear(4, 4)


def named(name: str, *positional: Any, **keywords: Any) -> ValidCall:
    def arguments() -> Arguments:
        return given(*(one() if isinstance(one, type(layer)) else one for one in positional), **keywords)

    return ValidCall(f"regard.theory.{name}", lambda: getattr(theory, name), arguments)


def quick(name: str) -> ValidCall:
    """An experiment that ends at the first report of its progress."""
    return ValidCall(
        f"regard.theory.{name}",
        lambda: getattr(theory, name),
        lambda: given(progress=stop, **SMALL[name]),
        skip={"progress": "without it the whole experiment runs"},
    )


CALLS = [
    named("check_causality", layer, 4, lengths=(1, 3)),
    named("check_equivariance", layer, 4, lengths=(1, 3)),
    named("check_independence", layer, 4, lengths=(1, 3)),
    named("check_normalised", torch.softmax(numbers(2, 3), -1)),
    named("influence", layer, numbers(1, 3, 4)),
    named("gradient_path_norms", lambda: torch.nn.TransformerEncoderLayer(4, 2, 8), numbers(3, 1, 4)),
    named("experiment", "scaling"),
    named("experiments"),
    *(quick(name) for name in SMALL),
]

LEFT_OUT = {
    f"regard.theory.{name}": "a result"
    for name in ("Claim", "Experiment", "Finding", "Outcome", "PathNorms", "Place", "Slider")
} | {"regard.theory.clustering": "takes seconds with the smallest settings; tests/theory"}
