"""The mathematics of attention as experiments: what a formula says, beside what the library computes.

>>> from regard import theory
>>> print(theory.scaling(keys=256, samples=2000).agrees)
True
"""

from regard.theory.bottleneck import bottleneck
from regard.theory.catalogue import experiment, experiments
from regard.theory.checks import (
    check_causality,
    check_equivariance,
    check_independence,
    check_normalised,
    influence,
)
from regard.theory.clustering import clustering
from regard.theory.collapse import collapse
from regard.theory.complexity import complexity
from regard.theory.equivariance import equivariance
from regard.theory.experiment import Experiment, Slider
from regard.theory.finding import Finding, Place
from regard.theory.flow import flow
from regard.theory.gradients import gradients
from regard.theory.heat import heat
from regard.theory.kernels import kernels
from regard.theory.outcome import Claim, Outcome
from regard.theory.paths import PathNorms, gradient_path_norms
from regard.theory.scaling import scaling
from regard.theory.shaped import shaped

__all__ = [
    "Claim",
    "Experiment",
    "Finding",
    "Outcome",
    "PathNorms",
    "Place",
    "Slider",
    "bottleneck",
    "check_causality",
    "check_equivariance",
    "check_independence",
    "check_normalised",
    "clustering",
    "collapse",
    "complexity",
    "equivariance",
    "experiment",
    "experiments",
    "flow",
    "gradient_path_norms",
    "gradients",
    "heat",
    "influence",
    "kernels",
    "scaling",
    "shaped",
]
