"""An experiment: a function with settings, what its settings may be, and how it is run."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from regard.errors import SpecError
from regard.theory.outcome import Outcome

Progress = Callable[[float], None]  # told the share of the work that is done


@dataclass(frozen=True)
class Slider:
    """A setting that a person may move: from `low` to `high` in steps; whole numbers where these are."""

    name: str
    about: str
    low: float
    high: float
    step: float

    @property
    def whole(self) -> bool:
        return all(isinstance(number, int) for number in (self.low, self.high, self.step))


@dataclass(frozen=True, eq=False)
class Experiment:
    """One claim of the articles, or several that belong together, as something to run.

    `function` takes its settings and `seed` and `progress` by name. `quick` has settings that make it run in moments.
    """

    name: str
    about: str
    function: Callable[..., Outcome]
    sliders: tuple[Slider, ...] = ()
    quick: Mapping[str, Any] = field(default_factory=dict)

    def run(self, *, seed: int = 0, progress: Progress | None = None, **settings: Any) -> Outcome:
        """Its outcome with these settings; the others stay as they are."""
        known = {slider.name: slider for slider in self.sliders}
        for name, value in settings.items():
            slider = known.get(name)
            if slider is None:
                names = ", ".join(known) or "none but seed"
                raise SpecError(f"{self.name} has the settings {names}; got {name!r}.")
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
                raise SpecError(f"{name} must be a number from {slider.low:g} to {slider.high:g}; got {value!r}.")
            if slider.whole and value != int(value):
                raise SpecError(f"{name} must be a whole number; got {value:g}.")
            if not slider.low <= value <= slider.high:
                raise SpecError(f"{name} must be from {slider.low:g} to {slider.high:g}; got {value:g}.")
            settings[name] = int(value) if slider.whole else float(value)
        return self.function(seed=seed, progress=progress, **settings)
