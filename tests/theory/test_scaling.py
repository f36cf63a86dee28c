"""Scaling: the exact means of softmax over normal scores, held against draws and closed forms, and the experiment."""

import math

import pytest
import torch

import regard
from regard import score
from regard.theory import scaling
from regard.theory.normal_scores import expected, frozen, spread_out


@pytest.mark.parametrize(("n", "spread"), [(2, 1.0), (3, 0.2), (16, 4.0), (64, 1.0), (64, 30.0), (1000, 6.0)])
def test_exact_means_are_those_of_many_draws(n: int, spread: float) -> None:
    random = torch.Generator().manual_seed(n)
    draws = 3000
    a = (spread * torch.randn(draws, n, generator=random, dtype=torch.float64)).softmax(-1)
    j = torch.diag_embed(a[:20]) - a[:20, :, None] * a[:20, None, :]
    squares = a.square().sum(-1)
    jacobian = squares - 2 * a.pow(3).sum(-1) + squares.square()
    torch.testing.assert_close(j.square().sum((1, 2)), jacobian[:20], atol=1e-12, rtol=0)
    exact = expected(n, spread)
    drawn = {"entropy": -torch.special.xlogy(a, a).sum(-1), "squares": squares, "jacobian": jacobian}
    for name, values in drawn.items():
        error = float(values.std()) / math.sqrt(draws)
        # five standard errors of the mean of the draws
        assert abs(float(values.mean()) - getattr(exact, name)) < 5 * error, name


def test_two_keys_are_one_normal_difference() -> None:
    """Of two keys the weight is σ(δ) with δ normal of variance 2s²: an integral over one variable."""
    x = torch.arange(-30, 30, 0.01, dtype=torch.float64)
    share = torch.exp(-x.square() / (4 * 1.5**2))
    a = torch.sigmoid(x)
    entropy = -(torch.special.xlogy(a, a) + torch.special.xlogy(1 - a, 1 - a))
    jacobian = 4 * (a * (1 - a)).square()  # all four entries are ±a(1 - a)
    found = expected(2, 1.5)
    assert found.entropy == pytest.approx(float((entropy * share).sum() / share.sum()), abs=1e-10)
    assert found.jacobian == pytest.approx(float((jacobian * share).sum() / share.sum()), abs=1e-10)


def test_few_equal_scores_have_the_entropy_of_as_many_keys() -> None:
    found = expected(50, 1e-4)
    assert found.entropy == pytest.approx(math.log(50), abs=1e-7)  # less s²/2
    assert found.squares == pytest.approx(1 / 50, abs=1e-9)
    assert found.jacobian == pytest.approx((1 - 1 / 50) / 50, abs=1e-8)


def test_many_keys_reach_the_limits_on_both_sides() -> None:
    """Spread out below √(2 log n), up to terms of order 1/n; frozen beyond, up to log log n / log n."""
    n = 2**20
    for spread in (0.5, 1.0):
        near = spread_out(n, spread)
        assert expected(n, spread).entropy == pytest.approx(near.entropy, abs=10 * math.exp(spread**2) / n)
        assert expected(n, spread).squares == pytest.approx(near.squares, rel=100 * math.exp(4) / n)
    slack = math.log(math.log(n)) / math.log(n)
    for spread in (20.0, 60.0):
        exact, limit = expected(n, spread), frozen(n, spread)
        m = math.sqrt(2 * math.log(n)) / spread
        assert exact.squares == pytest.approx(1 - m, abs=slack * m)
        assert exact.jacobian == pytest.approx(limit.jacobian, rel=slack)
        assert exact.entropy == pytest.approx(limit.entropy, rel=slack)


def test_the_frozen_limit_is_that_of_poisson_dirichlet_weights() -> None:
    """Weights exp(-log Γ_k / m), with Γ_k the times of a Poisson process, drawn."""
    m, random = 0.4, torch.Generator().manual_seed(0)
    steps = -torch.log(torch.rand(4000, 3000, generator=random, dtype=torch.float64))
    a = (-steps.cumsum(-1).log() / m).softmax(-1)
    squares = a.square().sum(-1)
    drawn = {
        "entropy": -torch.special.xlogy(a, a).sum(-1),
        "squares": squares,
        "jacobian": squares - 2 * a.pow(3).sum(-1) + squares.square(),
    }
    limit = frozen(1000, math.sqrt(2 * math.log(1000)) / m)
    for name, values in drawn.items():
        # five standard errors; the 3000 points that are drawn leave out 3000^(1 - 1/m) = 6e-6 of the weight
        assert abs(float(values.mean()) - getattr(limit, name)) < 5 * float(values.std()) / math.sqrt(4000), name


@pytest.mark.parametrize(("keys", "correlation"), [(64, 0.05), (1024, 0.9)])
def test_it_agrees_where_its_sliders_end(keys: int, correlation: float) -> None:
    outcome = scaling(keys=keys, samples=1000, correlation=correlation, seed=9)
    assert outcome.agrees, str(outcome)


@pytest.mark.long
def test_it_agrees_where_its_sliders_end_above() -> None:
    outcome = scaling(keys=8192, samples=40_000, correlation=0.9, seed=9)
    assert outcome.agrees, str(outcome)


def test_a_scale_of_another_power_of_the_width_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(score, "scaled_dot", lambda scale=None: regard.score.rule(lambda s, b, h, i, j: 1.3 * s))
    outcome = scaling(keys=256, samples=2000)
    assert [claim.holds for claim in outcome.claims if "with the scale" in claim.says] == [False] * 3


def test_the_typical_query_has_a_smaller_jacobian_than_the_mean_and_the_gap_grows_with_the_width() -> None:
    found = scaling(keys=512, samples=1000).data
    ratio = found["jacobian_median"] / found["jacobian"]
    assert ratio[-1] < 0.05 < 0.5 < ratio[0]
    assert (found["jacobian"] > found["jacobian_scaled"]).all()
