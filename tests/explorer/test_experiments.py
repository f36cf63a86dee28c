"""The experiments of the theory as answers to a page."""

import json
from typing import Any

import numpy as np
import pytest
import torch

from regard.draw.charts import Image, Motion, Panel, Series
from regard.errors import SpecError
from regard.explorer.experiments import spoken
from regard.explorer.explorer import Explorer
from regard.explorer.packing import packed, unpacked
from regard.explorer.questions import ask
from regard.theory import Claim, Outcome, experiments

SMALL = {"name": "scaling", "settings": {"keys": 64, "samples": 1000}, "seed": 3}


def an_outcome() -> Outcome:
    points = np.stack([np.cos([[0, 1, 2], [1, 1, 2]]), np.sin([[0, 1, 2], [1, 1, 2]])], -1)
    return Outcome(
        name="made up",
        claims=(
            Claim("seven numbers", torch.arange(7.0), torch.arange(7.0) + 0.25, 0.5, "they are rough"),
            Claim("a bound", 1.0, 0.5, 0.0, "it is exact", "at most"),
        ),
        wrong=(Claim("one is two", 2.0, 1.0, 0.1, "so much is allowed"),),
        panels=(
            Panel("Curves", "n", "f", [Series("found", [1, 2], [3.0, float("nan")], "points")], log_x=True),
            Image("A matrix", "j", "i", [[0.5, -1.0], [0.0, 2.0]], signed=True),
        ),
        settings={"n": 2, "seed": 0},
        motion=Motion("two moments", [0.0, 1.5], points, [0, 1, 1]),
    )


def test_an_outcome_is_told_with_its_claims_charts_and_motion() -> None:
    told = unpacked(packed(spoken(an_outcome())))
    values = told.values
    assert values["agrees"] is True
    first = values["claims"][0]
    assert (first["error"], first["holds"], first["count"]) == (0.25, True, 7)
    assert first["found"] == [0.25, 1.25, 2.25, 3.25, 4.25, 5.25]  # the first six
    assert values["claims"][1]["relation"] == "at most"
    assert values["wrong"][0]["holds"] is False
    curves, image = values["panels"]
    assert (curves["log_x"], curves["log_y"]) == (True, False)
    assert curves["series"] == [{"label": "found", "style": "points", "colour": 0, "x": [1, 2], "y": [3, None]}]
    assert told.arrays[image["array"]].tolist() == [[0.5, -1.0], [0.0, 2.0]]
    assert (values["motion"]["times"], values["motion"]["groups"]) == ([0.0, 1.5], [0, 1, 1])
    assert told.arrays["points"].shape == (2, 3, 2)


def test_every_experiment_is_listed_with_sliders_that_stand_within_their_ends() -> None:
    listed = ask(Explorer(), "experiments").values["experiments"]
    assert [each["name"] for each in listed] == [each.name for each in experiments()]
    for each in listed:
        for slider in each["sliders"]:
            for settings in (each["full"], {**each["full"], **each["quick"]}):
                assert slider["low"] <= settings[slider["name"]] <= slider["high"], (each["name"], slider["name"])


def test_an_experiment_is_run_with_its_settings_and_seed_once() -> None:
    given = Explorer()
    shares: list[float] = []
    given.tell = lambda asked: lambda text, share: shares.append(share)  # type: ignore[assignment, method-assign]
    values = ask(given, "experiment", SMALL).values
    assert values["settings"]["keys"] == 64
    right = next(each for each in experiments() if each.name == "scaling").run(keys=64, samples=1000, seed=3)
    assert [claim["error"] for claim in values["claims"]] == [claim.error for claim in right.claims]
    assert shares[-1] == 1.0
    count = len(shares)
    assert ask(given, "experiment", SMALL).values is values
    assert len(shares) == count
    assert ask(given, "experiments").values["ran"] == [SMALL]


def test_a_file_takes_along_what_was_run() -> None:
    from tests.explorer.recordings import explorer

    given = explorer(3, 3)
    key = json.dumps({"name": "scaling", "settings": {"keys": 128}, "seed": 1}, sort_keys=True)
    given.outcomes[key] = spoken(an_outcome())
    html = ask(given, "export", {"shown": 0}).arrays["html"].tobytes().decode()
    assert r"experiment{\"name\":\"scaling\",\"seed\":1,\"settings\":{\"keys\":128}}" in html


@pytest.mark.parametrize(
    "params, said",
    [
        ({"name": "magic"}, "an experiment must be one of scaling, .*; got 'magic'"),
        ({"name": "scaling", "settings": {"wonder": 1}}, "scaling has the settings keys, .*; got 'wonder'"),
        ({"name": "scaling", "settings": {"keys": 7}}, "keys must be from 64 to 8192; got 7"),
        ({"name": "scaling", "settings": {"keys": "many"}}, "keys must be a number from .*; got 'many'"),
        ({"name": "scaling", "settings": [1]}, r"settings must be an object of numbers; got \[1\]\."),
    ],
)
def test_what_cannot_be_run_is_refused(params: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        ask(Explorer(), "experiment", params)
