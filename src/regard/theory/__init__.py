"""The mathematics of attention as experiments: formulas compared with values that the library computes.

>>> from regard import theory
>>> print(theory.score_scaling(num_keys=256, num_samples=2000).is_consistent)
True
"""

from regard.theory.check_result import CheckResult, Violation
from regard.theory.experiment import Experiment, Slider
from regard.theory.experiment_result import Claim, ExperimentResult
from regard.theory.experiments.bottleneck import bottleneck
from regard.theory.experiments.complexity import complexity
from regard.theory.experiments.equivariance import equivariance
from regard.theory.experiments.gradient_flow import gradient_flow
from regard.theory.experiments.gradients import gradients
from regard.theory.experiments.heat_diffusion import heat_diffusion
from regard.theory.experiments.kernel_methods import kernel_methods
from regard.theory.experiments.rank_collapse import rank_collapse
from regard.theory.experiments.score_scaling import score_scaling
from regard.theory.experiments.shaped_attention import shaped_attention
from regard.theory.experiments.token_clustering import token_clustering
from regard.theory.layer_checks import (
    check_batch_independence,
    check_causality,
    check_equivariance,
    check_normalized,
    position_influence,
)
from regard.theory.registry import get_experiment, list_experiments
from regard.theory.residual_gradients import PathNorms, gradient_path_norms

__all__ = [
    "CheckResult",
    "Claim",
    "Experiment",
    "ExperimentResult",
    "PathNorms",
    "Slider",
    "Violation",
    "bottleneck",
    "check_batch_independence",
    "check_causality",
    "check_equivariance",
    "check_normalized",
    "complexity",
    "equivariance",
    "get_experiment",
    "gradient_flow",
    "gradient_path_norms",
    "gradients",
    "heat_diffusion",
    "kernel_methods",
    "list_experiments",
    "position_influence",
    "rank_collapse",
    "score_scaling",
    "shaped_attention",
    "token_clustering",
]


def __dir__() -> list[str]:
    return sorted(__all__)
