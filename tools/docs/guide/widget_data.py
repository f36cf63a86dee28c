"""The data of the widgets: numbers that the Python blocks of the page compute, and the stages of attention as JSON.

The blocks run when the site is built. A widget therefore starts from the numbers that the page prints.
"""

import re
from typing import Any

import numpy as np

import regard
from regard import mask
from regard.explorer.api.expression_tree import expr_to_json
from regard.explorer.api.registry import dispatch
from regard.explorer.explorer import Explorer
from regard.mask import Mask

CODE = re.compile(r"^```python\n(?!>>> )(.*?)^```$", re.MULTILINE | re.DOTALL)
PADDED_LENGTH = 2  # of the text in the section about padding
SIGNIFICANT_DIGITS = 9  # enough for every float32
NUM_PREDICTIONS = 5
SAMPLE = [[1.0, 0.0], [0.0, 1.0]]


def page_variables(markdown: str) -> dict[str, Any]:
    """Run the Python blocks of the page, without those that print results; return all variables."""
    variables: dict[str, Any] = {"__name__": "__main__"}
    for match in CODE.finditer(markdown):
        exec(compile(match[1], "attention-step-by-step.md", "exec"), variables)
    return variables


def widget_data(variables: dict[str, Any]) -> dict[str, Any]:
    """Return the data of all widgets as JSON values."""
    return {
        "templates": stage_templates(),
        "words": {"tokens": variables["words"], **_matrices(variables, x="X", w_q="W_Q", w_k="W_K", w_v="W_V")},
        "saturation": _matrices(variables, q="long_query", k="long_keys"),
        "paint": {
            "cans": list(variables["cans"]),
            "angles": np.rad2deg(variables["angles"]).round(6).tolist(),
            "query": {"angle": variables["query_angle"], "length": variables["query_length"]},
            **_matrices(variables, k="labels", v="paints"),
        },
        "sentence": _sentence(variables),
        "model": _model(variables),
    }


def stage_templates() -> dict[str, Any]:
    """Return the templates of the explorer for softmax, with the masks of the page."""
    templates = dispatch(Explorer(), "stage_templates").values
    stages, normalizers = ({"softmax": templates[name]["softmax"]} for name in ("stages", "normalizers"))
    masks = page_masks()
    samples = {name: regard.steps(SAMPLE, SAMPLE, SAMPLE, mask=value) for name, value in masks.items()}
    return {
        "stages": stages,
        "normalizers": normalizers,
        "masks": {name: expr_to_json(value.expr) for name, value in masks.items()},
        # the position p of query i is i, because there are as many keys as queries
        "visibility_formulas": {name: re.sub(r"\bp\b", "i", s["visible"].formula) for name, s in samples.items()},
        "formulas": {
            "none": {"softmax": templates["formulas"]["none"]["softmax"]},
            **{name: {"softmax": steps.formula} for name, steps in samples.items()},
        },
    }


def page_masks() -> dict[str, Mask]:
    """Return the masks that the widgets offer, by name."""
    padding = mask.from_function(lambda b, h, i, j: j < PADDED_LENGTH)
    return {"causal": mask.causal(), "padding": padding, "causal & padding": mask.causal() & padding}


def _matrices(variables: dict[str, Any], **names: str) -> dict[str, Any]:
    return {name: np.atleast_2d(variables[variable]).tolist() for name, variable in names.items()}


def _sentence(variables: dict[str, Any]) -> dict[str, Any]:
    """Return the queries, keys and values of two heads of a layer, as the model computed them."""
    recording, layer = variables["recording"], variables["layer"]
    call = recording.layer_named(layer).merged_call
    assert str(call.options["mask"]) == str(mask.causal())  # the mask that the widgets use
    return {
        "tokens": [token.strip() for token in recording.tokens],
        "layer": layer,
        "heads": [
            {"head": head, **{name: _rounded(getattr(call, name)[0, head]) for name in ("q", "k", "v")}}
            for head in (variables["head"], variables["other_head"])
        ],
    }


def _model(variables: dict[str, Any]) -> dict[str, Any]:
    """Return the most likely next tokens after each word, and the weights of all heads."""
    recording = variables["recording"]
    positions = range(len(recording.tokens))
    return {
        "predictions": [variables["most_likely"](position, NUM_PREDICTIONS) for position in positions],
        "weights": [[_rounded(head) for head in layer.weights[0]] for layer in recording],
    }


def _rounded(values: Any) -> Any:
    """Return an array as nested lists of numbers, as short as a float32 allows."""
    if getattr(values, "ndim", 0):
        return [_rounded(row) for row in values]
    return float(f"{float(values):.{SIGNIFICANT_DIGITS}g}")
