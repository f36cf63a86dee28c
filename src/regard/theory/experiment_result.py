"""The result of an experiment: expected values of formulas, actual values, and whether they agree."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.errors import ArgumentError
from regard.plot.chart_panels import ImagePanel, Panel, PointAnimation, charts

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Relation = Literal["equal", "at most", "at least"]


ClaimValues: TypeAlias = Tensor | NDArray[Any] | Sequence[Tensor] | Sequence[float] | float


@dataclass(frozen=True, eq=False, init=False)
class Claim:
    """A statement about numbers: `expected` from a formula, `actual` from a computation.

    The claim holds if no error exceeds `tolerance`; `tolerance_reason` explains its size. For a bound, `relation` is
    "at most" or "at least": actual is at most, or at least, expected.

    >>> claim = Claim("one and one are two", 2.0, 1.0 + 1.0, tolerance=0.0, tolerance_reason="integers are exact")
    >>> claim.holds, claim.max_error
    (True, 0.0)
    """

    statement: str
    expected: Tensor
    actual: Tensor
    tolerance: float
    tolerance_reason: str
    relation: Relation = "equal"

    def __init__(
        self,
        statement: str,
        expected: ClaimValues,
        actual: ClaimValues,
        tolerance: float,
        tolerance_reason: str,
        relation: Relation = "equal",
    ) -> None:
        expected, actual = (_to_float64(values) for values in (expected, actual))
        if expected.shape != actual.shape:
            raise ArgumentError(
                f"expected and actual must have the same shape; got {tuple(expected.shape)} and "
                f"{tuple(actual.shape)}, for: {statement}."
            )
        fields = (statement, expected, actual, tolerance, tolerance_reason, relation)
        for name, value in zip(self.__dataclass_fields__, fields, strict=True):
            object.__setattr__(self, name, value)

    @property
    def max_error(self) -> float:
        """The largest difference that violates the relation; NaN if any number is NaN."""
        errors = self.actual - self.expected
        if self.relation == "equal":
            errors = errors.abs()
        elif self.relation == "at least":
            errors = -errors
        return float(errors.clamp(min=0).max()) if errors.numel() else 0.0

    @property
    def holds(self) -> bool:
        return self.max_error <= self.tolerance  # false for NaN


@dataclass(frozen=True, eq=False)
class ExperimentResult:
    """The result of an experiment.

    All `claims` should hold. `false_claims` are plausible formulas, some of them published; none of them should hold.
    `panels` are charts, `animation` shows moving points or is None, `data` has the numbers by name, and `settings` are
    the settings of the run.
    """

    name: str
    claims: tuple[Claim, ...]
    false_claims: tuple[Claim, ...]
    panels: tuple[Panel | ImagePanel, ...]
    settings: Mapping[str, float]
    data: Mapping[str, Tensor] = field(default_factory=dict)
    animation: PointAnimation | None = None

    @property
    def is_consistent(self) -> bool:
        """Whether every claim holds and no false claim does."""
        return all(claim.holds for claim in self.claims) and not any(claim.holds for claim in self.false_claims)

    def plot(self) -> "Figure":
        """Return the charts as a matplotlib figure. Needs matplotlib: `pip install '.[plot]'` in the repository."""
        return charts(self.panels)

    def __str__(self) -> str:
        """Return two lines per claim: the verdict and the statement, then the error and the tolerance."""
        lines = [self.name]
        for claims, kind in ((self.claims, ""), (self.false_claims, "false claim: ")):
            for claim in claims:
                verdict = "holds " if claim.holds else "fails "
                lines.append(f"  {verdict} {kind}{claim.statement}")
                lines.append(
                    f"          error {claim.max_error:.3g}, tolerance {claim.tolerance:.3g}: {claim.tolerance_reason}"
                )
        return "\n".join(lines)


def _to_float64(values: ClaimValues) -> Tensor:
    if isinstance(values, (list, tuple)) and values and isinstance(values[0], Tensor):
        values = torch.stack(tuple(values))
    # without a dtype, numbers would become float32 and lose half of their digits
    tensor = values if isinstance(values, Tensor) else torch.as_tensor(values, dtype=torch.float64)
    return tensor.detach().to("cpu", torch.float64)
