"""Every experiment, by name."""

from regard.errors import SpecError
from regard.theory.experiment import Experiment, Slider
from regard.theory.scaling import scaling

EXPERIMENTS = (
    Experiment(
        "scaling",
        "Dot products spread with the width, softmax saturates, and 1/√d keeps both in place.",
        scaling,
        (
            Slider("keys", "keys that softmax runs over", 64, 16384, 64),
            Slider("samples", "products a variance is estimated from", 1000, 200_000, 1000),
            Slider("correlation", "of coordinates that are not independent", 0.02, 0.9, 0.02),
        ),
        quick={"keys": 512, "samples": 4000},
    ),
)


def experiments() -> tuple[Experiment, ...]:
    """All of them, in the order in which they are best read."""
    return EXPERIMENTS


def experiment(name: str) -> Experiment:
    """The one of this name."""
    for each in EXPERIMENTS:
        if each.name == name:
            return each
    raise SpecError(f"an experiment must be one of {', '.join(e.name for e in EXPERIMENTS)}; got {name!r}.")
