"""The endpoint with the descriptions of stages, for an exported page that computes the numbers without Python."""

from typing import Any

from regard.explorer.api.packing import Payload
from regard.explorer.api.params import Params
from regard.explorer.api.walkthrough_api import MASK_CHOICES
from regard.explorer.explorer import Explorer
from regard.walkthrough.option_parser import parse_mask, parse_normalizer, parse_score
from regard.walkthrough.projection import project
from regard.walkthrough.steps import Steps
from regard.walkthrough.steps import steps as compute_steps

# computed by frontend/offline/offline-walkthrough.js
OFFLINE_NORMALIZERS = ("softmax", "sink", "sparsemax", "entmax(1.5)", "sigmoid", "relu")
SAMPLE_MATRIX = ((1.0, 0.0), (0.0, 1.0))


def stage_templates(explorer: Explorer, params: Params) -> Payload:
    """Return descriptions and formulas of stages.

    `stages` has the descriptions by normalizer and stage name, `visibility_formulas` the formula of each mask, and
    `formulas` the formula of the call for each mask and normalizer.
    """
    stages = {
        normalizer: _stage_descriptions(_sample_steps("causal", normalizer, temperature=2.0))
        for normalizer in OFFLINE_NORMALIZERS
    }
    visible = {mask: _sample_steps(mask, "softmax")["visible"].formula for mask in MASK_CHOICES if mask != "none"}
    formulas = {
        mask: {normalizer: _sample_steps(mask, normalizer).formula for normalizer in OFFLINE_NORMALIZERS}
        for mask in MASK_CHOICES
    }
    return Payload({"stages": stages, "visibility_formulas": visible, "formulas": formulas})


def _sample_steps(mask: str, normalizer: str, temperature: float | None = None) -> Steps:
    x = project(SAMPLE_MATRIX, SAMPLE_MATRIX)
    return compute_steps(
        *(x, x, x),
        score=parse_score(None, scale=None, temperature=temperature),
        mask=None if mask == "none" else parse_mask(mask),
        normalizer=parse_normalizer(normalizer),
    )


def _stage_descriptions(steps: Steps) -> dict[str, Any]:
    return {
        stage.name: {"description": stage.description, "formula": stage.formula, "axes": list(stage.axes)}
        for stage in steps.stages
    }
