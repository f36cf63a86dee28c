"""Claims and outcomes: when they hold, what they print, what they refuse."""

import pytest
import torch

from regard.errors import SpecError
from regard.theory import Claim, Experiment, Outcome, Slider, experiment, experiments


def claim(predicted, found, relation="equal", within=0.1):
    return Claim("it is so", predicted, found, within, "reasons", relation)


def test_a_claim_holds_when_no_number_is_off_by_more_than_allowed():
    assert claim([1.0, 2.0], [1.05, 1.95]).holds
    assert not claim([1.0, 2.0], [1.05, 2.2]).holds
    assert claim([1.0, 2.0], [1.05, 2.2]).error == pytest.approx(0.2)


@pytest.mark.parametrize(("relation", "below", "above"), [("at most", True, False), ("at least", False, True)])
def test_a_bound_counts_only_what_is_beyond_it(relation, below, above):
    assert claim(1.0, -5.0, relation).holds is below
    assert claim(1.0, 7.0, relation).holds is above


@pytest.mark.parametrize("relation", ["equal", "at most", "at least"])
def test_a_claim_about_a_number_that_is_missing_does_not_hold(relation):
    assert not claim(1.0, float("nan"), relation).holds


def test_numbers_keep_all_their_digits():
    assert not claim(1.0, 1.0 + 1e-12, within=1e-13).holds
    assert not claim([1.0, 2.0], [1.0, 2.0 + 1e-12], within=1e-13).holds
    assert claim(torch.tensor(0.1), torch.tensor(0.1), within=0.0).holds


def test_a_claim_about_numbers_of_two_shapes_is_refused():
    with pytest.raises(SpecError, match=r"one shape; got \(2,\) and \(3,\), for: it is so"):
        claim([1.0, 2.0], [1.0, 2.0, 3.0])


def test_an_outcome_agrees_when_its_claims_hold_and_its_wrong_formulas_do_not():
    right, off = claim(1.0, 1.0), claim(1.0, 2.0)
    assert Outcome("x", (right,), (off,), (), {}).agrees
    assert not Outcome("x", (right, off), (off,), (), {}).agrees
    assert not Outcome("x", (right,), (right,), (), {}).agrees


def test_an_outcome_prints_what_holds_and_by_how_much_it_was_off():
    said = str(Outcome("x", (claim(1.0, 1.05),), (claim(1.0, 2.0),), (), {}))
    assert "holds  it is so\n          off by 0.05, allowed 0.1: reasons" in said
    assert "fails  wrong formula: it is so" in said


def returned(**settings):
    return Outcome("x", (), (), (), settings)


def test_settings_are_checked_against_their_sliders():
    run = Experiment("x", "about", returned, (Slider("n", "keys", 2, 8, 1), Slider("t", "time", 0.0, 1.0, 0.1))).run
    assert run(n=4.0, t=1, seed=3).settings == {"n": 4, "t": 1.0, "seed": 3, "progress": None}
    with pytest.raises(SpecError, match=r"n must be from 2 to 8; got 9"):
        run(n=9)
    with pytest.raises(SpecError, match=r"n must be a whole number; got 2\.5"):
        run(n=2.5)
    with pytest.raises(SpecError, match=r"x has the settings n, t; got 'm'"):
        run(m=1)
    for value in ("4", None, True, float("nan"), float("inf")):
        with pytest.raises(SpecError, match=rf"n must be a number from 2 to 8; got {value!r}"):
            run(n=value)


def test_an_unknown_experiment_is_refused_with_the_names_of_all():
    with pytest.raises(SpecError, match=r"must be one of scaling.*; got 'nothing'"):
        experiment("nothing")


@pytest.mark.parametrize("each", experiments(), ids=lambda e: e.name)
def test_every_experiment_agrees_at_its_quick_settings_for_several_seeds(each):
    for seed in range(3):
        outcome = each.run(seed=seed, **each.quick)
        assert outcome.agrees, f"seed {seed}\n{outcome}"
        assert outcome.wrong, "each ships at least one wrong formula"
        assert outcome.settings["seed"] == seed


@pytest.mark.parametrize("each", experiments(), ids=lambda e: e.name)
def test_every_experiment_gives_the_same_numbers_for_the_same_seed_and_says_how_far_it_is(each):
    told: list[float] = []
    one, two = (each.run(seed=5, progress=told.append, **each.quick) for _ in range(2))
    assert told and told[-1] == 1.0 and all(0 < share <= 1 for share in told)
    for name, value in one.data.items():
        assert torch.equal(value, two.data[name]), name


@pytest.mark.parametrize("each", experiments(), ids=lambda e: e.name)
def test_every_experiment_draws_its_panels(each):
    figure = each.run(**each.quick).picture()
    assert sum(axes.get_visible() for axes in figure.axes) >= 1


@pytest.mark.long
@pytest.mark.parametrize("each", experiments(), ids=lambda e: e.name)
def test_every_experiment_agrees_at_both_ends_of_every_slider(each):
    for slider in each.sliders:
        for end in (slider.low, slider.high):
            outcome = each.run(seed=1, **{**each.quick, slider.name: end})
            assert outcome.agrees, f"{slider.name} {end}\n{outcome}"


@pytest.mark.long
@pytest.mark.parametrize("each", experiments(), ids=lambda e: e.name)
def test_every_experiment_agrees_at_its_full_settings(each):
    outcome = each.run()
    assert outcome.agrees, str(outcome)
