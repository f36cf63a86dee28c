"""Claims and results of experiments: when they hold, their text, and invalid settings."""

from functools import cache

import pytest
import torch

from regard.errors import ArgumentError
from regard.theory import Claim, Experiment, ExperimentResult, Slider, get_experiment, list_experiments


def claim(expected, actual, relation="equal", tolerance=0.1):
    return Claim("it is so", expected, actual, tolerance, "reasons", relation)


def test_a_claim_holds_within_its_tolerance():
    assert claim([1.0, 2.0], [1.05, 1.95]).holds
    assert not claim([1.0, 2.0], [1.05, 2.2]).holds
    assert claim([1.0, 2.0], [1.05, 2.2]).max_error == pytest.approx(0.2)


@pytest.mark.parametrize(("relation", "below", "above"), [("at most", True, False), ("at least", False, True)])
def test_a_bound_fails_only_beyond_it(relation, below, above):
    assert claim(1.0, -5.0, relation).holds is below
    assert claim(1.0, 7.0, relation).holds is above


@pytest.mark.parametrize("relation", ["equal", "at most", "at least"])
def test_a_claim_with_nan_does_not_hold(relation):
    assert not claim(1.0, float("nan"), relation).holds


def test_claims_keep_float64_precision():
    assert not claim(1.0, 1.0 + 1e-12, tolerance=1e-13).holds
    assert not claim([1.0, 2.0], [1.0, 2.0 + 1e-12], tolerance=1e-13).holds
    assert claim(torch.tensor(0.1), torch.tensor(0.1), tolerance=0.0).holds


def test_a_claim_with_different_shapes_raises():
    with pytest.raises(ArgumentError, match=r"the same shape; got \(2,\) and \(3,\), for: it is so"):
        claim([1.0, 2.0], [1.0, 2.0, 3.0])


def test_a_result_is_consistent_if_only_true_claims_hold():
    right, wrong = claim(1.0, 1.0), claim(1.0, 2.0)
    assert ExperimentResult("x", (right,), (wrong,), (), {}).is_consistent
    assert not ExperimentResult("x", (right, wrong), (wrong,), (), {}).is_consistent
    assert not ExperimentResult("x", (right,), (right,), (), {}).is_consistent


def test_the_text_of_a_result_has_errors_and_tolerances():
    text = str(ExperimentResult("x", (claim(1.0, 1.05),), (claim(1.0, 2.0),), (), {}))
    assert "holds  it is so\n          error 0.05, tolerance 0.1: reasons" in text
    assert "fails  false claim: it is so" in text


def return_settings(**settings):
    return ExperimentResult("x", (), (), (), settings)


def test_settings_are_checked_against_their_sliders():
    run = Experiment(
        "x", "about", return_settings, (Slider("n", "keys", 2, 8, 1), Slider("t", "time", 0.0, 1.0, 0.1))
    ).run
    assert run(n=4.0, t=1, seed=3).settings == {"n": 4, "t": 1.0, "seed": 3, "progress": None}
    with pytest.raises(ArgumentError, match=r"n must be from 2 to 8; got 9"):
        run(n=9)
    with pytest.raises(ArgumentError, match=r"n must be an integer; got 2\.5"):
        run(n=2.5)
    with pytest.raises(ArgumentError, match=r"x has the settings n, t; got 'm'"):
        run(m=1)
    for value in ("4", None, True, float("nan"), float("inf")):
        with pytest.raises(ArgumentError, match=rf"n must be a number from 2 to 8; got {value!r}"):
            run(n=value)


def test_an_unknown_experiment_raises_with_all_names():
    with pytest.raises(ArgumentError, match=r"must be one of score_scaling.*; got 'nothing'"):
        get_experiment("nothing")


@cache
def quick_result(experiment):
    """Return the result with quick settings and seed 5. Several tests read it."""
    return experiment.run(seed=5, **experiment.quick_settings)


SLOW = ("score_scaling", "kernel_methods", "token_clustering", "gradient_flow")  # more than a second
PLOTTED = ("equivariance", "bottleneck")  # images and curves; a plot takes a second
every_experiment = pytest.mark.parametrize(
    "experiment",
    [pytest.param(e, marks=pytest.mark.long) if e.name in SLOW else e for e in list_experiments()],
    ids=lambda e: e.name,
)


@every_experiment
def test_every_experiment_is_consistent_with_quick_settings(experiment):
    result = quick_result(experiment)
    assert result.is_consistent, str(result)
    assert result.false_claims, "every experiment has at least one false claim"
    assert result.settings["seed"] == 5


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("experiment", list_experiments(), ids=lambda e: e.name)
def test_every_experiment_is_consistent_for_every_seed(experiment, seed):
    result = experiment.run(seed=seed, **experiment.quick_settings)
    assert result.is_consistent, str(result)


@every_experiment
def test_every_experiment_is_deterministic_and_reports_progress(experiment):
    fractions: list[float] = []
    repeated = experiment.run(seed=5, progress=fractions.append, **experiment.quick_settings)
    assert fractions and fractions[-1] == 1.0 and all(0 < fraction <= 1 for fraction in fractions)
    for name, value in quick_result(experiment).data.items():
        assert torch.equal(value, repeated.data[name]), name


@pytest.mark.parametrize(
    "experiment",
    [e if e.name in PLOTTED else pytest.param(e, marks=pytest.mark.long) for e in list_experiments()],
    ids=lambda e: e.name,
)
def test_every_experiment_plots_its_panels(experiment):
    figure = quick_result(experiment).plot()
    assert sum(axes.get_visible() for axes in figure.axes) >= 1


@pytest.mark.long
@pytest.mark.parametrize("experiment", list_experiments(), ids=lambda e: e.name)
def test_every_experiment_is_consistent_at_the_ends_of_its_sliders(experiment):
    for slider in experiment.sliders:
        for end in (slider.low, slider.high):
            result = experiment.run(seed=1, **{**experiment.quick_settings, slider.name: end})
            assert result.is_consistent, f"{slider.name} {end}\n{result}"


@pytest.mark.long
@pytest.mark.parametrize("experiment", list_experiments(), ids=lambda e: e.name)
def test_every_experiment_is_consistent_with_default_settings(experiment):
    result = experiment.run()
    assert result.is_consistent, str(result)
