"""The experiment on invariants: it depends on the checks, and on the laws that it states."""

import sys

import pytest
import torch

from regard.errors import SpecError
from regard.theory import Finding, equivariance

MODULE = sys.modules["regard.theory.equivariance"]
SMALL = {"tokens": 6, "width": 8}


@pytest.mark.parametrize("tokens", [6, 20, 32])
@pytest.mark.parametrize("width", [8, 32])
def test_it_agrees_wherever_its_sliders_stand(tokens: int, width: int) -> None:
    outcome = equivariance(tokens=tokens, width=width, seed=tokens)
    assert outcome.agrees, str(outcome)


@pytest.mark.parametrize("name", ["check_causality", "check_equivariance", "check_independence", "check_normalised"])
def test_it_does_not_agree_if_a_check_is_blind(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MODULE, name, lambda *given, **options: Finding("", True, 0.0, 1e-12))
    outcome = equivariance(**SMALL)
    caught = next(claim for claim in outcome.claims if "planted" in claim.says)
    assert not caught.holds and not outcome.agrees


@pytest.mark.parametrize("name", ["check_causality", "check_equivariance", "check_independence", "check_normalised"])
def test_it_does_not_agree_if_a_check_cries_wolf(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MODULE, name, lambda *given, **options: Finding("", False, 0.5, 1e-12))
    outcome = equivariance(**SMALL)
    right = next(claim for claim in outcome.claims if "right layers" in claim.says)
    assert not right.holds


def test_the_maps_show_the_leak_where_it_was_planted() -> None:
    found = equivariance(tokens=16, width=8).data
    above = torch.ones(16, 16).triu(1) > 0
    assert found["right"][above].max() == 0
    assert (found["off by one"] * above > 0).nonzero().tolist() == [[n, n + 1] for n in range(15)]
    assert (found["one pair"] * above > 0).nonzero().tolist() == [[8, 9]]


def test_layers_do_not_use_up_torchs_random_numbers() -> None:
    torch.manual_seed(3)
    expected = torch.rand(())
    torch.manual_seed(3)
    equivariance(**SMALL)
    assert torch.equal(torch.rand(()), expected)


def test_a_width_that_two_rotary_heads_cannot_share_is_refused() -> None:
    with pytest.raises(SpecError, match=r"width must be a multiple of 4, .*; got 10"):
        equivariance(width=10)
