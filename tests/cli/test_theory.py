"""`regard theory`: what it lists, prints, writes and refuses, and its codes."""

import json
import re
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from regard.cli import app
from regard.draw.charts import Image, Panel, Series
from regard.theory import Claim, Experiment, Outcome, Slider, experiments

HEAT = ("heat", "--set", "time=2")


def run(*arguments: str) -> tuple[int, str, str]:
    found = CliRunner().invoke(app, ["theory", *arguments])
    assert found.exception is None or isinstance(found.exception, SystemExit), found.exception
    return found.exit_code, found.stdout, found.stderr


def returned(*, n: int = 3, wait: float = 0.0, found: float = 1.0, seed: int = 0, progress: Any = None) -> Outcome:
    """One claim that holds if `found` is 1, and one formula that must not."""
    for share in (0.5, 1.0):
        time.sleep(wait)
        progress(share)
    claims = (Claim("one is found", 1.0, found, 0.1, "so it is"),)
    wrong = (Claim("nothing is found", 0.0, 1.0, 0.1, "so it is not", "at most"),)
    panels = (Panel("Curve", "x", "y", [Series("a", [1, 2], [1, float("inf")])]), Image("Map", "k", "q", [[1.0]]))
    return Outcome("mine", claims, wrong, panels, {"n": n, "seed": seed})


@pytest.fixture
def mine(monkeypatch: pytest.MonkeyPatch) -> None:
    sliders = (
        Slider("n", "things", 1, 9, 1),
        Slider("wait", "seconds", 0.0, 9.0, 0.1),
        Slider("found", "what is found", 0.0, 2.0, 0.1),
    )
    each = Experiment("mine", "An experiment.", returned, sliders, {"n": 1})
    monkeypatch.setattr(sys.modules["regard.cli.theory"], "experiment", lambda name: each)


def test_without_a_name_all_experiments_are_listed_with_their_settings() -> None:
    code, printed, _ = run()
    assert code == 0
    assert max(len(line) for line in printed.splitlines()) < 80
    for each in experiments():
        assert re.search(rf"^{each.name} +{re.escape(each.about[:20])}", printed, re.M)
        for slider in each.sliders:
            assert f"--set {slider.name}=  {slider.low:g} to {slider.high:g}" in printed


def test_the_list_is_there_for_machines() -> None:
    listed = json.loads(run("--json")[1])
    assert [each["name"] for each in listed] == [each.name for each in experiments()]
    assert listed[0]["settings"][0] == {
        "name": "keys",
        "about": "keys that softmax runs over",
        "low": 64,
        "high": 8192,
        "step": 64,
    }


def test_an_experiment_prints_its_claims_its_wrong_formulas_and_its_charts() -> None:
    code, printed, _ = run(*HEAT)
    assert code == 0
    assert "sigma 0.3, spread 1, width 3, time 2, seed 0" in printed
    assert "holds  the heat kernel of a graph is a Poisson mix of powers of A" in printed
    assert "wrong  attention weights are the Green's function of the graph" in printed
    assert "Everything is as the mathematics says." in printed
    assert "A bump diffuses" in printed and "└──" in printed
    assert max(len(line) for line in printed.splitlines()) < 80


def test_claims_show_what_was_predicted_and_found(mine: None) -> None:
    code, printed, _ = run("mine")
    assert code == 0
    assert "predicted 1   found 1\n" in printed and "off by 0, allowed 0.1: so it is" in printed
    assert "predicted 0 or less   found 1" in printed


@pytest.mark.parametrize(("found", "code", "says"), [("1", 0, "holds"), ("1.05", 0, "holds"), ("1.5", 1, "FAILS")])
def test_the_code_says_whether_it_agrees(mine: None, found: str, code: int, says: str) -> None:
    got, printed, _ = run("mine", "--set", f"found={found}")
    assert got == code and f"{says}  one is found" in printed
    assert ("Not everything is as it should be." in printed) is (code == 1)


