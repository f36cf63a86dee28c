"""Flow: Jacobians against differences, energies against their sums, and what breaks it."""

import importlib

import pytest
import torch

from regard.theory import flow

module = importlib.import_module("regard.theory.flow")
SMALL = dict(tokens=4, spread=0.8, time=0.5)


def setting(n=5, d=2, seed=3):
    random = torch.Generator().manual_seed(seed)
    c = module._symmetric(d, random)
    return c, 0.8 * torch.randn(n, d, generator=random, dtype=torch.float64)


@pytest.mark.parametrize("name", ["raw", "sinkhorn", "softmax"])
def test_a_jacobian_is_that_of_differences(name):
    c, x = setting()
    velocity = module._kinds(c, x)[name].velocity
    found, h = module._jacobian(velocity, x), 1e-6
    for column in range(x.numel()):
        step = torch.zeros(x.numel(), dtype=x.dtype)
        step[column] = h
        slope = (velocity(x + step.reshape(x.shape)) - velocity(x - step.reshape(x.shape))).flatten() / (2 * h)
        # differences of step 1e-6: rounding of 1e-16 / 1e-6, curvature of 1e-12
        torch.testing.assert_close(found[:, column], slope, atol=1e-8, rtol=0)


def test_balanced_weights_are_symmetric_and_even():
    c, x = setting()
    weights = module._sinkhorn_weights(x, c, module._iterations(x, c))
    torch.testing.assert_close(weights, weights.mT, atol=1e-12, rtol=0)
    torch.testing.assert_close(weights.sum(0), torch.ones(5, dtype=x.dtype), atol=1e-12, rtol=0)


def test_the_energy_of_balanced_weights_is_minus_half_their_divergence_from_the_raw_ones():
    c, x = setting()
    iterations = module._iterations(x, c)
    weights = module._sinkhorn_weights(x, c, iterations)
    divergence = (weights * (weights.log() - x @ c @ x.mT)).sum()
    torch.testing.assert_close(module._sinkhorn_energy(x, c, iterations), -divergence / 2, atol=1e-11, rtol=0)


def test_the_raw_energy_is_its_double_sum():
    c, x = setting()
    torch.testing.assert_close(module._raw_energy(x, c), (x @ c @ x.mT).exp().sum() / 10, atol=1e-13, rtol=0)


def test_the_raw_energy_falls_along_softmax_at_the_rate_of_the_formula():
    c, x = setting()
    velocity = module._kinds(c, x)["softmax"].velocity(x)
    z = (x @ c @ x.mT).exp().sum(-1)
    found = (module._slope(lambda y: module._raw_energy(y, c), x) * velocity).sum()
    torch.testing.assert_close(found, -(z * velocity.square().sum(-1)).sum() / len(x), atol=1e-12, rtol=0)


def test_softmax_is_far_from_symmetric_and_the_more_so_the_farther_tokens_are():
    panel = flow(tokens=5).panels[0]
    softmax = next(series.y for series in panel.series if series.label == "softmax")
    assert list(softmax) == sorted(softmax)
    assert softmax[-1] > 0.05


def test_points_on_a_line_have_no_motion_to_show():
    assert flow(dimension=1, **SMALL).motion is None
    assert flow(dimension=3, **SMALL).motion.points.shape == (21, 4, 3)


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("_raw", lambda x, c: -module._lse(x, c).unsqueeze(-1) * (x @ c)),
        ("_iterations", lambda x, c: 1),
        ("_sinkhorn_energy", lambda x, c, iterations: module._raw_energy(x, c)),
        ("_raw_energy", lambda x, c: -module._lse(x, c).sum(-1)),
        ("_softmax_jacobian", lambda x, c: -torch.kron(torch.softmax(x @ c @ x.mT, -1), c)),
    ],
)
def test_a_wrong_formula_in_its_place_is_noticed(monkeypatch, name, broken):
    monkeypatch.setattr(module, name, broken)
    assert not flow(**SMALL).agrees
