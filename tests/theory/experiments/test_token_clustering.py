"""The token clustering experiment: velocities against loops, rates against the field, wrong formulas detected."""

import importlib
import math

import pytest
import torch
from torch.nn.functional import normalize

from regard.theory import token_clustering
from regard.theory.analysis.token_dynamics import (
    cluster_labels,
    integrate_on_sphere,
    interaction_energy,
    rk4_step,
    softmax_velocity,
    unnormalized_velocity,
)
from regard.theory.analysis.token_trajectories import (
    simulate_orthonormal,
    softmax_rate,
    times_at_gamma,
    two_cluster_rate,
    unnormalized_rate,
)

SMALL = dict(num_tokens=6, beta=2.0, time=3.0)


def tokens_on_sphere(n, d, seed=0):
    x = torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return normalize(x, dim=-1)


def reference_velocity(x, beta, is_normalized):
    """Compute the definition token by token."""
    rows = []
    for i in range(len(x)):
        raw = [math.exp(beta * float(x[i] @ x[j])) for j in range(len(x))]
        total = sum(raw) if is_normalized else len(x)
        mean = sum(weight / total * x[j] for j, weight in enumerate(raw))
        rows.append(mean - float(x[i] @ mean) * x[i])
    return torch.stack(rows)


@pytest.mark.parametrize(("velocity", "is_normalized"), [(softmax_velocity, True), (unnormalized_velocity, False)])
def test_velocities_match_the_definition(velocity, is_normalized):
    x = tokens_on_sphere(7, 3)
    # float64, numbers near 1
    torch.testing.assert_close(velocity(1.7)(x), reference_velocity(x, 1.7, is_normalized), atol=1e-13, rtol=0)


def test_times_at_gamma_match_an_euler_simulation():
    # six tokens, β = 1.5: inner products at the times 1 and 3, from 10,000 Euler steps per unit of time
    times = times_at_gamma(torch.tensor([0.0, 0.33573, 0.96358], dtype=torch.float64), softmax_rate(6, 1.5))
    # five digits of a product, divided by its slope of 0.46 and 0.07
    torch.testing.assert_close(times, torch.tensor([0.0, 1.0, 3.0], dtype=torch.float64), atol=2e-4, rtol=0)


@pytest.mark.parametrize(
    ("velocity", "rate"), [(softmax_velocity, softmax_rate), (unnormalized_velocity, unnormalized_rate)]
)
def test_rates_of_equal_products_match_the_velocity_field(velocity, rate):
    n, gamma, beta = 5, 0.37, 1.3
    gram = (1 - gamma) * torch.eye(n, dtype=torch.float64) + gamma
    x = torch.linalg.cholesky(gram)
    v = velocity(beta)(x)
    rates = x @ v.mT + v @ x.mT
    is_pair = ~torch.eye(n, dtype=torch.bool)
    expected = rate(n, beta)(torch.tensor(gamma, dtype=torch.float64))
    torch.testing.assert_close(rates[is_pair], expected.expand(n * n - n), atol=1e-13, rtol=0)


def test_the_rate_of_two_clusters_matches_the_velocity_field():
    angle, beta = 1.1, 2.5
    ends = torch.tensor([[1.0, 0.0], [math.cos(angle), math.sin(angle)]], dtype=torch.float64)
    x = ends.repeat_interleave(3, 0)
    v = softmax_velocity(beta)(x)
    rate_of_product = x[0] @ v[-1] + v[0] @ x[-1]
    expected = two_cluster_rate(beta)(torch.tensor(math.cos(angle), dtype=torch.float64))
    torch.testing.assert_close(rate_of_product, expected, atol=1e-13, rtol=0)


def test_interaction_energy_matches_its_formula():
    x = tokens_on_sphere(5, 3)
    double_sum = sum(math.exp(2.0 * float(a @ b)) for a in x for b in x) / (2 * 2.0 * 25)
    assert float(interaction_energy(x, 2.0)) == pytest.approx(double_sum, rel=1e-13)


def test_rk4_step_has_fourth_order():
    def error(steps):
        x = torch.ones((), dtype=torch.float64)
        for _ in range(steps):
            x = rk4_step(x, lambda y: -y, 1.0 / steps)
        return abs(float(x) - math.exp(-1))

    assert error(10) / error(20) == pytest.approx(16, rel=0.1)  # the next order contributes a tenth at ten steps


def test_integration_stays_on_the_sphere():
    path = integrate_on_sphere(tokens_on_sphere(4, 3), softmax_velocity(2.0), torch.tensor([0.0, 0.5, 2.0]), 5)
    assert path.shape == (3, 4, 3)
    torch.testing.assert_close(path.norm(dim=-1), torch.ones(3, 4, dtype=torch.float64), atol=1e-14, rtol=0)


def test_halving_the_step_divides_the_error_by_sixteen():
    trajectory = simulate_orthonormal(6, 1.5, softmax_velocity(1.5), softmax_rate(6, 1.5))
    assert float((trajectory.product_range - trajectory.gamma).abs().max()) == pytest.approx(
        trajectory.step_halving_error / 15, rel=0.3
    )


def test_clusters_are_connected_components():
    angles = torch.tensor([0.0, 0.1, 0.2, 0.3, 1.5, 1.55, 3.0])
    x = torch.stack([angles.cos(), angles.sin()], -1)
    assert cluster_labels(x).tolist() == [0, 0, 0, 0, 1, 1, 2]


@pytest.mark.long
def test_clusters_persist_for_large_beta_only():
    counts = token_clustering().data
    assert len(set(counts["num_clusters"][20:].tolist())) == 1
    assert int(counts["num_clusters"][-1]) > 1
    assert int(counts["num_clusters_at_beta_one"][-1]) == 1


def test_the_animation_has_a_cluster_for_each_token():
    animation = token_clustering(**SMALL).animation
    assert animation.points.shape == (61, 6, 2)
    assert animation.times[-1] == 3.0
    assert len(animation.groups) == 6


@pytest.mark.long
@pytest.mark.parametrize(
    ("module_name", "name", "replacement"),
    [
        (
            "experiments.token_clustering",
            "softmax_rate",
            lambda n, b: lambda g: 2 * (1 - g) * (n * g + 1) / (torch.exp(b * (1 - g)) + n),
        ),
        (
            "experiments.token_clustering",
            "unnormalized_rate",
            lambda n, b: lambda g: 2 * torch.exp(b * g) * (1 - g) * ((n - 1) * g + 1) / (n - 1),
        ),
        (
            "analysis.token_trajectories",
            "two_cluster_rate",
            lambda b: lambda g: 2 * (1 - g) / (torch.exp(b * (1 - g)) + 1),
        ),
        ("analysis.token_trajectories", "unnormalized_velocity", lambda b: softmax_velocity(b)),
        ("experiments.token_clustering", "interaction_energy", lambda x, b: -interaction_energy(x, b)),
        (
            "experiments.token_clustering",
            "simulate_line",
            lambda n, random: (torch.linspace(-1, 1, n), torch.full((n, n), 1 / n)),
        ),
    ],
)
def test_a_wrong_formula_is_detected(monkeypatch, module_name, name, replacement):
    monkeypatch.setattr(importlib.import_module(f"regard.theory.{module_name}"), name, replacement)
    assert not token_clustering(**SMALL).is_consistent
