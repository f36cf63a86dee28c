"""`regard theory`: its list, output, plots, exit codes and errors."""

import json
import re
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from regard.plot.chart_panels import ImagePanel, Panel, Series
from regard.theory import Claim, Experiment, ExperimentResult, Slider, list_experiments
from tests.cli.command import run_command

HEAT = ("heat_diffusion", "--set", "time=2")

run_theory = partial(run_command, "theory")


def run_experiment(
    *, n: int = 3, wait: float = 0.0, actual: float = 1.0, seed: int = 0, progress: Any = None
) -> ExperimentResult:
    """Return one claim, which holds if `actual` is 1, and one known-wrong formula."""
    for fraction in (0.5, 1.0):
        time.sleep(wait)
        progress(fraction)
    claims = (Claim("the value is 1", 1.0, actual, 0.1, "rounding"),)
    wrong = (Claim("the value is 0", 0.0, 1.0, 0.1, "a wrong formula", "at most"),)
    panels = (Panel("Curve", "x", "y", [Series("a", [1, 2], [1, float("inf")])]), ImagePanel("Map", "k", "q", [[1.0]]))
    return ExperimentResult("example", claims, wrong, panels, {"n": n, "seed": seed})


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> None:
    sliders = (
        Slider("n", "a number", 1, 9, 1),
        Slider("wait", "seconds", 0.0, 9.0, 0.1),
        Slider("actual", "the actual value", 0.0, 2.0, 0.1),
    )
    experiment = Experiment("example", "An experiment.", run_experiment, sliders, {"n": 1})
    monkeypatch.setattr(sys.modules["regard.cli.commands.theory"], "get_experiment", lambda name: experiment)


def test_without_a_name_all_experiments_are_listed() -> None:
    code, stdout, _ = run_theory()
    assert code == 0
    assert max(len(line) for line in stdout.splitlines()) < 80
    for experiment in list_experiments():
        assert re.search(rf"^{experiment.name} +{re.escape(experiment.description[:20])}", stdout, re.M)
        for slider in experiment.sliders:
            assert f"--set {slider.name}=  {slider.low:g} to {slider.high:g}" in stdout


def test_experiments_are_listed_as_json() -> None:
    listed = json.loads(run_theory("--json")[1])
    assert [experiment["name"] for experiment in listed] == [experiment.name for experiment in list_experiments()]
    assert listed[0]["settings"][0] == {
        "name": "num_keys",
        "description": "number of keys",
        "low": 64,
        "high": 8192,
        "step": 64,
    }


def test_results_have_claims_wrong_formulas_and_charts() -> None:
    code, stdout, _ = run_theory(*HEAT)
    assert code == 0
    assert "sigma 0.3, key_std 1, dim 3, time 2, seed 0" in stdout
    values = json.loads(run_theory(*HEAT, "--json")[1])
    assert values["claims"] and values["false_claims"]
    assert all(f"holds  {claim['statement'][:40]}" in stdout for claim in values["claims"])
    assert all(f"wrong  {claim['statement'][:40]}" in stdout for claim in values["false_claims"])
    assert "All claims hold." in stdout
    assert "A bump follows the heat equation" in stdout and "└──" in stdout
    assert max(len(line) for line in stdout.splitlines()) < 80


def test_claims_have_expected_and_actual_values(example: None) -> None:
    code, stdout, _ = run_theory("example")
    assert code == 0
    assert "expected 1   actual 1\n" in stdout and "error 0, tolerance 0.1: rounding" in stdout
    assert "expected 0 or less   actual 1" in stdout


@pytest.mark.parametrize(
    ("actual", "expected_code", "verdict"), [("1", 0, "holds"), ("1.05", 0, "holds"), ("1.5", 1, "FAILS")]
)
def test_the_exit_code_is_1_if_a_claim_fails(example: None, actual: str, expected_code: int, verdict: str) -> None:
    code, stdout, _ = run_theory("example", "--set", f"actual={actual}")
    assert code == expected_code and f"{verdict}  the value is 1" in stdout
    assert ("Some claims do not hold, or a known-wrong formula does." in stdout) is (code == 1)


