"""Heat: closed forms against draws and the library's own Sinkhorn, limits against differences, and the experiment."""

import math
import sys

import pytest
import torch

import regard
from regard import score, weigh
from regard.theory import heat
from regard.theory.diffusion import balanced, limits, slopes


def test_softmax_takes_normal_draws_where_the_closed_form_says() -> None:
    random = torch.Generator().manual_seed(0)
    spread, epsilon, draws = 1.2, 0.5, 100_000
    keys = spread * torch.randn(draws, 1, generator=random, dtype=torch.float64)
    x = torch.tensor([[-1.5], [0.0], [0.4], [2.0]], dtype=torch.float64)
    found = regard.attention(x, keys, keys, score=score.metric(math.sqrt(epsilon)))
    expected = x * spread**2 / (spread**2 + epsilon)
    # a mean over the keys that the kernel sees, some tenth of all, of spread below 1: five standard errors
    torch.testing.assert_close(found, expected, atol=5 / math.sqrt(draws / 20), rtol=0)


def test_sinkhorn_of_the_library_takes_quantiles_where_the_closed_form_says() -> None:
    n, spread, epsilon = 1000, 1.0, 0.5
    level = (torch.arange(n, dtype=torch.float64) + 0.5) / n
    x = spread * torch.special.ndtri(level)[:, None]
    found = regard.attention(x, x, x, score=score.metric(math.sqrt(epsilon)), weigh=weigh.sinkhorn(200))
    c = (math.sqrt(epsilon**2 + 4 * spread**4) - epsilon) / 2
    middle = x.abs() < 1.5
    # equal shares at the quantiles leave out the tails beyond 1/2n: about log n / n of the variance
    torch.testing.assert_close(found[middle], (x * c / spread**2)[middle], atol=2 * math.log(n) / n, rtol=0)


def test_a_balanced_kernel_has_rows_and_columns_of_sum_one() -> None:
    at = torch.arange(-6, 6, 0.1, dtype=torch.float64)[:, None]
    logs = (-at.flatten().square() / 2).log_softmax(0)
    shares = logs.exp()
    u = balanced(at, score.metric(0.7), logs)
    kernel = torch.exp(-((at - at.mT) ** 2) / (2 * 0.49)) * u.exp() * u.exp()[:, None]
    torch.testing.assert_close(kernel @ shares, torch.ones(len(at), dtype=at.dtype), atol=1e-8, rtol=0)
    torch.testing.assert_close(shares @ kernel, torch.ones(len(at), dtype=at.dtype), atol=1e-8, rtol=0)


def test_limits_are_the_derivatives_by_differences() -> None:
    x, h = slopes(), 1e-4
    f, log_p = (lambda y: torch.sin(2 * y)), (lambda y: -((y.square() - 1) ** 2) / 2)
    second = (f(x + h) - 2 * f(x) + f(x - h)) / h**2
    first = (f(x + h) - f(x - h)) / (2 * h)
    pull = (log_p(x + h) - log_p(x - h)) / (2 * h)
    found = limits()
    # differences of step 1e-4 are off by 1e-16 / 1e-8 in rounding and 1e-8 in curvature, times derivatives below 50
    torch.testing.assert_close(found["drift"].exact, second + 2 * pull * first, atol=1e-5, rtol=0)
    torch.testing.assert_close(found["plain"].exact, second, atol=1e-5, rtol=0)
    for limit in found.values():
        torch.testing.assert_close(limit.found, limit.exact, atol=limit.step, rtol=0)
        assert limit.step < 1e-5


def test_the_kurtosis_is_that_of_a_poisson_number_of_normal_steps() -> None:
    """The exact kernel is where a walk of a Poisson number of steps ends: drawn."""
    random = torch.Generator().manual_seed(0)
    time, draws = 4.0, 400_000
    steps = torch.poisson(torch.full((draws,), time, dtype=torch.float64), generator=random)
    ends = steps.sqrt() * torch.randn(draws, generator=random, dtype=torch.float64)
    kurtosis = float((ends**4).mean() / (ends**2).mean() ** 2)
    # fourth moments of a law with kurtosis near 4: a standard error of about √(E x⁸ / draws), 0.02
    assert kurtosis == pytest.approx(3 + 3 / time, abs=0.1)


@pytest.mark.parametrize(
    "sigma, spread, width, time", [(0.1, 0.5, 1, 1.0), (1.0, 2.0, 8, 16.0), (0.1, 2.0, 2, 7.5), (1.0, 0.5, 3, 1.0)]
)
def test_it_agrees_where_its_sliders_end(sigma: float, spread: float, width: int, time: float) -> None:
    outcome = heat(sigma=sigma, spread=spread, width=width, time=time, seed=3)
    assert outcome.agrees, str(outcome)


def test_the_bump_keeps_its_heat_while_it_spreads() -> None:
    outcome = heat()
    found = outcome.data["found"]
    torch.testing.assert_close(found.sum(-1), found[:1].sum(-1).expand(len(found)), atol=1e-9, rtol=0)
    assert (found.amax(-1).diff() < 0).all()
    assert outcome.motion is not None and outcome.motion.points.shape == (41, 81, 2)


@pytest.mark.parametrize("factor", [0.99, 1.01])
def test_it_does_not_agree_with_another_width_of_the_kernel(factor: float, monkeypatch: pytest.MonkeyPatch) -> None:
    metric = score.metric
    monkeypatch.setattr(sys.modules["regard.spec.score"], "metric", lambda sigma: metric(factor * sigma))
    failing = [claim.says for claim in heat().claims if not claim.holds]
    assert len(failing) >= 5
