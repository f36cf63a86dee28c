"""Nonfinite rows keep their values, and their gradients reach no shared parameter."""

import pytest
import torch
from torch import Tensor

from regard.tensors.nonfinite import all_finite, isolate_nonfinite, nonfinite_rows


@pytest.mark.parametrize("special", [torch.nan, torch.inf, -torch.inf])
def test_nonfinite_values_are_detected(special: float) -> None:
    x = torch.ones(3, 4)
    assert all_finite(x, x) and not nonfinite_rows(x).any()
    x[1, 2] = special
    assert not all_finite(torch.ones(2), x)
    assert nonfinite_rows(x).tolist() == [[False], [True], [False]]


def test_infinities_of_both_signs_are_detected() -> None:
    assert not all_finite(torch.tensor([torch.inf, -torch.inf]))


def test_empty_tensors_are_finite() -> None:
    assert all_finite(torch.zeros(0, 3)) and all_finite()


def test_isolate_nonfinite_does_not_change_values() -> None:
    x, w = torch.randn(4, 3), torch.randn(3, 2, requires_grad=True)
    x[2, 1] = torch.inf
    (output,) = isolate_nonfinite(lambda x: (x @ w,), x)
    torch.testing.assert_close(output, x @ w, equal_nan=True)


@pytest.mark.parametrize("special", [torch.nan, torch.inf])
def test_nonfinite_row_with_zero_gradient_reaches_no_shared_parameter(special: float) -> None:
    x, w = torch.randn(4, 3, requires_grad=True), torch.randn(3, 2, requires_grad=True)
    rows = torch.where(torch.arange(4).view(4, 1) == 2, special, x)
    upstream = torch.randn(4, 2)
    upstream[2] = 0.0  # the gradient of a masked key
    (output,) = isolate_nonfinite(lambda x: (x @ w,), rows)
    d_x, d_w = torch.autograd.grad(output, (x, w), upstream)
    finite_rows = [0, 1, 3]
    torch.testing.assert_close(d_w, (x[finite_rows].mT @ upstream[finite_rows]).detach())
    torch.testing.assert_close(d_x[finite_rows], (upstream[finite_rows] @ w.mT).detach())
    assert (d_x[2] == 0).all()


def test_gradients_of_finite_rows_do_not_change() -> None:
    x, w = torch.randn(4, 3, requires_grad=True), torch.randn(3, 2, requires_grad=True)

    def function(x: Tensor) -> tuple[Tensor]:
        return (torch.tanh(x @ w),)

    for gradient, expected in zip(
        torch.autograd.grad(isolate_nonfinite(function, x)[0].sum(), (x, w)),
        torch.autograd.grad(function(x)[0].sum(), (x, w)),
        strict=True,
    ):
        assert torch.equal(gradient, expected)


def test_nan_gradient_is_propagated() -> None:
    upstream = torch.ones(2, 3)
    upstream[1, 0] = torch.nan
    leaf = torch.where(torch.arange(2).view(2, 1) == 1, torch.inf, torch.randn(2, 3)).requires_grad_()
    (output,) = isolate_nonfinite(lambda x: (x * 2,), leaf)
    (d_leaf,) = torch.autograd.grad(output, leaf, upstream)
    assert d_leaf[1].isnan().any() and torch.equal(d_leaf[0], torch.full((3,), 2.0))


def test_each_result_is_isolated_by_its_own_rows() -> None:
    q, k = torch.randn(2, 3, requires_grad=True), torch.randn(4, 3, requires_grad=True)
    w = torch.randn(3, 3, requires_grad=True)
    nonfinite_k = torch.where(torch.arange(4).view(4, 1) == 0, torch.nan, k)
    output_q, output_k = isolate_nonfinite(lambda q, k: (q @ w, k @ w), q, nonfinite_k)
    upstream = torch.ones(4, 3)
    upstream[0] = 0.0
    total = output_q.sum() + torch.where(upstream == 0, 0.0, output_k).sum()
    (d_w,) = torch.autograd.grad(total, w)
    torch.testing.assert_close(d_w, (q.sum(0) + k[1:].sum(0)).detach().view(3, 1).expand(3, 3))


def test_half_precision_is_summed_in_float32() -> None:
    assert all_finite(
        torch.full((1000,), 1000.0, dtype=torch.float16)
    )  # the sum of a million exceeds the range of float16
