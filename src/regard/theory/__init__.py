"""The mathematics of attention as experiments: what a formula says, beside what the library computes.

>>> from regard import theory
>>> print(theory.scaling(keys=512, samples=4000).agrees)
True
"""

from regard.theory.catalogue import experiment, experiments
from regard.theory.experiment import Experiment, Slider
from regard.theory.outcome import Claim, Outcome
from regard.theory.scaling import scaling

__all__ = ["Claim", "Experiment", "Outcome", "Slider", "experiment", "experiments", "scaling"]