def test_settings_seed_and_quick_reach_the_experiment(mine: None) -> None:
    def settings(*arguments: str) -> Any:
        return json.loads(run("mine", *arguments, "--json")[1])["settings"]

    assert settings() == {"n": 3, "seed": 0}
    assert settings("--seed", "4", "--set", "n=7") == {"n": 7, "seed": 4}
    assert settings("--quick") == {"n": 1, "seed": 0}
    assert settings("--quick", "--set", "n=5") == {"n": 5, "seed": 0}


def test_json_holds_claims_and_panels_and_null_for_what_is_no_number(mine: None) -> None:
    code, printed, _ = run("mine", "--json", "--set", "found=2")
    said = json.loads(printed, parse_constant=lambda name: pytest.fail(name))
    assert code == 1 and said["agrees"] is False
    assert said["claims"][0] == {
        "says": "one is found",
        "relation": "equal",
        "because": "so it is",
        "holds": False,
        "predicted": 1.0,
        "found": 2.0,
        "error": 1.0,
        "within": 0.1,
    }
    assert said["panels"][0]["series"][0]["y"] == [1.0, None]
    assert said["panels"][1]["values"] == [[1.0]]


def test_charts_are_written_as_a_picture(tmp_path: Path) -> None:
    assert run(*HEAT, "--picture", str(tmp_path / "heat.png"))[0] == 0
    assert (tmp_path / "heat.png").read_bytes().startswith(b"\x89PNG")
    assert run(*HEAT, "--picture", str(tmp_path / "heat.svg"))[0] == 0
    assert b"<svg" in (tmp_path / "heat.svg").read_bytes()


def test_a_bar_is_shown_only_over_two_seconds_and_not_among_the_results(
    mine: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert sys.modules["regard.cli.theory"].PATIENCE == 2.0
    monkeypatch.setattr(sys.modules["regard.cli.theory"], "PATIENCE", 0.5)
    slow = ("mine", "--set", "wait=0.4")
    assert run(*slow)[2] == ""  # nobody looks at what goes to a file
    monkeypatch.setenv("FORCE_COLOR", "1")  # what rich takes for a terminal
    assert run("mine", "--set", "wait=0")[2] == ""
    code, printed, said = run(*slow)
    assert code == 0 and "100%" in said and "100%" not in printed


def test_a_picture_that_cannot_be_written_is_refused_before_any_work(mine: None, tmp_path: Path) -> None:
    begun = time.monotonic()
    assert run("mine", "--set", "wait=2", "--picture", str(tmp_path / "x" / "y.png"))[0] == 2
    assert run("mine", "--set", "wait=2", "--picture", str(tmp_path / "y"))[0] == 2
    assert time.monotonic() - begun < 4
    (tmp_path / "folder.png").mkdir()
    code, _, said = run("mine", "--picture", str(tmp_path / "folder.png"))
    assert code == 2 and "must be a file that can be written" in said and "Is a directory" in said


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nothing"], r"must be one of scaling, .*; got 'nothing'"),
        (["heat", "--set", "time"], r"--set must be NAME=NUMBER, of sigma, spread, width, time; got 'time'"),
        (["heat", "--set", "time=long"], r"--set must be NAME=NUMBER, .*; got 'time=long'"),
        (["heat", "--set", "time=nan"], r"--set must be NAME=NUMBER, .*; got 'time=nan'"),
        (["heat", "--set", "time=99"], r"time must be from 1 to 16; got 99"),
        (["heat", "--set", "width=2.5"], r"width must be a whole number; got 2\.5"),
        (["heat", "--set", "tim=2"], r"heat has the settings sigma, spread, width, time; got 'tim'"),
        (["--set", "time=2"], r"--set must go with the name of an experiment; got none"),
        (["--picture", "x.png"], r"--picture must go with the name of an experiment; got none"),
        (
            [*HEAT, "--picture", "/nowhere/at/all.png"],
            r"must be a file in a folder that is there.*got /nowhere/at/all\.png",
        ),
        ([*HEAT, "--picture", "charts.nothing"], r"must end in .*png.*; got charts\.nothing"),
    ],
)
def test_what_cannot_be_done_is_refused_with_a_sentence(arguments: list[str], sentence: str) -> None:
    code, printed, said = run(*arguments)
    assert code == 2 and printed == ""
    assert re.search(sentence, said), said
