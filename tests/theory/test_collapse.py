"""Collapse: the bound against random and chosen distributions, layers against their formula, and what breaks it."""

import importlib
import math

import pytest
import torch

from regard.theory import collapse

distances = importlib.import_module("regard.theory.distances")
module = importlib.import_module("regard.theory.collapse")
SMALL = dict(tokens=8, layers=8)


def layer_of(heads=3, gain=0.7, sharp=0.05, seed=1):
    return distances.random_layer(heads, gain, sharp, torch.Generator().manual_seed(seed))


def tokens(n=9, seed=2):
    return torch.randn(1, n, distances.WIDTH, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_distributions_whose_logarithms_differ_by_a_band_differ_by_tanh_of_a_quarter():
    random = torch.Generator().manual_seed(0)
    for _ in range(500):
        p = torch.softmax(3 * torch.randn(6, generator=random, dtype=torch.float64), 0)
        band = 4 * torch.rand(6, generator=random, dtype=torch.float64)
        q = torch.softmax(p.log() + band, 0)
        assert float((p - q).abs().sum() / 2) <= math.tanh(float(band.max() - band.min()) / 4) + 1e-15


def test_two_keys_reach_the_bound_by_tanh():
    band = 1.3
    p, q = (torch.softmax(torch.tensor([x, 0.0], dtype=torch.float64), 0) for x in (band / 2, -band / 2))
    assert float((p - q).abs().sum() / 2) == pytest.approx(math.tanh(band / 4), rel=1e-14)


def test_the_matrices_of_heads_give_what_the_layer_gives():
    layer, x = layer_of(), tokens()
    said = sum(
        torch.softmax(x[0] @ scores @ x[0].mT, -1) @ x[0] @ values for scores, values in distances.matrices_of(layer)
    )
    torch.testing.assert_close(layer(x)[0].detach(), said, atol=1e-13, rtol=0)


def test_a_layer_has_the_norms_that_were_asked_for():
    parts = distances.matrices_of(layer_of(gain=0.7, sharp=0.05))
    assert sum(distances.spectral_norm(values) for _, values in parts) == pytest.approx(0.7)
    assert max(distances.sharpness_of(part) for part in parts) == pytest.approx(0.05)


@pytest.mark.parametrize("scale", [0.01, 1.0, 10.0])
def test_no_layer_leaves_more_than_the_bound(scale):
    for seed in range(20):
        layer, x = layer_of(seed=seed, sharp=0.2), scale * tokens(seed=seed + 100)
        assert float(distances.diameter_of(layer(x).detach())) <= distances.tanh_bound(
            float(distances.diameter_of(x)), layer
        )


def test_two_opposite_tokens_reach_the_bound_and_are_where_softmax_of_two_scores_puts_them():
    claim = module._of_opposites()
    assert claim.holds
    said = [2 * r * math.tanh(r**2 / math.sqrt(8)) for r in module.OPPOSITE]
    torch.testing.assert_close(claim.found, torch.tensor(said, dtype=torch.float64), atol=1e-13, rtol=0)


def test_the_bound_of_dong_is_infinite_where_its_condition_fails():
    layer, x = layer_of(sharp=1.0), tokens()
    assert distances.cubic_bound(x, layer) == math.inf
    assert distances.cubic_bound(0.05 * x, layer) < math.inf


def test_the_norm_of_a_pair_is_the_root_of_its_column_and_row_sums():
    x = torch.tensor([[[1.0, 2.0], [-1.0, 4.0], [0.0, -6.0]]], dtype=torch.float64)  # its mean row is 0
    assert distances.pair_norm(x) == pytest.approx(math.sqrt(12 * 6))


def test_attention_alone_is_one_token_after_four_layers_and_blocks_are_not():
    found = collapse().data
    assert float(found["alone"][4]) < 1e-12
    assert float(found["with_feed_forward"][4]) < 1e-12
    assert float(found["in_blocks"][-1]) > 0.1
    assert 1e-8 < float(found["alike_with_skip"][-1]) < 1e-5


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("tanh_bound", lambda diameter, layer: 1e-3 * diameter**3),
        ("cubic_bound", lambda x, layer: 1e-4 * distances.pair_norm(x) ** 3),
        ("_growing_mean", lambda x, gain, layers: torch.ones(layers + 1)),
        ("_nearly_one", lambda layer, x: (torch.ones(2, 2), torch.eye(2))),
    ],
)
def test_a_wrong_formula_in_its_place_is_noticed(monkeypatch, name, broken):
    monkeypatch.setattr(module, name, broken)
    assert not collapse(**SMALL).agrees


def test_the_leading_term_without_its_centring_is_noticed(monkeypatch):
    right = module._nearly_one

    def wrong(layer, x):
        found, said = right(layer, x)
        return found, 1.05 * said

    monkeypatch.setattr(module, "_nearly_one", wrong)
    assert not collapse(**SMALL).agrees
