"""An experiment: a function with settings, and the range of each setting."""

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, ParamSpec

from regard import checks
from regard.errors import ArgumentError
from regard.theory.experiment_result import ExperimentResult

ProgressCallback = Callable[[float], None]  # called with the completed fraction of the work
P = ParamSpec("P")
MAX_SETTING = 10**6


def check_settings(function: Callable[P, ExperimentResult]) -> Callable[P, ExperimentResult]:
    """Return the experiment with checks of its settings: positive numbers, integers where the defaults are integers."""
    defaults = {name: parameter.default for name, parameter in inspect.signature(function).parameters.items()}

    @wraps(function)
    def run(*args: P.args, **settings: P.kwargs) -> ExperimentResult:
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
            checks.function(value, "progress", "of the completed fraction of the work")
    elif isinstance(default, int):
        checks.integer(value, name, at_least=1, at_most=MAX_SETTING)
    else:
        checks.finite_number(value, name, above=0, at_most=MAX_SETTING)


@dataclass(frozen=True)
class Slider:
    """The range of the setting `name`, from `low` to `high` in steps of `step`, with a `description` for people.

    It is an integer setting if all three numbers are integers.
    """

    name: str
    description: str
    low: float
    high: float
    step: float

    @property
    def is_integer(self) -> bool:
        return all(isinstance(number, int) for number in (self.low, self.high, self.step))


@dataclass(frozen=True, eq=False)
class Experiment:
    """A function that tests mathematical claims about attention; `regard theory` runs it by its `name`.

    `description` is a sentence for people, and `sliders` are the ranges of the settings (default: none). `function`
    takes its settings, `seed` and `progress` by keyword. `quick_settings` are settings for a short run.
    """

    name: str
    description: str
    function: Callable[..., ExperimentResult]
    sliders: tuple[Slider, ...] = ()
    quick_settings: Mapping[str, float] = field(default_factory=dict)

    def run(self, *, seed: int = 0, progress: ProgressCallback | None = None, **settings: float) -> ExperimentResult:
        """Run the experiment and return its result; settings that are not passed have their defaults.

        `seed` (default 0) determines the random inputs. `progress` is called with the fraction that is done.
        """
        sliders = {slider.name: slider for slider in self.sliders}
        for name, value in settings.items():
            slider = sliders.get(name)
            if slider is None:
                names = ", ".join(sliders) or "none but seed"
                raise ArgumentError(f"{self.name} has the settings {names}; got {name!r}.")
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
                raise ArgumentError(f"{name} must be a number from {slider.low:g} to {slider.high:g}; got {value!r}.")
            if slider.is_integer and value != int(value):
                raise ArgumentError(f"{name} must be an integer; got {value:g}.")
            if not slider.low <= value <= slider.high:
                raise ArgumentError(f"{name} must be from {slider.low:g} to {slider.high:g}; got {value:g}.")
            settings[name] = int(value) if slider.is_integer else float(value)
        return self.function(seed=seed, progress=progress, **settings)
