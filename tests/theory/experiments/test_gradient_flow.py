"""The gradient flow experiment: Jacobians against finite differences, energies, and detection of wrong formulas."""

import importlib

import pytest
import torch

from regard.theory import gradient_flow

module = importlib.import_module("regard.theory.experiments.gradient_flow")
SMALL = dict(num_tokens=4, max_norm=0.8, time=0.5)


@pytest.fixture
def few_steps(monkeypatch):
    """Integrate four steps instead of twenty: each step checks the same formulas."""
    monkeypatch.setattr(module, "NUM_STEPS", 4)


def random_problem(n=5, d=2, seed=3):
    random = torch.Generator().manual_seed(seed)
    c = module._random_symmetric(d, random)
    return c, 0.8 * torch.randn(n, d, generator=random, dtype=torch.float64)


@pytest.mark.parametrize("name", ["raw", "sinkhorn", "softmax"])
def test_jacobians_match_finite_differences(name):
    c, x = random_problem()
    velocity = module._flow_variants(c, x)[name].velocity
    actual, h = module._jacobian(velocity, x), 1e-6
    for column in range(x.numel()):
        step = torch.zeros(x.numel(), dtype=x.dtype)
        step[column] = h
        expected = (velocity(x + step.reshape(x.shape)) - velocity(x - step.reshape(x.shape))).flatten() / (2 * h)
        # finite differences of step 1e-6: rounding errors of 1e-16 / 1e-6, truncation errors of 1e-12
        torch.testing.assert_close(actual[:, column], expected, atol=1e-8, rtol=0)


def test_sinkhorn_weights_are_symmetric_and_doubly_stochastic():
    c, x = random_problem()
    weights = module._sinkhorn_weights(x, c, module._sinkhorn_iterations(x, c))
    torch.testing.assert_close(weights, weights.mT, atol=1e-12, rtol=0)
    torch.testing.assert_close(weights.sum(0), torch.ones(5, dtype=x.dtype), atol=1e-12, rtol=0)


def test_sinkhorn_energy_is_minus_half_the_divergence_from_raw_weights():
    c, x = random_problem()
    iterations = module._sinkhorn_iterations(x, c)
    weights = module._sinkhorn_weights(x, c, iterations)
    divergence = (weights * (weights.log() - x @ c @ x.mT)).sum()
    torch.testing.assert_close(module._sinkhorn_energy(x, c, iterations), -divergence / 2, atol=1e-11, rtol=0)


def test_unnormalized_energy_matches_its_formula():
    c, x = random_problem()
    torch.testing.assert_close(module._unnormalized_energy(x, c), (x @ c @ x.mT).exp().sum() / 10, atol=1e-13, rtol=0)


def test_unnormalized_energy_decreases_along_softmax_at_the_predicted_rate():
    c, x = random_problem()
    velocity = module._flow_variants(c, x)["softmax"].velocity(x)
    z = (x @ c @ x.mT).exp().sum(-1)
    actual = (module._energy_gradient(lambda y: module._unnormalized_energy(y, c), x) * velocity).sum()
    torch.testing.assert_close(actual, -(z * velocity.square().sum(-1)).sum() / len(x), atol=1e-12, rtol=0)


def test_the_asymmetry_of_softmax_grows_with_the_norm(few_steps):
    panel = gradient_flow(num_tokens=5).panels[0]
    softmax = next(series.y for series in panel.series if series.label == "softmax")
    assert list(softmax) == sorted(softmax)
    assert softmax[-1] > 0.05


def test_one_dimensional_points_have_no_animation(few_steps):
    assert gradient_flow(dim=1, **SMALL).animation is None
    assert gradient_flow(dim=3, **SMALL).animation.points.shape == (5, 4, 3)


def test_the_experiment_is_consistent_with_few_steps(few_steps):
    result = gradient_flow(**SMALL)
    assert result.is_consistent, str(result)


@pytest.mark.parametrize(
    ("name", "replacement"),
    [
        ("_unnormalized_velocity", lambda x, c: -module._lse(x, c).unsqueeze(-1) * (x @ c)),
        ("_sinkhorn_iterations", lambda x, c: 1),
        ("_sinkhorn_energy", lambda x, c, iterations: module._unnormalized_energy(x, c)),
        ("_unnormalized_energy", lambda x, c: -module._lse(x, c).sum(-1)),
        ("_softmax_jacobian", lambda x, c: -torch.kron(torch.softmax(x @ c @ x.mT, -1), c)),
    ],
)
def test_a_wrong_formula_is_detected(monkeypatch, few_steps, name, replacement):
    monkeypatch.setattr(module, name, replacement)
    assert not gradient_flow(**SMALL).is_consistent
