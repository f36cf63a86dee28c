"""An experiment: a function with settings, what its settings may be, and how it is run."""

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, ParamSpec

from regard import checks
from regard.errors import SpecError
from regard.theory.outcome import Outcome

Progress = Callable[[float], None]  # called with the share of the work that is done
P = ParamSpec("P")
MAX_SETTING = 10**6


def check_settings(function: Callable[P, Outcome]) -> Callable[P, Outcome]:
    """The experiment, which refuses settings that are not numbers above 0, and whole ones where its own are whole."""
    defaults = {name: parameter.default for name, parameter in inspect.signature(function).parameters.items()}

    @wraps(function)
    def run(*args: P.args, **settings: P.kwargs) -> Outcome:
        for name, value in settings.items():
            if name in defaults:
                _check_setting(name, value, defaults[name])
        return function(*args, **settings)

    return run


def _check_setting(name: str, value: Any, default: Any) -> None:
    if name == "seed":
        checks.seed(value)
    elif name == "progress":
        if value is not None:
            checks.function(value, "progress", "of the share of the work that is done")
    elif isinstance(default, int):
        checks.whole_number(value, name, at_least=1, at_most=MAX_SETTING)
    else:
        checks.finite_number(value, name, above=0, at_most=MAX_SETTING)


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
