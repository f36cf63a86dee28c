"""What an experiment gives back: what a formula says, what was computed, and whether they agree."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from regard.draw.charts import Image, Motion, Panel, charts
from regard.errors import SpecError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Relation = Literal["equal", "at most", "at least"]


@dataclass(frozen=True, eq=False)
class Claim:
    """A sentence with numbers on both sides: `predicted` by a formula, `found` by computing.

    They agree when no number is off by more than `within`; `because` says why that much. A bound is claimed by the
    relation: found is "at most" or "at least" what was predicted.

    >>> claim = Claim("one and one are two", 2.0, 1.0 + 1.0, within=0.0, because="whole numbers are exact")
    >>> claim.holds, claim.error
    (True, 0.0)
    """

    says: str
    predicted: Any
    found: Any
    within: float
    because: str
    relation: Relation = "equal"

    def __post_init__(self) -> None:
        predicted, found = (_numbers(values) for values in (self.predicted, self.found))
        if predicted.shape != found.shape:
            raise SpecError(
                f"what was predicted and found must have one shape; got {tuple(predicted.shape)} and "
                f"{tuple(found.shape)}, for: {self.says}."
            )
        object.__setattr__(self, "predicted", predicted)
        object.__setattr__(self, "found", found)

    @property
    def error(self) -> float:
        """The largest difference, of those that count for the relation; NaN where a number is missing."""
        off = self.found - self.predicted
        if self.relation == "equal":
            off = off.abs()
        elif self.relation == "at least":
            off = -off
        return float(off.clamp(min=0).max()) if off.numel() else 0.0

    @property
    def holds(self) -> bool:
        return self.error <= self.within  # false for NaN


@dataclass(frozen=True, eq=False)
class Outcome:
    """What came out of an experiment.

    `claims` should all hold. `wrong` are formulas that one could believe, some of them printed in articles; none of
    them holds. `panels` are its charts, `motion` what moves in it, `data` its numbers by name, and `settings` what it
    was run with.
    """

    name: str
    claims: tuple[Claim, ...]
    wrong: tuple[Claim, ...]
    panels: tuple[Panel | Image, ...]
    settings: Mapping[str, Any]
    data: Mapping[str, Tensor] = field(default_factory=dict)
    motion: Motion | None = None

    @property
    def agrees(self) -> bool:
        """Every claim holds, and no wrong formula does."""
        return all(claim.holds for claim in self.claims) and not any(claim.holds for claim in self.wrong)

    def picture(self) -> "Figure":
        """The charts, by matplotlib."""
        return charts(self.panels)

    def __str__(self) -> str:
        """One line a claim: whether it holds, what it says, by how much it was off."""
        lines = [self.name]
        for claims, kind in ((self.claims, ""), (self.wrong, "wrong formula: ")):
            for claim in claims:
                verdict = "holds " if claim.holds else "fails "
                lines.append(f"  {verdict} {kind}{claim.says}")
                lines.append(f"          off by {claim.error:.3g}, allowed {claim.within:.3g}: {claim.because}")
        return "\n".join(lines)


def _numbers(values: Tensor | Sequence[Any] | float) -> Tensor:
    if isinstance(values, (list, tuple)) and values and isinstance(values[0], Tensor):
        values = torch.stack(tuple(values))
    # made of numbers it would be float32 on the way, and lose half of their digits
    found = values if isinstance(values, Tensor) else torch.as_tensor(values, dtype=torch.float64)
    return found.detach().to("cpu", torch.float64)
