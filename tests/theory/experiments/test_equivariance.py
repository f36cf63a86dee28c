"""The equivariance experiment: its claims fail if a check is broken."""

import sys

import pytest
import torch

from regard.errors import ArgumentError
from regard.theory import CheckResult, equivariance

MODULE = sys.modules["regard.theory.experiments.equivariance"]
SMALL = {"num_tokens": 6, "embed_dim": 8}


@pytest.mark.parametrize(
    ("tokens", "width"),
    [
        (6, 8),
        (20, 32),
        *(pytest.param(*sizes, marks=pytest.mark.long) for sizes in ((6, 32), (20, 8), (32, 8), (32, 32))),
    ],
)
def test_equivariance_is_consistent_for_all_settings(tokens: int, width: int) -> None:
    result = equivariance(num_tokens=tokens, embed_dim=width, seed=tokens)
    assert result.is_consistent, str(result)


@pytest.mark.parametrize(
    "name", ["check_causality", "check_equivariance", "check_batch_independence", "check_normalized"]
)
def test_a_check_that_always_passes_is_detected(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MODULE, name, lambda *args, **options: CheckResult("", True, 0.0, 1e-12))
    result = equivariance(**SMALL)
    detection = next(claim for claim in result.claims if "bugs" in claim.statement)
    assert not detection.holds and not result.is_consistent


@pytest.mark.parametrize(
    "name", ["check_causality", "check_equivariance", "check_batch_independence", "check_normalized"]
)
def test_a_check_that_always_fails_is_detected(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MODULE, name, lambda *args, **options: CheckResult("", False, 0.5, 1e-12))
    result = equivariance(**SMALL)
    correct = next(claim for claim in result.claims if "correct layers" in claim.statement)
    assert not correct.holds


def test_influence_maps_show_the_leaks() -> None:
    data = equivariance(num_tokens=16, embed_dim=8).data
    above = torch.ones(16, 16).triu(1) > 0
    assert data["right"][above].max() == 0
    assert (data["off by one"] * above > 0).nonzero().tolist() == [[n, n + 1] for n in range(15)]
    assert (data["one pair"] * above > 0).nonzero().tolist() == [[8, 9]]


def test_the_global_generator_is_unchanged() -> None:
    torch.manual_seed(3)
    expected = torch.rand(())
    torch.manual_seed(3)
    equivariance(**SMALL)
    assert torch.equal(torch.rand(()), expected)


def test_an_embed_dim_that_is_not_a_multiple_of_four_raises() -> None:
    with pytest.raises(ArgumentError, match=r"embed_dim must be a multiple of 4, .*; got 10"):
        equivariance(embed_dim=10)
