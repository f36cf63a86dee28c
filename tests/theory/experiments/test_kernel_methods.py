"""The kernel methods experiment: spectra and error bounds against NumPy."""

import math
import sys

import numpy as np
import pytest
import torch

from regard import score
from regard.theory import kernel_methods
from regard.theory.analysis.relation_fits import fit_relation, recover_scores
from regard.theory.experiments.kernel_methods import _mercer_spectrum

SMALL = {"num_tokens": 32, "head_dim": 3, "steps": 20}


def ignore_progress(weights: float) -> None:
    """Discard the progress."""


def test_recover_scores_from_weights() -> None:
    q, k = torch.randn(5, 3, dtype=torch.float64), torch.randn(7, 3, dtype=torch.float64)
    torch.testing.assert_close(recover_scores(q, k), q @ k.mT / math.sqrt(3), atol=1e-13, rtol=0)
    torch.testing.assert_close(
        recover_scores(q, k, score.gaussian(2.0)), -(torch.cdist(q, k) ** 2) / 8, atol=1e-13, rtol=0
    )


@pytest.mark.parametrize("length", [0.5, 1.0, 3.0])
def test_mercer_spectrum_matches_gauss_hermite_quadrature(length: float) -> None:
    """Gauss-Hermite quadrature: independent of the grid of the experiment and of attention."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(90)
    root = np.sqrt(weights / weights.sum())
    kernel = np.exp(-((nodes[:, None] - nodes) ** 2) / (2 * length**2))
    values = np.linalg.eigvalsh(root[:, None] * kernel * root)[::-1]
    fit, formula = _mercer_spectrum(length)
    # with 90 nodes the error for a length scale of 0.5 is about exp(-π² l² 90 / 8)
    np.testing.assert_allclose(formula, values[: len(formula)], atol=1e-6)
    np.testing.assert_allclose(fit, values[: len(fit)], atol=1e-6)


@pytest.mark.parametrize("skew", [0.25, 2.0])
def test_no_symmetric_matrix_has_a_smaller_error_than_the_floor(skew: float) -> None:
    fit = fit_relation(skew, 1, 0, ignore_progress)
    nodes = np.linspace(-2, 2, 40)
    relation = np.cos(nodes[:, None] - nodes) + skew * np.sin(2 * (nodes[:, None] - nodes))
    assert fit.floor == pytest.approx(skew * np.linalg.norm(np.sin(2 * (nodes[:, None] - nodes))), abs=1e-10)
    random = np.random.default_rng(0)
    middle = (relation + relation.T) / 2
    for size in (0.0, 0.1, 1.0):
        noise = size * random.normal(size=relation.shape)
        assert np.linalg.norm(relation - (middle + noise + noise.T)) >= fit.floor - 1e-12


def test_best_fits_reach_the_floor_and_trained_maps_stay_above() -> None:
    fit = fit_relation(1.0, 60, 0, ignore_progress)
    assert float(fit.best_tied) == pytest.approx(fit.floor, abs=1e-10)
    assert float(fit.best_untied) < 1e-10 < fit.floor
    assert (fit.tied_errors >= fit.floor).all()
    assert fit.untied_errors[-1] < fit.untied_errors[0]


@pytest.mark.parametrize(
    "num_tokens, head_dim, length_scale, skew",
    [(32, 12, 0.5, 0.25), *(pytest.param(*x, marks=pytest.mark.long) for x in ((128, 2, 3.0, 2.0), (40, 3, 1.3, 0.5)))],
)
def test_the_experiment_is_consistent_at_the_ends_of_its_sliders(
    num_tokens: int, head_dim: int, length_scale: float, skew: float
) -> None:
    settings = dict(num_tokens=num_tokens, head_dim=head_dim, length_scale=length_scale, skew=skew)
    result = kernel_methods(**settings, steps=200, seed=4)
    assert result.is_consistent, str(result)


def claim(claims, text: str):
    return next(candidate for candidate in claims if text in candidate.statement)


def test_the_number_of_negative_eigenvalues_is_head_dim() -> None:
    for width in (2, 5):
        result = kernel_methods(num_tokens=40, head_dim=width, steps=20)
        assert float(claim(result.claims, "symmetric part are negative").actual) == width
        assert (result.data["untied"] < -1e-6).sum() == width
        assert (result.data["tied"] > 1e-6).sum() == width


def test_wrong_spectral_features_are_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    eigh = torch.linalg.eigh
    module = sys.modules["regard.theory.experiments.kernel_methods"]

    def shuffled(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        values, vectors = eigh(matrix)
        return values, vectors.roll(1, 1)

    monkeypatch.setattr(torch.linalg, "eigh", shuffled)
    errors = module._truncation_errors(1.0, torch.Generator().manual_seed(0))
    assert not claim(module._mercer_claims(torch.ones(8), torch.ones(8), errors), "spectral features").holds


def test_the_retrieval_bound_is_tight() -> None:
    fit = kernel_methods(**SMALL).data
    assert (fit["weight_elsewhere"] <= fit["bound"] + 1e-11).all()
    assert fit["weight_elsewhere"][-1] > 0.9 * fit["bound"][-1]  # equal to first order
    assert (fit["weight_elsewhere"].diff() <= 1e-12).all()
