"""The walkthrough that the page computes without Python equals `regard.steps`."""

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch

from regard import mask
from regard.explorer.api.expression_tree import EXPR_OPERATIONS, STAGE_OPERATIONS, expr_to_json, expression_tree
from regard.explorer.api.registry import dispatch
from regard.explorer.api.walkthrough_api import MASK_CHOICES
from regard.explorer.explorer import Explorer
from tests.chromium import needs_chromium
from tests.explorer.browser import Site

pytestmark = needs_chromium
X = [[1.0, -0.5, 2.0], [0.25, 3.0, -1.0], [0.0, 0.0, 0.0], [-2.0, 1.5, 0.5]]
W_Q, W_K, W_V = [[0.5, -1], [2, 0.25], [1, 1]], [[1, 0], [-0.5, 2], [0.75, 1]], [[1.0], [2.0], [-3.0]]
INPUTS: dict[str, dict[str, Any]] = {
    "projected": {"x": X, "w_q": W_Q, "w_k": W_K, "w_v": W_V, "tokens": list("abcd")},
    "more queries than keys": {"q": X, "k": X[:2], "v": W_Q[:2]},  # a causal mask hides every key of the first queries
    "more keys than queries": {"q": X[:2], "k": X, "v": X},
}
OPTIONS: list[dict[str, float]] = [{}, {"temperature": 0.25}, {"scale": 1.5}, {"temperature": 4.5, "scale": 0.25}]
OFFLINE_STEPS = """async ([templates, requests]) => {
  const { offlineSteps } = await import("./frontend/offline/offline-walkthrough.js");
  const stored = async (name) => (name === "stage_templates" ? { values: templates } : null);
  const respond = async (params) => (await offlineSteps(stored, "steps", params))?.values ?? null;
  const asJson = (_, x) => (typeof x === "number" && !Number.isFinite(x) ? String(x) : x);
  return JSON.stringify(await Promise.all(requests.map(respond)), asJson);
}"""


def offline_steps(site: Site, requests: list[dict[str, Any]]) -> Any:
    """Return the responses that the page computes. They are sent as text: Playwright converts nested lists slowly."""
    templates = dispatch(Explorer(), "stage_templates").values
    return json.loads(site.page("view=steps").evaluate(OFFLINE_STEPS, [templates, requests]))


@pytest.mark.parametrize("inputs", INPUTS)
def test_page_and_library_have_the_same_stages(site: Site, inputs: str) -> None:
    normalizers = dispatch(Explorer(), "stage_templates").values["normalizers"]
    first = list(INPUTS).index(inputs)
    requests = [  # each mask with each normalizer, and each of them with all options
        {**INPUTS[inputs], "mask": mask, "normalizer": normalizer, **OPTIONS[(first + row + column) % len(OPTIONS)]}
        for row, mask in enumerate(MASK_CHOICES)
        for column, normalizer in enumerate(normalizers)
    ]
    for params, response in zip(requests, offline_steps(site, requests), strict=True):
        expected = dispatch(Explorer(), "steps", params).values
        for name in ("query_labels", "key_labels", "formula"):
            assert response[name] == expected[name]
        input_names = {"Q", "K", "V"} if "q" in params else set()  # the view shows no cards of the inputs
        for stage, expected_stage in zip(response["stages"], expected["stages"], strict=True):
            assert stage["name"] == expected_stage["name"]
            values, expected_values = flatten(stage["values"]), flatten(expected_stage["values"])
            assert values == pytest.approx(expected_values, rel=1e-12, abs=1e-12), (params, stage)
            if stage["name"] not in input_names:
                for name in ("description", "formula", "axes"):
                    assert stage[name] == expected_stage[name], params


def test_page_and_library_have_the_same_operations(site: Site) -> None:
    script = """async () => {
      const { OPERATIONS } = await import("./frontend/offline/expr-interpreter.js");
      const { STAGE_OPERATIONS } = await import("./frontend/offline/stage-interpreter.js");
      return [Object.keys(OPERATIONS), STAGE_OPERATIONS];
    }"""
    operations, stage_operations = site.page("view=steps").evaluate(script)
    assert set(operations) == EXPR_OPERATIONS
    assert set(stage_operations) == STAGE_OPERATIONS


