"""The endpoint with the descriptions and expressions of stages, for an exported page that computes without Python."""

from collections.abc import Callable, Iterable
from typing import Any

from regard.explorer.api.endpoint import endpoint
from regard.explorer.api.expression_tree import UnsupportedOffline, expr_to_json, normalizer_to_json
from regard.explorer.api.packing import Payload
from regard.explorer.api.params import Params
from regard.explorer.api.walkthrough_api import MASK_CHOICES, NORMALIZER_CHOICES
from regard.explorer.explorer import Explorer
from regard.walkthrough.option_parser import parse_mask, parse_normalizer, parse_score
from regard.walkthrough.projection import project
from regard.walkthrough.steps import Steps
from regard.walkthrough.steps import steps as compute_steps

SAMPLE_MATRIX = ((1.0, 0.0), (0.0, 1.0))


@endpoint
def stage_templates(explorer: Explorer, params: Params) -> Payload:
    """Return what a page needs to compute stages, for the masks and normalizers whose operations it supports.

    `masks` and `normalizers` have the expressions, `stages` the descriptions by normalizer and stage name,
    `visibility_formulas` the formula of each mask, and `formulas` the formula of the call for each mask and normalizer.
    """
    masks = _supported(MASK_CHOICES[1:], lambda text: expr_to_json(parse_mask(text).expr))
    normalizers = _supported(NORMALIZER_CHOICES, lambda text: normalizer_to_json(parse_normalizer(text)))
    stages = {text: _stage_descriptions(_sample_steps("causal", text, temperature=2.0)) for text in normalizers}
    visible = {mask: _sample_steps(mask, "softmax")["visible"].formula for mask in masks}
    formulas = {mask: {text: _sample_steps(mask, text).formula for text in normalizers} for mask in ("none", *masks)}
    return Payload(
        {
            "masks": masks,
            "normalizers": normalizers,
            "stages": stages,
            "visibility_formulas": visible,
            "formulas": formulas,
        }
    )


def _supported(texts: Iterable[str], to_json: Callable[[str], Any]) -> dict[str, Any]:
    """Return the JSON of each option, without the options that need Python."""
    supported = {}
    for text in texts:
        try:
            supported[text] = to_json(text)
        except UnsupportedOffline:
            continue
    return supported


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