def test_settings_seed_and_quick_are_passed_to_the_experiment(example: None) -> None:
    def settings(*arguments: str) -> Any:
        return json.loads(run_theory("example", *arguments, "--json")[1])["settings"]

    assert settings() == {"n": 3, "seed": 0}
    assert settings("--seed", "4", "--set", "n=7") == {"n": 7, "seed": 4}
    assert settings("--quick") == {"n": 1, "seed": 0}
    assert settings("--quick", "--set", "n=5") == {"n": 5, "seed": 0}


def test_json_has_claims_and_panels_with_null_for_nonfinite_numbers(example: None) -> None:
    code, stdout, _ = run_theory("example", "--json", "--set", "actual=2")
    values = json.loads(stdout, parse_constant=lambda name: pytest.fail(name))
    assert code == 1 and values["is_consistent"] is False
    assert values["claims"][0] == {
        "statement": "the value is 1",
        "relation": "equal",
        "tolerance_reason": "rounding",
        "holds": False,
        "expected": 1.0,
        "actual": 2.0,
        "max_error": 1.0,
        "tolerance": 0.1,
    }
    assert values["panels"][0]["series"][0]["y"] == [1.0, None]
    assert values["panels"][1]["values"] == [[1.0]]


def test_charts_are_written_to_a_file(example: None, tmp_path: Path) -> None:
    assert run_theory("example", "--plot", str(tmp_path / "example.png"))[0] == 0
    assert (tmp_path / "example.png").read_bytes().startswith(b"\x89PNG")
    assert run_theory("example", "--plot", str(tmp_path / "example.svg"))[0] == 0
    assert b"<svg" in (tmp_path / "example.svg").read_bytes()


def test_a_progress_bar_is_shown_on_stderr_after_two_seconds(example: None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert sys.modules["regard.cli.commands.theory"].BAR_DELAY_S == 2.0
    monkeypatch.setattr(sys.modules["regard.cli.commands.theory"], "BAR_DELAY_S", 0.5)
    slow = ("example", "--set", "wait=0.4")
    assert run_theory(*slow)[2] == ""  # no bar is written to a file
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich then assumes a terminal
    assert run_theory("example", "--set", "wait=0")[2] == ""
    code, stdout, stderr = run_theory(*slow)
    assert code == 0 and "100%" in stderr and "100%" not in stdout


def test_unwritable_plot_paths_exit_before_the_experiment(example: None, tmp_path: Path) -> None:
    start = time.monotonic()
    assert run_theory("example", "--set", "wait=2", "--plot", str(tmp_path / "x" / "y.png"))[0] == 2
    assert run_theory("example", "--set", "wait=2", "--plot", str(tmp_path / "y"))[0] == 2
    assert time.monotonic() - start < 4
    (tmp_path / "folder.png").mkdir()
    code, _, stderr = run_theory("example", "--plot", str(tmp_path / "folder.png"))
    assert code == 2 and "must be a file that can be written" in stderr and "Is a directory" in stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing"], r"must be one of score_scaling, .*; got 'nothing'"),
        (
            ["heat_diffusion", "--set", "time"],
            r"--set must be NAME=NUMBER, where NAME is one of sigma, key_std, dim, time; got 'time'",
        ),
        (["heat_diffusion", "--set", "time=long"], r"--set must be NAME=NUMBER, .*; got 'time=long'"),
        (["heat_diffusion", "--set", "time=nan"], r"--set must be NAME=NUMBER, .*; got 'time=nan'"),
        (["heat_diffusion", "--set", "time=99"], r"time must be from 1 to 16; got 99"),
        (["heat_diffusion", "--set", "dim=2.5"], r"dim must be an integer; got 2\.5"),
        (["heat_diffusion", "--set", "tim=2"], r"heat_diffusion has the settings sigma, key_std, dim, time; got 'tim'"),
        (["--set", "time=2"], r"--set needs the name of an experiment; got none"),
        (["--plot", "x.png"], r"--plot needs the name of an experiment; got none"),
        (
            [*HEAT, "--plot", "/nowhere/at/all.png"],
            r"must be a file in an existing folder; got /nowhere/at/all\.png",
        ),
        ([*HEAT, "--plot", "charts.nothing"], r"must end in .*png.*; got charts\.nothing"),
    ],
)
def test_invalid_calls_exit_with_2(arguments: list[str], message: str) -> None:
    code, stdout, stderr = run_theory(*arguments)
    assert code == 2 and stdout == ""
    assert re.search(message, stderr), stderr
