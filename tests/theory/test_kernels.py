"""Kernels: spectra, floors and bounds against what NumPy finds on its own, and the experiment."""

import math
import sys

import numpy as np
import pytest
import torch

from regard import score
from regard.theory import kernels
from regard.theory.kernels import _mercer
from regard.theory.relations import fits, scores

SMALL = {"tokens": 32, "width": 3, "steps": 200}


def told(share: float) -> None:
    """Nothing is listened to."""


def test_scores_are_read_back_from_weights() -> None:
    q, k = torch.randn(5, 3, dtype=torch.float64), torch.randn(7, 3, dtype=torch.float64)
    torch.testing.assert_close(scores(q, k), q @ k.mT / math.sqrt(3), atol=1e-13, rtol=0)
    torch.testing.assert_close(scores(q, k, score.metric(2.0)), -(torch.cdist(q, k) ** 2) / 8, atol=1e-13, rtol=0)


@pytest.mark.parametrize("length", [0.5, 1.0, 3.0])
def test_mercers_eigenvalues_are_those_of_a_gram_matrix_by_quadrature(length: float) -> None:
    """Gauss and Hermite's rule: another grid than the experiment's, and no attention."""
    at, share = np.polynomial.hermite_e.hermegauss(90)
    root = np.sqrt(share / share.sum())
    kernel = np.exp(-((at[:, None] - at) ** 2) / (2 * length**2))
    values = np.linalg.eigvalsh(root[:, None] * kernel * root)[::-1]
    found, formula = _mercer(length)
    # the rule of 90 nodes sees a kernel of length 0.5 with an error of about exp(-π² l² 90 / 8)
    np.testing.assert_allclose(formula, values[: len(formula)], atol=1e-6)
    np.testing.assert_allclose(found, values[: len(found)], atol=1e-6)


@pytest.mark.parametrize("skew", [0.25, 2.0])
def test_no_symmetric_matrix_is_nearer_than_the_floor(skew: float) -> None:
    found = fits(skew, 1, 0, told)
    at = np.linspace(-2, 2, 40)
    relation = np.cos(at[:, None] - at) + skew * np.sin(2 * (at[:, None] - at))
    assert found.floor == pytest.approx(skew * np.linalg.norm(np.sin(2 * (at[:, None] - at))), abs=1e-10)
    random = np.random.default_rng(0)
    middle = (relation + relation.T) / 2
    for size in (0.0, 0.1, 1.0):
        noise = size * random.normal(size=relation.shape)
        assert np.linalg.norm(relation - (middle + noise + noise.T)) >= found.floor - 1e-12


def test_the_best_gram_matrix_is_reached_and_one_map_of_any_width_stays_above() -> None:
    found = fits(1.0, 60, 0, told)
    assert float(found.best_one) == pytest.approx(found.floor, abs=1e-10)
    assert float(found.best_two) < 1e-10 < found.floor
    assert (found.one >= found.floor).all()
    assert found.two[-1] < found.two[0]


@pytest.mark.parametrize("tokens, width, length, skew", [(32, 12, 0.5, 0.25), (128, 2, 3.0, 2.0), (40, 3, 1.3, 0.5)])
def test_it_agrees_where_its_sliders_end(tokens: int, width: int, length: float, skew: float) -> None:
    outcome = kernels(tokens=tokens, width=width, length=length, skew=skew, steps=200, seed=4)
    assert outcome.agrees, str(outcome)


def claim(claims, says: str):
    return next(each for each in claims if says in each.says)


def test_as_many_eigenvalues_are_negative_as_the_maps_are_wide() -> None:
    for width in (2, 5):
        outcome = kernels(tokens=40, width=width, steps=200)
        assert float(claim(outcome.claims, "symmetric part are negative").found) == width
        assert (outcome.data["untied"] < -1e-6).sum() == width
        assert (outcome.data["tied"] > 1e-6).sum() == width


def test_truncation_is_rejected_if_the_features_are_not_those_of_the_spectrum(monkeypatch: pytest.MonkeyPatch) -> None:
    eigh = torch.linalg.eigh
    module = sys.modules["regard.theory.kernels"]

    def shuffled(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        values, vectors = eigh(matrix)
        return values, vectors.roll(1, 1)

    monkeypatch.setattr(torch.linalg, "eigh", shuffled)
    tails = module._truncated(1.0, torch.Generator().manual_seed(0))
    assert not claim(module._of_mercer(torch.ones(8), torch.ones(8), tails), "features of the spectrum").holds


def test_retrieval_is_bounded_and_the_bound_is_no_more_than_it_must_be() -> None:
    found = kernels(**SMALL).data
    assert (found["left"] <= found["bound"] + 1e-11).all()
    assert found["left"][-1] > 0.9 * found["bound"][-1]  # to first order they are the same
    assert (found["left"].diff() <= 1e-12).all()