def test_page_evaluates_stages_as_torch_does(site: Site) -> None:
    """Operations that the stages of the library do not use; a list per query aligns with the keys, as in torch."""
    scores = torch.tensor([[0.5, -2.0, 1.5], [3.0, 0.25, -0.75], [-1.0, 2.0, 0.0]], dtype=torch.float64)
    codes = [
        "scores - scores.mean(-1)[:, None]",
        "scores * scores.amin(-1)",
        "scores.clamp(min=-1.0, max=1.0) + torch.minimum(scores, n_k - scores)",
        "-torch.tanh(scores).square() + torch.expm1(scores)",
        "torch.where(~(scores > 0) | (scores == 0.5), torch.exp2(scores), torch.log1p(torch.abs(scores)))",
        "torch.floor(scores) + torch.ceil(scores) * torch.trunc(scores) - torch.sign(scores)",
        "torch.sqrt(torch.exp(scores)) + torch.sin(scores) * torch.cos(scores)",
        "(scores != 0) & (scores <= 2.0)",
        "torch.log(torch.sigmoid(scores)) + torch.log2(torch.exp(scores))",
    ]
    stage_specs = [{"name": code, "variable": "", "tree": expression_tree(code)} for code in codes]
    script = """async ([stage_specs, scores]) => {
      const { normalizerStages } = await import("./frontend/offline/stage-interpreter.js");
      return normalizerStages({ constants: {}, stage_specs }, scores);
    }"""
    stages = site.page("view=steps").evaluate(script, [stage_specs, scores.tolist()])
    for code in codes:
        expected = eval(code, {"torch": torch, "scores": scores, "n_k": 3})
        assert flatten(stages[code]) == pytest.approx(flatten(expected.tolist()), rel=1e-12, abs=1e-12), code


MASKS: list[Callable[..., Any]] = [
    lambda b, h, i, j: (i - j) // 2 == j // 2,
    lambda b, h, i, j: (i - j) % 3 != b + h,
    lambda b, h, i, j: (j > i) ^ (i * j >= 4),
    lambda b, h, i, j: torch.where(i == 1, j < 2, ~(j == 2)),
    lambda b, h, i, j: torch.maximum(i, j) - torch.minimum(i, j) <= 1,
]


def test_page_evaluates_masks_as_the_library_does(site: Site) -> None:
    masks = [mask.from_function(function) for function in MASKS]
    script = """async (masks) => {
      const { evaluateNodes } = await import("./frontend/offline/expr-interpreter.js");
      const range = [0, 1, 2, 3];
      return masks.map((nodes) => range.map((i) => range.map((j) => evaluateNodes(nodes, { b: 0, h: 0, i, j, p: i }))));
    }"""
    matrices = site.page("view=steps").evaluate(script, [expr_to_json(m.expr) for m in masks])
    assert matrices == [m.to_dense(4, 4)[0, 0].tolist() for m in masks]


def flatten(values: Any) -> list[float]:
    """Return all numbers of nested lists; texts such as "-inf" become floats."""
    return [x for row in values for x in flatten(row)] if isinstance(values, list) else [float(values)]


def test_options_that_need_python_have_no_response(site: Site) -> None:
    inputs = INPUTS["projected"]
    options = [{"dropout": 0.5}, {"normalizer": "sinkhorn(5)"}, {"mask": "sliding_window(3)"}]
    assert offline_steps(site, [{**inputs, **option} for option in options]) == [None, None, None]


@pytest.mark.parametrize(
    "params, message",
    [
        ({"q": [[1.0]], "k": [[1.0, 2.0]], "v": [[1.0]]}, "q and k must have the same head dimension; got q=1, k=2."),
        ({"q": [[1.0]], "k": [[1.0]], "v": [[1.0], [2.0]]}, "k and v must have the same length; got k=1, v=2."),
        (
            {"x": X, "w_q": W_Q, "w_k": W_K[:2], "w_v": W_V},
            "w_k must have as many rows as x has columns; got 2 rows, 3 columns.",
        ),
    ],
)
def test_mismatched_shapes_raise_an_error(site: Site, params: dict[str, Any], message: str) -> None:
    with pytest.raises(Exception, match=message):
        offline_steps(site, [params])
