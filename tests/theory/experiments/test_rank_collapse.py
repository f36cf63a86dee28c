"""The rank collapse experiment: bounds for random and extremal distributions, and detection of wrong formulas."""

import importlib
import math

import pytest
import torch

from regard.theory import rank_collapse

distances = importlib.import_module("regard.theory.analysis.token_diameter")
module = importlib.import_module("regard.theory.experiments.rank_collapse")
SMALL = dict(num_tokens=8, num_layers=8)


def make_layer(heads=3, gain=0.7, sharp=0.05, seed=1):
    return distances.random_layer(heads, gain, sharp, torch.Generator().manual_seed(seed))


def random_tokens(n=9, seed=2):
    return torch.randn(1, n, distances.EMBED_DIM, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_the_tanh_bound_holds_for_random_distributions():
    random = torch.Generator().manual_seed(0)
    for _ in range(500):
        p = torch.softmax(3 * torch.randn(6, generator=random, dtype=torch.float64), 0)
        log_ratio = 4 * torch.rand(6, generator=random, dtype=torch.float64)
        q = torch.softmax(p.log() + log_ratio, 0)
        assert float((p - q).abs().sum() / 2) <= math.tanh(float(log_ratio.max() - log_ratio.min()) / 4) + 1e-15


def test_two_keys_attain_the_tanh_bound():
    log_ratio = 1.3
    p, q = (torch.softmax(torch.tensor([x, 0.0], dtype=torch.float64), 0) for x in (log_ratio / 2, -log_ratio / 2))
    assert float((p - q).abs().sum() / 2) == pytest.approx(math.tanh(log_ratio / 4), rel=1e-14)


def test_qk_and_ov_matrices_reproduce_the_layer():
    layer, x = make_layer(), random_tokens()
    expected = sum(
        torch.softmax(x[0] @ scores @ x[0].mT, -1) @ x[0] @ values
        for scores, values in distances.qk_and_ov_matrices(layer)
    )
    torch.testing.assert_close(layer(x)[0].detach(), expected, atol=1e-13, rtol=0)


def test_a_random_layer_has_the_given_norms():
    matrices = distances.qk_and_ov_matrices(make_layer(gain=0.7, sharp=0.05))
    assert sum(distances.spectral_norm(values) for _, values in matrices) == pytest.approx(0.7)
    assert max(distances.tanh_coefficient(head_matrices) for head_matrices in matrices) == pytest.approx(0.05)


@pytest.mark.parametrize("scale", [0.01, 1.0, 10.0])
def test_the_tanh_bound_holds_for_random_layers(scale):
    for seed in range(20):
        layer, x = make_layer(seed=seed, sharp=0.2), scale * random_tokens(seed=seed + 100)
        assert float(distances.diameter(layer(x).detach())) <= distances.tanh_bound(float(distances.diameter(x)), layer)


def test_two_opposite_tokens_attain_the_tanh_bound():
    claim = module._opposite_tokens_claim()
    assert claim.holds
    expected = [2 * r * math.tanh(r**2 / math.sqrt(8)) for r in module.OPPOSITE_TOKEN_NORMS]
    torch.testing.assert_close(claim.actual, torch.tensor(expected, dtype=torch.float64), atol=1e-13, rtol=0)


def test_the_cubic_bound_is_infinite_if_its_condition_fails():
    layer, x = make_layer(sharp=1.0), random_tokens()
    assert distances.cubic_bound(x, layer) == math.inf
    assert distances.cubic_bound(0.05 * x, layer) < math.inf


def test_composite_norm_of_a_known_matrix():
    x = torch.tensor([[[1.0, 2.0], [-1.0, 4.0], [0.0, -6.0]]], dtype=torch.float64)  # its mean row is 0
    assert distances.composite_norm(x) == pytest.approx(math.sqrt(12 * 6))


def test_attention_alone_collapses_after_four_layers_and_blocks_do_not():
    data = rank_collapse().data
    assert float(data["attention_only"][4]) < 1e-12
    assert float(data["with_feed_forward"][4]) < 1e-12
    assert float(data["blocks"][-1]) > 0.1
    assert 1e-8 < float(data["uniform_with_skip"][-1]) < 1e-5


@pytest.mark.parametrize(
    ("name", "replacement"),
    [
        ("tanh_bound", lambda diameter, layer: 1e-3 * diameter**3),
        ("cubic_bound", lambda x, layer: 1e-4 * distances.composite_norm(x) ** 3),
        ("_predicted_relative_diameters", lambda x, value_norm, num_layers: torch.ones(num_layers + 1)),
        ("_small_difference_residual", lambda layer, x: (torch.ones(2, 2), torch.eye(2))),
    ],
)
def test_a_wrong_formula_is_detected(monkeypatch, name, replacement):
    monkeypatch.setattr(module, name, replacement)
    assert not rank_collapse(**SMALL).is_consistent


def test_a_wrong_leading_term_is_detected(monkeypatch):
    right = module._small_difference_residual

    def wrong(layer, x):
        data, expected = right(layer, x)
        return data, 1.05 * expected

    monkeypatch.setattr(module, "_small_difference_residual", wrong)
    assert not rank_collapse(**SMALL).is_consistent
