"""Rows that are not finite: their values stay, their gradients reach nothing that others share."""

import pytest
import torch
from torch import Tensor

from regard.spec.finite import all_finite, shielded, wild_rows


@pytest.mark.parametrize("wild", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_is_noticed(wild: float) -> None:
    x = torch.ones(3, 4)
    assert all_finite(x, x) and not wild_rows(x).any()
    x[1, 2] = wild
    assert not all_finite(torch.ones(2), x)
    assert wild_rows(x).tolist() == [[False], [True], [False]]


def test_infinities_of_both_signs_are_noticed_although_their_sum_is_no_infinity() -> None:
    assert not all_finite(torch.tensor([torch.inf, -torch.inf]))


def test_nothing_is_finite() -> None:
    assert all_finite(torch.zeros(0, 3)) and all_finite()


def test_the_value_of_a_shielded_function_is_its_own() -> None:
    x, w = torch.randn(4, 3), torch.randn(3, 2, requires_grad=True)
    x[2, 1] = torch.inf
    (found,) = shielded(lambda x: (x @ w,), x)
    torch.testing.assert_close(found, x @ w, equal_nan=True)


@pytest.mark.parametrize("wild", [torch.nan, torch.inf])
def test_a_wild_row_without_a_gradient_reaches_no_weight_that_others_share(wild: float) -> None:
    x, w = torch.randn(4, 3, requires_grad=True), torch.randn(3, 2, requires_grad=True)
    spoiled = torch.where(torch.arange(4).view(4, 1) == 2, wild, x)
    outer = torch.randn(4, 2)
    outer[2] = 0.0  # as of a key that is hidden
    (found,) = shielded(lambda x: (x @ w,), spoiled)
    d_x, d_w = torch.autograd.grad(found, (x, w), outer)
    kept = [0, 1, 3]
    torch.testing.assert_close(d_w, (x[kept].mT @ outer[kept]).detach())
    torch.testing.assert_close(d_x[kept], (outer[kept] @ w.mT).detach())
    assert (d_x[2] == 0).all()


def test_rows_that_are_finite_get_the_gradient_they_always_get() -> None:
    x, w = torch.randn(4, 3, requires_grad=True), torch.randn(3, 2, requires_grad=True)

    def function(x: Tensor) -> tuple[Tensor]:
        return (torch.tanh(x @ w),)

    for found, expected in zip(
        torch.autograd.grad(shielded(function, x)[0].sum(), (x, w)),
        torch.autograd.grad(function(x)[0].sum(), (x, w)),
        strict=True,
    ):
        assert torch.equal(found, expected)


def test_a_gradient_that_is_nan_is_not_hidden() -> None:
    outer = torch.ones(2, 3)
    outer[1, 0] = torch.nan
    leaf = torch.where(torch.arange(2).view(2, 1) == 1, torch.inf, torch.randn(2, 3)).requires_grad_()
    (found,) = shielded(lambda x: (x * 2,), leaf)
    (d_leaf,) = torch.autograd.grad(found, leaf, outer)
    assert d_leaf[1].isnan().any() and torch.equal(d_leaf[0], torch.full((3,), 2.0))


def test_each_result_is_shielded_by_its_own_rows() -> None:
    q, k = torch.randn(2, 3, requires_grad=True), torch.randn(4, 3, requires_grad=True)
    w = torch.randn(3, 3, requires_grad=True)
    wild_k = torch.where(torch.arange(4).view(4, 1) == 0, torch.nan, k)
    found_q, found_k = shielded(lambda q, k: (q @ w, k @ w), q, wild_k)
    outer = torch.ones(4, 3)
    outer[0] = 0.0
    total = found_q.sum() + torch.where(outer == 0, 0.0, found_k).sum()
    (d_w,) = torch.autograd.grad(total, w)
    torch.testing.assert_close(d_w, (q.sum(0) + k[1:].sum(0)).detach().view(3, 1).expand(3, 3))


def test_halves_are_added_up_in_full_precision() -> None:
    assert all_finite(torch.full((1000,), 1000.0, dtype=torch.float16))  # a million, and float16 ends at 65504
