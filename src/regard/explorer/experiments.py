"""Questions about the experiments of `regard.theory`: which there are, and what comes out of one."""

import inspect
import json
from typing import Any

import numpy as np
from torch import Tensor

from regard.draw.charts import Image, Motion, Panel
from regard.errors import SpecError
from regard.explorer.asked import Asked
from regard.explorer.explorer import Explorer
from regard.explorer.packing import Answer
from regard.theory.catalogue import experiment as named
from regard.theory.catalogue import experiments as every
from regard.theory.experiment import Experiment
from regard.theory.outcome import Claim, Outcome

SHOWN = 6  # numbers of a claim that are written out
KEPT = 32  # outcomes that a file may take along


def experiments(explorer: Explorer, asked: Asked) -> Answer:
    """Every experiment with its sliders, where they stand in full and for a quick look; and what was run so far."""
    each = [
        {"name": e.name, "about": e.about, "sliders": _sliders(e), "full": _defaults(e), "quick": dict(e.quick)}
        for e in every()
    ]
    return Answer({"experiments": each, "ran": [json.loads(asked) for asked in explorer.outcomes]})


def experiment(explorer: Explorer, asked: Asked) -> Answer:
    """What comes out of an experiment: its claims, its charts and what moves in it."""
    chosen = named(asked.text("name", 80))
    settings = asked.any("settings")
    if settings is not None and not isinstance(settings, dict):
        raise SpecError(f"settings must be an object of numbers; got {str(settings)[:60]}.")
    numbers = {name: Asked("experiment", settings).number(name, -1e12, 1e12) for name in settings or {}}
    seed = asked.whole("seed", 0, 2**31 - 1, 0)
    tell = explorer.tell(asked)
    key = json.dumps({"name": chosen.name, "settings": settings or {}, "seed": seed}, sort_keys=True)
    with explorer.running:
        if key not in explorer.outcomes:  # the same settings and seed have the same outcome
            outcome = chosen.run(seed=seed, progress=lambda share: tell(chosen.name, share), **numbers)
            kept = [*explorer.outcomes.items()][1 - KEPT :]
            explorer.outcomes = dict([*kept, (key, spoken(outcome))])
    return explorer.outcomes[key]


def _sliders(chosen: Experiment) -> list[dict[str, Any]]:
    return [
        {"name": s.name, "about": s.about, "low": s.low, "high": s.high, "step": s.step, "whole": s.whole}
        for s in chosen.sliders
    ]


def _defaults(chosen: Experiment) -> dict[str, Any]:
    known = inspect.signature(chosen.function).parameters
    return {slider.name: known[slider.name].default for slider in chosen.sliders}


def spoken(outcome: Outcome) -> Answer:
    """An outcome as values and arrays."""
    arrays: dict[str, np.ndarray] = {}
    panels = [_panel(panel, n, arrays) for n, panel in enumerate(outcome.panels)]
    values = {
        "name": outcome.name,
        "agrees": outcome.agrees,
        "claims": [_claim(claim) for claim in outcome.claims],
        "wrong": [_claim(claim) for claim in outcome.wrong],
        "panels": panels,
        "motion": _motion(outcome.motion, arrays),
        "settings": {name: value for name, value in outcome.settings.items() if isinstance(value, int | float)},
    }
    return Answer(values, arrays)


def _claim(claim: Claim) -> dict[str, Any]:
    return {
        "says": claim.says,
        "relation": claim.relation,
        "within": claim.within,
        "because": claim.because,
        "error": claim.error,
        "holds": claim.holds,
        "count": claim.found.numel(),
        "predicted": _some(claim.predicted),
        "found": _some(claim.found),
    }


def _some(numbers: Tensor) -> list[float]:
    found: list[float] = numbers.flatten()[:SHOWN].tolist()
    return found


def _panel(panel: Panel | Image, number: int, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    words = {"title": panel.title, "across": panel.across, "up": panel.up}
    if isinstance(panel, Image):
        arrays[f"image {number}"] = panel.values.astype(np.float32)
        return {**words, "kind": "image", "array": f"image {number}", "signed": panel.signed}
    series = [
        {"label": s.label, "style": s.style, "colour": colour, "x": s.x.tolist(), "y": s.y.tolist()}
        for s, colour in zip(panel.series, panel.colours, strict=True)
    ]
    return {**words, "kind": "curves", "log_x": panel.log_x, "log_y": panel.log_y, "series": series}


def _motion(motion: Motion | None, arrays: dict[str, np.ndarray]) -> dict[str, Any] | None:
    if motion is None:
        return None
    arrays["points"] = motion.points.astype(np.float32)
    return {"title": motion.title, "times": motion.times.tolist(), "groups": motion.groups.tolist()}
