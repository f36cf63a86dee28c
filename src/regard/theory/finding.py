"""What a check of a layer found, and where."""

from dataclasses import dataclass
from typing import NamedTuple


class Place(NamedTuple):
    """Where it went wrong: which output, because of which input, in a text of this length, and by how much."""

    output: int | tuple[int, ...]
    input: int | None
    length: int
    error: float


@dataclass(frozen=True)
class Finding:
    """What a check found: whether the property holds, the largest error as a share of the outputs, and where it was.

    `places` are sorted by their errors, the largest first.
    """

    property: str
    holds: bool
    error: float
    within: float
    places: tuple[Place, ...] = ()

    def __str__(self) -> str:
        """A sentence, and the first places.

        >>> print(Finding("outputs see no later inputs", False, 0.25, 1e-12, (Place(3, 4, 8, 0.25),)))
        does not hold: outputs see no later inputs; off by 0.25, allowed 1e-12
          output 3, input 4, of 8 positions: off by 0.25
        """
        verdict = "holds" if self.holds else "does not hold"
        lines = [f"{verdict}: {self.property}; off by {self.error:.3g}, allowed {self.within:.3g}"]
        for place in self.places[:5]:
            source = "" if place.input is None else f", input {place.input}"
            lines.append(f"  output {place.output}{source}, of {place.length} positions: off by {place.error:.3g}")
        if len(self.places) > 5:
            lines.append(f"  and {len(self.places) - 5} more")
        return "\n".join(lines)
