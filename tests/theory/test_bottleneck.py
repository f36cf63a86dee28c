"""Bottleneck: readings against their formulas written out otherwise, and what breaks it."""

import importlib
import math

import pytest
import torch
from torch.nn.functional import normalize

from regard.theory import bottleneck

module = importlib.import_module("regard.theory.bottleneck")
SMALL = dict(width=8, samples=200)


def random(seed=0):
    return torch.Generator().manual_seed(seed)


def test_the_best_reading_misses_the_part_of_values_that_the_keys_do_not_span():
    """The law without a sample: the projection that keys of width 8 leave of 20 numbers has a trace of 12."""
    k = normalize(torch.randn(20, 8, generator=random(), dtype=torch.float64), dim=-1)
    left = torch.eye(20, dtype=torch.float64) - k @ torch.linalg.inv(k.mT @ k) @ k.mT
    assert float(left.trace()) / 20 == pytest.approx(1 - 8 / 20, rel=1e-12)
    found, error = module._best_reading(20, 8, 2, 500, random())
    assert abs(found - (1 - 8 / 20) * (1 - 8 / 1000)) < 5 * error


def test_what_fits_into_the_state_is_read_without_loss():
    found, error = module._best_reading(8, 8, 2, 100, random())
    assert found < 1e-20
    assert error == 0.0


def test_a_basis_spans_the_columns_and_leaves_out_what_depends_on_others():
    rows = torch.randn(30, 3, generator=random(), dtype=torch.float64)
    rows = torch.cat([rows, rows.sum(1, keepdim=True)], 1)
    basis = module._basis(rows)
    assert basis.shape == (30, 3)
    torch.testing.assert_close(basis @ (basis.mT @ rows), rows, atol=1e-12, rtol=0)


def test_attention_gives_the_right_token_the_weight_of_the_formula():
    n, beta = 5, math.log(5) + 2.0
    a = math.exp(beta) / (math.exp(beta) + n - 1)
    said = module._missed_by_attention(torch.tensor([5.0], dtype=torch.float64), 2.0)
    assert float(said) == pytest.approx((1 - a) ** 2 * n / (n - 1), rel=1e-12)


def test_the_share_that_an_encoder_gives_away_is_all_of_one_letter_and_little_of_many():
    one, many = module._encoder(1, 16, 200, 0), module._encoder(16, 16, 200, 0)
    assert one == pytest.approx(1.0, abs=1e-9)  # sixteen numbers tell eight letters apart
    assert many < 16 / (16 * 7)


def test_the_encoder_does_not_touch_the_numbers_that_others_draw():
    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    module._encoder(2, 8, 50, 0)
    assert torch.equal(before, torch.random.get_rng_state())


def test_eleven_letters_fit_into_a_number_and_twelve_do_not(monkeypatch):
    assert module._packed(11, 1, random()) == 1.0
    monkeypatch.setattr(module, "PER_NUMBER", 12)
    assert module._packed(12, 1, random()) < 0.9


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("_direct_reading", lambda n, width, *others: (n / width, 1e-3)),
        ("_best_reading", lambda n, *others: (1 / n, 1e-3)),
        ("_missed_by_attention", lambda lengths, sharpness: torch.full_like(lengths, math.exp(-2 * sharpness))),
        ("_encoder", lambda n, *others: 1.0),
        ("PER_NUMBER", 12),
    ],
)
def test_a_wrong_formula_in_its_place_is_noticed(monkeypatch, name, broken):
    monkeypatch.setattr(module, name, broken)
    assert not bottleneck(**SMALL).agrees
