"""The heat diffusion experiment: closed forms against samples and Sinkhorn, limits against finite differences."""

import math
import sys

import pytest
import torch

import regard
from regard import normalizer, score
from regard.theory import heat_diffusion
from regard.theory.analysis.diffusion_limits import extrapolate_limits, limit_positions, sinkhorn_potential


def test_softmax_of_normal_keys_matches_the_closed_form() -> None:
    random = torch.Generator().manual_seed(0)
    std, epsilon, draws = 1.2, 0.5, 100_000
    keys = std * torch.randn(draws, 1, generator=random, dtype=torch.float64)
    x = torch.tensor([[-1.5], [0.0], [0.4], [2.0]], dtype=torch.float64)
    output = regard.attention(x, keys, keys, score=score.gaussian(math.sqrt(epsilon)))
    expected = x * std**2 / (std**2 + epsilon)
    # five standard errors of a mean over about a tenth of the keys, with a standard deviation below 1
    torch.testing.assert_close(output, expected, atol=5 / math.sqrt(draws / 20), rtol=0)


def test_sinkhorn_of_normal_quantiles_matches_the_closed_form() -> None:
    n, std, epsilon = 1000, 1.0, 0.5
    level = (torch.arange(n, dtype=torch.float64) + 0.5) / n
    x = std * torch.special.ndtri(level)[:, None]
    output = regard.attention(x, x, x, score=score.gaussian(math.sqrt(epsilon)), normalizer=normalizer.sinkhorn(200))
    c = (math.sqrt(epsilon**2 + 4 * std**4) - epsilon) / 2
    middle = x.abs() < 1.5
    # equal weights at the quantiles omit the tails beyond 1/2n: about log n / n of the variance
    torch.testing.assert_close(output[middle], (x * c / std**2)[middle], atol=2 * math.log(n) / n, rtol=0)


def test_sinkhorn_potential_gives_a_doubly_stochastic_kernel() -> None:
    grid = torch.arange(-6, 6, 0.1, dtype=torch.float64)[:, None]
    log_density = (-grid.flatten().square() / 2).log_softmax(0)
    density = log_density.exp()
    u = sinkhorn_potential(grid, score.gaussian(0.7), log_density)
    kernel = torch.exp(-((grid - grid.mT) ** 2) / (2 * 0.49)) * u.exp() * u.exp()[:, None]
    torch.testing.assert_close(kernel @ density, torch.ones(len(grid), dtype=grid.dtype), atol=1e-8, rtol=0)
    torch.testing.assert_close(density @ kernel, torch.ones(len(grid), dtype=grid.dtype), atol=1e-8, rtol=0)


def test_limits_match_finite_differences() -> None:
    x, h = limit_positions(), 1e-4
    f, log_p = (lambda y: torch.sin(2 * y)), (lambda y: -((y.square() - 1) ** 2) / 2)
    second = (f(x + h) - 2 * f(x) + f(x - h)) / h**2
    first = (f(x + h) - f(x - h)) / (2 * h)
    log_density_gradient = (log_p(x + h) - log_p(x - h)) / (2 * h)
    output = extrapolate_limits()
    # finite differences of step 1e-4: rounding of 1e-16 / 1e-8, truncation of 1e-8, times derivatives below 50
    torch.testing.assert_close(output["drift"].exact, second + 2 * log_density_gradient * first, atol=1e-5, rtol=0)
    torch.testing.assert_close(output["plain"].exact, second, atol=1e-5, rtol=0)
    for limit in output.values():
        torch.testing.assert_close(limit.estimate, limit.exact, atol=limit.error_estimate, rtol=0)
        assert limit.error_estimate < 1e-5


def test_the_kurtosis_matches_a_poisson_random_walk() -> None:
    """The exact kernel is the distribution of a random walk with a Poisson number of steps."""
    random = torch.Generator().manual_seed(0)
    time, draws = 4.0, 400_000
    steps = torch.poisson(torch.full((draws,), time, dtype=torch.float64), generator=random)
    ends = steps.sqrt() * torch.randn(draws, generator=random, dtype=torch.float64)
    kurtosis = float((ends**4).mean() / (ends**2).mean() ** 2)
    # fourth moments of a distribution with kurtosis near 4: a standard error of about √(E x⁸ / draws), 0.02
    assert kurtosis == pytest.approx(3 + 3 / time, abs=0.1)


@pytest.mark.parametrize(
    "sigma, key_std, dim, time", [(0.1, 0.5, 1, 1.0), (1.0, 2.0, 8, 16.0), (0.1, 2.0, 2, 7.5), (1.0, 0.5, 3, 1.0)]
)
def test_the_experiment_is_consistent_at_the_ends_of_its_sliders(
    sigma: float, key_std: float, dim: int, time: float
) -> None:
    result = heat_diffusion(sigma=sigma, key_std=key_std, dim=dim, time=time, seed=3)
    assert result.is_consistent, str(result)


def test_diffusion_conserves_the_heat_of_the_bump() -> None:
    result = heat_diffusion()
    output = result.data["bump_actual"]
    torch.testing.assert_close(output.sum(-1), output[:1].sum(-1).expand(len(output)), atol=1e-9, rtol=0)
    assert (output.amax(-1).diff() < 0).all()
    assert result.animation is not None and result.animation.points.shape == (41, 81, 2)


@pytest.mark.parametrize("factor", [0.99, 1.01])
def test_a_wrong_sigma_is_detected(factor: float, monkeypatch: pytest.MonkeyPatch) -> None:
    gaussian = score.gaussian
    monkeypatch.setattr(sys.modules["regard.score"], "gaussian", lambda sigma: gaussian(factor * sigma))
    failing = [claim.statement for claim in heat_diffusion().claims if not claim.holds]
    assert len(failing) >= 5
