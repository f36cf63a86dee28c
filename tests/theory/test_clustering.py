"""Clustering: velocities against loops, equations against known numbers and against the field, and what breaks it."""

import importlib
import math

import pytest
import torch
from torch.nn.functional import normalize

from regard.theory import clustering
from regard.theory.moving import energy, groups_of, raw_velocity, softmax_velocity, stepped, walk_on_sphere
from regard.theory.tokens import from_right_angles, group_rate, raw_rate, softmax_rate, times_of

SMALL = dict(tokens=6, beta=2.0, time=3.0)


def tokens_on_sphere(n, d, seed=0):
    x = torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return normalize(x, dim=-1)


def by_loops(x, beta, normalised):
    """The definition, token by token."""
    rows = []
    for i in range(len(x)):
        raw = [math.exp(beta * float(x[i] @ x[j])) for j in range(len(x))]
        share = sum(raw) if normalised else len(x)
        mixed = sum(weight / share * x[j] for j, weight in enumerate(raw))
        rows.append(mixed - float(x[i] @ mixed) * x[i])
    return torch.stack(rows)


@pytest.mark.parametrize(("velocity", "normalised"), [(softmax_velocity, True), (raw_velocity, False)])
def test_a_velocity_is_what_the_definition_says_token_by_token(velocity, normalised):
    x = tokens_on_sphere(7, 3)
    # float64, numbers near 1
    torch.testing.assert_close(velocity(1.7)(x), by_loops(x, 1.7, normalised), atol=1e-13, rtol=0)


def test_the_equation_for_orthonormal_tokens_has_the_numbers_of_a_simulation_by_small_steps():
    # six tokens, β 1.5: products after the times 1 and 3 by 10,000 steps of Euler a unit of time
    times = times_of(torch.tensor([0.0, 0.33573, 0.96358], dtype=torch.float64), softmax_rate(6, 1.5))
    # five digits of a product, over its slope, which is 0.46 and 0.07
    torch.testing.assert_close(times, torch.tensor([0.0, 1.0, 3.0], dtype=torch.float64), atol=2e-4, rtol=0)


@pytest.mark.parametrize(("velocity", "rate"), [(softmax_velocity, softmax_rate), (raw_velocity, raw_rate)])
def test_the_rate_of_products_is_that_of_the_field_where_all_products_are_equal(velocity, rate):
    n, gamma, beta = 5, 0.37, 1.3
    gram = (1 - gamma) * torch.eye(n, dtype=torch.float64) + gamma
    x = torch.linalg.cholesky(gram)
    v = velocity(beta)(x)
    slopes = x @ v.mT + v @ x.mT
    off = ~torch.eye(n, dtype=torch.bool)
    said = rate(n, beta)(torch.tensor(gamma, dtype=torch.float64))
    torch.testing.assert_close(slopes[off], said.expand(n * n - n), atol=1e-13, rtol=0)


def test_the_rate_of_two_groups_is_that_of_the_field():
    angle, beta = 1.1, 2.5
    ends = torch.tensor([[1.0, 0.0], [math.cos(angle), math.sin(angle)]], dtype=torch.float64)
    x = ends.repeat_interleave(3, 0)
    v = softmax_velocity(beta)(x)
    slope = x[0] @ v[-1] + v[0] @ x[-1]
    said = group_rate(beta)(torch.tensor(math.cos(angle), dtype=torch.float64))
    torch.testing.assert_close(slope, said, atol=1e-13, rtol=0)


def test_energy_is_its_double_sum():
    x = tokens_on_sphere(5, 3)
    double = sum(math.exp(2.0 * float(a @ b)) for a in x for b in x) / (2 * 2.0 * 25)
    assert float(energy(x, 2.0)) == pytest.approx(double, rel=1e-13)


def test_a_step_is_of_the_fourth_order():
    def error(steps):
        x = torch.ones((), dtype=torch.float64)
        for _ in range(steps):
            x = stepped(x, lambda y: -y, 1.0 / steps)
        return abs(float(x) - math.exp(-1))

    assert error(10) / error(20) == pytest.approx(16, rel=0.1)  # the next order is a tenth at ten steps


def test_a_walk_stays_on_the_sphere_and_is_as_long_as_its_times():
    path = walk_on_sphere(tokens_on_sphere(4, 3), softmax_velocity(2.0), torch.tensor([0.0, 0.5, 2.0]), 5)
    assert path.shape == (3, 4, 3)
    torch.testing.assert_close(path.norm(dim=-1), torch.ones(3, 4, dtype=torch.float64), atol=1e-14, rtol=0)


def test_steps_twice_as_short_leave_a_sixteenth_of_the_error():
    course = from_right_angles(6, 1.5, softmax_velocity(1.5), softmax_rate(6, 1.5))
    assert float((course.found - course.gamma).abs().max()) == pytest.approx(course.changed / 15, rel=0.3)


def test_groups_are_chains_of_near_tokens():
    angles = torch.tensor([0.0, 0.1, 0.2, 0.3, 1.5, 1.55, 3.0])
    x = torch.stack([angles.cos(), angles.sin()], -1)
    assert groups_of(x).tolist() == [0, 0, 0, 0, 1, 1, 2]


def test_groups_of_sharp_attention_live_long_and_of_soft_attention_do_not():
    counts = clustering().data
    assert len(set(counts["groups"][20:].tolist())) == 1
    assert int(counts["groups"][-1]) > 1
    assert int(counts["groups_at_one"][-1]) == 1


def test_what_moves_is_on_the_circle_with_a_group_for_each_token():
    motion = clustering(**SMALL).motion
    assert motion.points.shape == (61, 6, 2)
    assert motion.times[-1] == 3.0
    assert len(motion.groups) == 6


@pytest.mark.parametrize(
    ("where", "name", "broken"),
    [
        ("clustering", "softmax_rate", lambda n, b: lambda g: 2 * (1 - g) * (n * g + 1) / (torch.exp(b * (1 - g)) + n)),
        ("clustering", "raw_rate", lambda n, b: lambda g: 2 * torch.exp(b * g) * (1 - g) * ((n - 1) * g + 1) / (n - 1)),
        ("tokens", "group_rate", lambda b: lambda g: 2 * (1 - g) / (torch.exp(b * (1 - g)) + 1)),
        ("tokens", "raw_velocity", lambda b: softmax_velocity(b)),
        ("clustering", "energy", lambda x, b: -energy(x, b)),
        ("clustering", "on_a_line", lambda n, random: (torch.linspace(-1, 1, n), torch.full((n, n), 1 / n))),
    ],
)
def test_a_wrong_formula_in_its_place_is_noticed(monkeypatch, where, name, broken):
    monkeypatch.setattr(importlib.import_module(f"regard.theory.{where}"), name, broken)
    assert not clustering(**SMALL).agrees
