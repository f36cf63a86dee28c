"""The bottleneck experiment: readouts against independent formulas, and detection of wrong formulas."""

import importlib
import math

import pytest
import torch
from torch.nn.functional import normalize

from regard.theory import bottleneck

module = importlib.import_module("regard.theory.experiments.bottleneck")
SMALL = dict(state_dim=8, num_samples=200)


def make_generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_the_best_readout_misses_values_outside_the_span_of_the_keys():
    """The exact formula: the projection orthogonal to 8-dimensional keys of 20 tokens has trace 12."""
    k = normalize(torch.randn(20, 8, generator=make_generator(), dtype=torch.float64), dim=-1)
    residual = torch.eye(20, dtype=torch.float64) - k @ torch.linalg.inv(k.mT @ k) @ k.mT
    assert float(residual.trace()) / 20 == pytest.approx(1 - 8 / 20, rel=1e-12)
    missed, error = module._least_squares_readout_error(20, 8, 2, 500, make_generator())
    assert abs(missed - (1 - 8 / 20) * (1 - 8 / 1000)) < 5 * error


def test_a_short_sequence_is_read_without_loss():
    missed, error = module._least_squares_readout_error(8, 8, 2, 100, make_generator())
    assert missed < 1e-20
    assert error == 0.0


def test_a_basis_omits_dependent_columns():
    rows = torch.randn(30, 3, generator=make_generator(), dtype=torch.float64)
    rows = torch.cat([rows, rows.sum(1, keepdim=True)], 1)
    basis = module._basis(rows)
    assert basis.shape == (30, 3)
    torch.testing.assert_close(basis @ (basis.mT @ rows), rows, atol=1e-12, rtol=0)


def test_the_missed_fraction_of_attention_matches_its_formula():
    n, beta = 5, math.log(5) + 2.0
    a = math.exp(beta) / (math.exp(beta) + n - 1)
    expected = module._attention_missed_fraction(torch.tensor([5.0], dtype=torch.float64), 2.0)
    assert float(expected) == pytest.approx((1 - a) ** 2 * n / (n - 1), rel=1e-12)


def test_an_encoder_reveals_one_letter_but_few_of_many():
    single_letter, many_letters = module._encoder_readout(1, 16, 200, 0), module._encoder_readout(16, 16, 200, 0)
    assert single_letter == pytest.approx(1.0, abs=1e-9)  # sixteen numbers distinguish eight letters
    assert many_letters < 16 / (16 * 7)


def test_the_encoder_does_not_change_the_global_generator():
    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    module._encoder_readout(2, 8, 50, 0)
    assert torch.equal(before, torch.random.get_rng_state())


def test_eleven_letters_fit_into_a_float_and_twelve_do_not(monkeypatch):
    assert module._packed_accuracy(11, 1, make_generator()) == 1.0
    monkeypatch.setattr(module, "LETTERS_PER_FLOAT", 12)
    assert module._packed_accuracy(12, 1, make_generator()) < 0.9


@pytest.mark.parametrize(
    ("name", "replacement"),
    [
        ("_key_readout_error", lambda n, state_dim, *others: (n / state_dim, 1e-3)),
        ("_least_squares_readout_error", lambda n, *others: (1 / n, 1e-3)),
        ("_attention_missed_fraction", lambda lengths, margin: torch.full_like(lengths, math.exp(-2 * margin))),
        ("_encoder_readout", lambda n, *others: 1.0),
        ("LETTERS_PER_FLOAT", 12),
    ],
)
def test_a_wrong_formula_is_detected(monkeypatch, name, replacement):
    monkeypatch.setattr(module, name, replacement)
    assert not bottleneck(**SMALL).is_consistent
