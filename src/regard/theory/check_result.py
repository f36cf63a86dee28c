"""The result of a check of a layer, and its violations."""

from dataclasses import dataclass
from typing import NamedTuple


class Violation(NamedTuple):
    """An output that violates the property, the input that causes it, the sequence length, and the error."""

    output_index: int | tuple[int, ...]
    input_index: int | None
    seq_len: int
    error: float


@dataclass(frozen=True)
class CheckResult:
    """The result of a check of a layer: whether the property `property_name` `holds`.

    `max_error` is the largest error relative to the outputs, and `tolerance` the largest that is allowed. `violations`
    are sorted by their errors, the largest first.
    """

    property_name: str
    holds: bool
    max_error: float
    tolerance: float
    violations: tuple[Violation, ...] = ()

    def __str__(self) -> str:
        """Return the verdict and the first violations as text.

        >>> print(CheckResult("no output changes with a later input", False, 0.25, 1e-12, (Violation(3, 4, 8, 0.25),)))
        does not hold: no output changes with a later input; error 0.25, tolerance 1e-12
          output 3, input 4, of 8 positions: error 0.25
        """
        verdict = "holds" if self.holds else "does not hold"
        lines = [f"{verdict}: {self.property_name}; error {self.max_error:.3g}, tolerance {self.tolerance:.3g}"]
        for violation in self.violations[:5]:
            source = "" if violation.input_index is None else f", input {violation.input_index}"
            place = f"output {violation.output_index}{source}, of {violation.seq_len} positions"
            lines.append(f"  {place}: error {violation.error:.3g}")
        if len(self.violations) > 5:
            lines.append(f"  and {len(self.violations) - 5} more")
        return "\n".join(lines)
