"""The score scaling experiment: exact moments of softmax against samples and closed forms."""

import math

import pytest
import torch

import regard
from regard import score
from regard.theory import score_scaling
from regard.theory.analysis.normal_scores import diffuse_limit, exact_moments, frozen_limit


@pytest.mark.parametrize(("n", "std"), [(2, 1.0), (3, 0.2), (16, 4.0), (64, 1.0), (64, 30.0), (1000, 6.0)])
def test_exact_moments_match_samples(n: int, std: float) -> None:
    random = torch.Generator().manual_seed(n)
    draws = 3000
    a = (std * torch.randn(draws, n, generator=random, dtype=torch.float64)).softmax(-1)
    j = torch.diag_embed(a[:20]) - a[:20, :, None] * a[:20, None, :]
    squares = a.square().sum(-1)
    jacobian = squares - 2 * a.pow(3).sum(-1) + squares.square()
    torch.testing.assert_close(j.square().sum((1, 2)), jacobian[:20], atol=1e-12, rtol=0)
    exact = exact_moments(n, std)
    samples = {"entropy": -torch.special.xlogy(a, a).sum(-1), "sum_of_squares": squares, "jacobian_sq_norm": jacobian}
    for name, values in samples.items():
        error = float(values.std()) / math.sqrt(draws)
        # five standard errors of the mean of the draws
        assert abs(float(values.mean()) - getattr(exact, name)) < 5 * error, name


def test_two_keys_are_one_normal_difference() -> None:
    """Of two keys the weight is σ(δ) with δ normal of variance 2s²: an integral over one variable."""
    x = torch.arange(-30, 30, 0.01, dtype=torch.float64)
    density = torch.exp(-x.square() / (4 * 1.5**2))
    a = torch.sigmoid(x)
    entropy = -(torch.special.xlogy(a, a) + torch.special.xlogy(1 - a, 1 - a))
    jacobian = 4 * (a * (1 - a)).square()  # all four entries are ±a(1 - a)
    actual = exact_moments(2, 1.5)
    assert actual.entropy == pytest.approx(float((entropy * density).sum() / density.sum()), abs=1e-10)
    assert actual.jacobian_sq_norm == pytest.approx(float((jacobian * density).sum() / density.sum()), abs=1e-10)


def test_nearly_equal_scores_have_maximal_entropy() -> None:
    actual = exact_moments(50, 1e-4)
    assert actual.entropy == pytest.approx(math.log(50), abs=1e-7)  # minus s²/2
    assert actual.sum_of_squares == pytest.approx(1 / 50, abs=1e-9)
    assert actual.jacobian_sq_norm == pytest.approx((1 - 1 / 50) / 50, abs=1e-8)


def test_exact_moments_approach_both_limits() -> None:
    """Diffuse below √(2 log n), up to terms of order 1/n; frozen above, up to log log n / log n."""
    n = 2**20
    for std in (0.5, 1.0):
        limit = diffuse_limit(n, std)
        assert exact_moments(n, std).entropy == pytest.approx(limit.entropy, abs=10 * math.exp(std**2) / n)
        assert exact_moments(n, std).sum_of_squares == pytest.approx(limit.sum_of_squares, rel=100 * math.exp(4) / n)
    slack = math.log(math.log(n)) / math.log(n)
    for std in (20.0, 60.0):
        exact, limit = exact_moments(n, std), frozen_limit(n, std)
        m = math.sqrt(2 * math.log(n)) / std
        assert exact.sum_of_squares == pytest.approx(1 - m, abs=slack * m)
        assert exact.jacobian_sq_norm == pytest.approx(limit.jacobian_sq_norm, rel=slack)
        assert exact.entropy == pytest.approx(limit.entropy, rel=slack)


def test_the_frozen_limit_matches_poisson_dirichlet_samples() -> None:
    """Sample weights exp(-log Γ_k / m), with Γ_k the arrival times of a Poisson process."""
    m, random = 0.4, torch.Generator().manual_seed(0)
    steps = -torch.log(torch.rand(4000, 3000, generator=random, dtype=torch.float64))
    a = (-steps.cumsum(-1).log() / m).softmax(-1)
    squares = a.square().sum(-1)
    samples = {
        "entropy": -torch.special.xlogy(a, a).sum(-1),
        "sum_of_squares": squares,
        "jacobian_sq_norm": squares - 2 * a.pow(3).sum(-1) + squares.square(),
    }
    limit = frozen_limit(1000, math.sqrt(2 * math.log(1000)) / m)
    for name, values in samples.items():
        # five standard errors; 3000 points omit 3000^(1 - 1/m) = 6e-6 of the weight
        assert abs(float(values.mean()) - getattr(limit, name)) < 5 * float(values.std()) / math.sqrt(4000), name


@pytest.mark.parametrize(("num_keys", "correlation"), [(64, 0.05), pytest.param(1024, 0.9, marks=pytest.mark.long)])
def test_the_experiment_is_consistent_at_the_ends_of_its_sliders(num_keys: int, correlation: float) -> None:
    result = score_scaling(num_keys=num_keys, num_samples=1000, correlation=correlation, seed=9)
    assert result.is_consistent, str(result)


@pytest.mark.long
def test_the_experiment_is_consistent_at_the_upper_ends_of_its_sliders() -> None:
    result = score_scaling(num_keys=8192, num_samples=40_000, correlation=0.9, seed=9)
    assert result.is_consistent, str(result)


def test_a_wrong_scale_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(score, "scaled_dot", lambda scale=None: regard.score.modifier(lambda s, b, h, i, j: 1.3 * s))
    result = score_scaling(num_keys=64, num_samples=1000)
    assert [claim.holds for claim in result.claims if "with the scale" in claim.statement] == [False] * 3


def test_the_median_jacobian_falls_below_the_mean_as_head_dim_grows() -> None:
    actual = score_scaling(num_keys=512, num_samples=1000).data
    ratio = actual["jacobian_median"] / actual["jacobian"]
    assert ratio[-1] < 0.05 < 0.5 < ratio[0]
    assert (actual["jacobian"] > actual["jacobian_scaled"]).all()
