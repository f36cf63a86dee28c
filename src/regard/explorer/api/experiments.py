"""Endpoints about the experiments of `regard.theory`: list them, and run one."""

import inspect
import json
from typing import Any

import numpy as np
from torch import Tensor

from regard.errors import ArgumentError
from regard.explorer.api.endpoint import endpoint, slow_endpoint
from regard.explorer.api.packing import Payload
from regard.explorer.api.params import Params
from regard.explorer.explorer import Explorer
from regard.plot.chart_panels import ImagePanel, Panel, PointAnimation
from regard.theory.experiment import Experiment
from regard.theory.experiment_result import Claim, ExperimentResult
from regard.theory.registry import get_experiment, list_experiments

MAX_LISTED_NUMBERS = 6  # per claim
MAX_CACHED_EXPERIMENTS = 32  # exported files contain these


@endpoint
def experiments(explorer: Explorer, params: Params) -> Payload:
    """Return every experiment with its sliders and settings, and the completed runs."""
    listed = [
        {
            "name": e.name,
            "description": e.description,
            "sliders": _sliders(e),
            "default_settings": _defaults(e),
            "quick_settings": dict(e.quick_settings),
        }
        for e in list_experiments()
    ]
    runs = [json.loads(key) for key in explorer.experiment_results]
    return Payload({"experiments": listed, "completed_runs": runs})


@slow_endpoint
def experiment(explorer: Explorer, params: Params) -> Payload:
    """Run an experiment and return its claims, charts and animation."""
    selected = get_experiment(params.text("name", 80))
    settings = params.raw("settings")
    if settings is not None and not isinstance(settings, dict):
        raise ArgumentError(f"settings must be an object of numbers; got {str(settings)[:60]}.")
    numbers = {name: Params("experiment", settings).number(name, -1e12, 1e12) for name in settings or {}}
    seed = params.integer("seed", 0, 2**31 - 1, 0)
    report = explorer.progress_callback(params)
    key = json.dumps({"name": selected.name, "settings": settings or {}, "seed": seed}, sort_keys=True)
    with explorer.model_lock:
        if key not in explorer.experiment_results:  # equal settings and seeds give equal results
            result = selected.run(seed=seed, progress=lambda fraction: report(selected.name, fraction), **numbers)
            latest = [*explorer.experiment_results.items()][1 - MAX_CACHED_EXPERIMENTS :]
            explorer.experiment_results = dict([*latest, (key, experiment_payload(result))])
    return explorer.experiment_results[key]


def _sliders(experiment: Experiment) -> list[dict[str, Any]]:
    return [
        {
            "name": s.name,
            "description": s.description,
            "low": s.low,
            "high": s.high,
            "step": s.step,
            "is_integer": s.is_integer,
        }
        for s in experiment.sliders
    ]


def _defaults(experiment: Experiment) -> dict[str, Any]:
    parameters = inspect.signature(experiment.function).parameters
    return {slider.name: parameters[slider.name].default for slider in experiment.sliders}


def experiment_payload(result: ExperimentResult) -> Payload:
    """Convert the result of an experiment to a response."""
    arrays: dict[str, np.ndarray] = {}
    panels = [_panel(panel, n, arrays) for n, panel in enumerate(result.panels)]
    values = {
        "name": result.name,
        "is_consistent": result.is_consistent,
        "claims": [_claim(claim) for claim in result.claims],
        "false_claims": [_claim(claim) for claim in result.false_claims],
        "panels": panels,
        "animation": _point_animation(result.animation, arrays),
        "settings": {name: value for name, value in result.settings.items() if isinstance(value, int | float)},
    }
    return Payload(values, arrays)


def _claim(claim: Claim) -> dict[str, Any]:
    return {
        "statement": claim.statement,
        "relation": claim.relation,
        "tolerance": claim.tolerance,
        "tolerance_reason": claim.tolerance_reason,
        "max_error": claim.max_error,
        "holds": claim.holds,
        "count": claim.actual.numel(),
        "expected": _first_numbers(claim.expected),
        "actual": _first_numbers(claim.actual),
    }


def _first_numbers(numbers: Tensor) -> list[float]:
    first: list[float] = numbers.flatten()[:MAX_LISTED_NUMBERS].tolist()
    return first


def _panel(panel: Panel | ImagePanel, index: int, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    labels = {"title": panel.title, "xlabel": panel.xlabel, "ylabel": panel.ylabel}
    if isinstance(panel, ImagePanel):
        arrays[f"image {index}"] = panel.values.astype(np.float32)
        return {**labels, "kind": "image", "array": f"image {index}", "signed": panel.signed}
    series = [
        {
            "label": s.label,
            "style": s.style,
            "color_index": color,
            "x": s.x.tolist(),
            "y": s.y.tolist(),
            "spread": None if s.spread is None else s.spread.tolist(),
        }
        for s, color in zip(panel.series, panel.color_indices, strict=True)
    ]
    return {**labels, "kind": "curves", "log_x": panel.log_x, "log_y": panel.log_y, "series": series}


def _point_animation(animation: PointAnimation | None, arrays: dict[str, np.ndarray]) -> dict[str, Any] | None:
    if animation is None:
        return None
    arrays["points"] = animation.points.astype(np.float32)
    return {"title": animation.title, "times": animation.times.tolist(), "groups": animation.groups.tolist()}
