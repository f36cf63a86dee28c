"""The endpoints of the experiments of `regard.theory`."""

import json
from typing import Any

import numpy as np
import pytest
import torch

from regard.errors import ArgumentError
from regard.explorer.api.experiments import experiment_payload
from regard.explorer.api.packing import pack, unpack
from regard.explorer.api.registry import dispatch
from regard.explorer.explorer import Explorer
from regard.plot.chart_panels import ImagePanel, Panel, PointAnimation, Series
from regard.theory import Claim, ExperimentResult, list_experiments
from tests.explorer.recordings import make_explorer

SMALL_RUN = {"name": "rank_collapse", "settings": {"num_tokens": 8, "num_layers": 8}, "seed": 3}


def make_result() -> ExperimentResult:
    points = np.stack([np.cos([[0, 1, 2], [1, 1, 2]]), np.sin([[0, 1, 2], [1, 1, 2]])], -1)
    return ExperimentResult(
        name="example",
        claims=(
            Claim("seven numbers", torch.arange(7.0), torch.arange(7.0) + 0.25, 0.5, "rough estimates"),
            Claim("a bound", 1.0, 0.5, 0.0, "it is exact", "at most"),
        ),
        false_claims=(Claim("one is two", 2.0, 1.0, 0.1, "the tolerance"),),
        panels=(
            Panel("Curves", "n", "f", [Series("measured", [1, 2], [3.0, float("nan")], "points")], log_x=True),
            Panel("Band", "n", "f", [Series("mean", [1, 2], [3, 4], spread=[0.5, 1])]),
            ImagePanel("A matrix", "j", "i", [[0.5, -1.0], [0.0, 2.0]], signed=True),
        ),
        settings={"n": 2, "seed": 0},
        animation=PointAnimation("two moments", [0.0, 1.5], points, [0, 1, 1]),
    )


def test_a_result_is_packed_with_its_claims_charts_and_animation() -> None:
    response = unpack(pack(experiment_payload(make_result())))
    values = response.values
    assert values["is_consistent"] is True
    first = values["claims"][0]
    assert (first["max_error"], first["holds"], first["count"]) == (0.25, True, 7)
    assert first["actual"] == [0.25, 1.25, 2.25, 3.25, 4.25, 5.25]  # the first six
    assert values["claims"][1]["relation"] == "at most"
    assert values["false_claims"][0]["holds"] is False
    curves, band, image = values["panels"]
    assert (curves["log_x"], curves["log_y"]) == (True, False)
    measured = {"label": "measured", "style": "points", "color_index": 0, "x": [1, 2], "y": [3, None], "spread": None}
    assert curves["series"] == [measured]
    assert band["series"][0]["spread"] == [0.5, 1]
    assert response.arrays[image["array"]].tolist() == [[0.5, -1.0], [0.0, 2.0]]
    assert (values["animation"]["times"], values["animation"]["groups"]) == ([0.0, 1.5], [0, 1, 1])
    assert response.arrays["points"].shape == (2, 3, 2)


def test_every_experiment_has_settings_within_the_range_of_its_sliders() -> None:
    experiments = dispatch(Explorer(), "experiments").values["experiments"]
    assert [experiment["name"] for experiment in experiments] == [experiment.name for experiment in list_experiments()]
    for experiment in experiments:
        default_settings = experiment["default_settings"]
        for slider in experiment["sliders"]:
            for settings in (default_settings, {**default_settings, **experiment["quick_settings"]}):
                assert slider["low"] <= settings[slider["name"]] <= slider["high"], (experiment["name"], slider["name"])


def test_an_experiment_runs_once_for_its_settings_and_seed() -> None:
    explorer = Explorer()
    fractions: list[float] = []
    explorer.progress_callback = lambda params: lambda text, fraction: fractions.append(fraction)  # type: ignore[assignment, method-assign]
    values = dispatch(explorer, "experiment", SMALL_RUN).values
    assert values["settings"]["num_tokens"] == 8
    experiment = next(experiment for experiment in list_experiments() if experiment.name == "rank_collapse")
    expected = experiment.run(num_tokens=8, num_layers=8, seed=3)
    assert [claim["max_error"] for claim in values["claims"]] == [claim.max_error for claim in expected.claims]
    assert fractions[-1] == 1.0
    count = len(fractions)
    assert dispatch(explorer, "experiment", SMALL_RUN).values is values
    assert len(fractions) == count
    assert dispatch(explorer, "experiments").values["completed_runs"] == [SMALL_RUN]


def test_an_exported_file_contains_completed_runs() -> None:
    explorer = make_explorer(3, 3)
    key = json.dumps({"name": "score_scaling", "settings": {"num_keys": 128}, "seed": 1}, sort_keys=True)
    explorer.experiment_results[key] = experiment_payload(make_result())
    html = dispatch(explorer, "export", {"session": 0}).arrays["html"].tobytes().decode()
    assert r"experiment{\"name\":\"score_scaling\",\"seed\":1,\"settings\":{\"num_keys\":128}}" in html


@pytest.mark.parametrize(
    "params, message",
    [
        ({"name": "magic"}, "must be one of score_scaling, .*; got 'magic'"),
        (
            {"name": "score_scaling", "settings": {"wonder": 1}},
            "score_scaling has the settings num_keys, .*; got 'wonder'",
        ),
        ({"name": "score_scaling", "settings": {"num_keys": 7}}, "num_keys must be from 64 to 8192; got 7"),
        ({"name": "score_scaling", "settings": {"num_keys": "many"}}, "num_keys must be a number from .*; got 'many'"),
        ({"name": "score_scaling", "settings": [1]}, r"settings must be an object of numbers; got \[1\]\."),
    ],
)
def test_invalid_experiment_requests_raise(params: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        dispatch(Explorer(), "experiment", params)
