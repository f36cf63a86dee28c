"""What a call gives back when it is kept open."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from regard.errors import SpecError
from regard.plan.choose import Plan
from regard.weights import Weights


@dataclass(frozen=True, eq=False)
class Attended:
    """The answer, open for inspection.

    `output` is what `attention` returns; `weights` gives any part of the attention matrix, computed when it is asked
    for; `plan` says how the answer was found; `statistic` has the number of each row that its weights follow from, if
    they need one; `seed` is the one dropout used.
    """

    output: Any
    weights: Weights
    seed: int
    statistic: Any

    @cached_property
    def plan(self) -> Plan:
        """How the answer was found, with the tiles that the mask left."""
        return self.weights.plan

    @property
    def lse(self) -> Any:
        """log sum exp of each row's scores: with it, answers for parts of the keys can be merged."""
        if self.weights.iterations > 1:
            raise SpecError(
                "lse must come from softmax or a sink; sinkhorn has one a row and one a column, and no lse."
            )
        normaliser = self.plan.spec.normaliser
        if normaliser.statistic != "lse":
            instead = f"has {normaliser.statistic}, in `statistic`" if normaliser.statistic else "has no row statistic"
            raise SpecError(f"lse must come from softmax or a sink; {normaliser.name} {instead}.")
        return self.statistic
