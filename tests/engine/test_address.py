"""Tensors whose storage is missing or too small: an error, before any address reaches the compiled core."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode

from regard import attention, mask, score, weigh
from regard.engine.address import address
from regard.engine.native import builds
from regard.errors import SpecError

pytestmark = pytest.mark.skipif(not builds(), reason="the compiled core is not built")


def randn() -> Tensor:
    return torch.randn(1, 2, 40, 16)


def with_storage(x: Tensor, size: int) -> Tensor:
    x.untyped_storage().resize_(size)
    return x


@pytest.mark.parametrize("size", [0, 64, 5119])
@pytest.mark.parametrize("name", ["q", "k", "v"])
@pytest.mark.parametrize("is_repeated", [False, True], ids=["first call", "fast path"])
def test_a_storage_that_is_too_small_is_refused(name: str, size: int, is_repeated: bool) -> None:
    tensors = {"q": randn(), "k": randn(), "v": randn()}
    for _ in range(2 * is_repeated):
        attention(**tensors)
    with_storage(tensors[name], size)

    with pytest.raises(SpecError, match=f"{name} must have storage .*need 5120 bytes, and a storage of {size} bytes"):
        attention(**tensors)


def test_a_view_behind_a_shrunk_storage_is_refused_on_the_fast_path() -> None:
    whole = torch.randn(2, 2, 40, 16)
    q, k = whole[1:], randn()
    for _ in range(2):
        attention(q, k, k)
    with_storage(whole, 5120)  # as large as q, but q begins behind it

    with pytest.raises(SpecError, match="need 10240 bytes, and a storage of 5120 bytes"):
        attention(q, k, k)


CAPTURED: dict[str, Callable[[], tuple[Tensor, dict[str, object]]]] = {
    "bias": lambda: (bias := torch.randn(2, 40, 40), dict(score=score.bias(bias))),
    "boolean mask": lambda: (seen := torch.ones(40, 40, dtype=torch.bool), dict(mask=seen)),
    "entmax": lambda: (power := torch.full((2,), 1.5), dict(weigh=weigh.entmax(power))),
}


@pytest.mark.parametrize("name", CAPTURED)
@pytest.mark.parametrize("needs_grad", [False, True], ids=["no gradients", "gradients"])
def test_a_captured_tensor_without_storage_is_refused(name: str, needs_grad: bool) -> None:
    captured, options = CAPTURED[name]()
    q = randn().requires_grad_(needs_grad)
    with_storage(captured, 0)

    with pytest.raises(SpecError, match=r"captured tensor must have storage .* and a storage of 0 bytes"):
        attention(q, q, q, **options)


def test_a_gradient_without_storage_is_refused() -> None:
    q = randn().requires_grad_()
    output = attention(q, randn(), randn())

    with pytest.raises(SpecError, match=r"must have storage .*need 5120 bytes, and a storage of 0 bytes"):
        torch.autograd.grad(output, q, with_storage(randn(), 0))


@pytest.mark.parametrize("options", [{}, {"mask": mask.causal()}], ids=["plain", "causal"])
def test_fake_tensors_are_refused(options: dict[str, object]) -> None:
    with FakeTensorMode():
        q = randn()
        with pytest.raises(SpecError, match=r"needs tensors with data in memory; got a FakeTensor of shape \(1, 2, 40"):
            attention(q, q, q, **options)


def test_zero_tensors_are_written_out() -> None:
    q, zero = randn(), torch._efficientzerotensor((1, 2, 40, 16))
    attention(q, q, q)

    assert not attention(q, q, zero).any()
    torch.testing.assert_close(attention(zero, q, q), q.mean(2, keepdim=True).expand_as(q))
    bias = torch._efficientzerotensor((2, 40, 40))
    assert torch.equal(attention(q, q, q, score=score.bias(bias)), attention(q, q, q, score=score.bias(bias.clone())))


def test_an_address_is_where_a_tensor_begins_and_never_null() -> None:
    x = torch.arange(10.0)

    assert address(x[3:]) == x.data_ptr() + 12
    assert address(torch.empty(0)) != 0
    with pytest.raises(
        SpecError, match=r"shape \(10,\) and strides \(1,\), which need 40 bytes, and a storage of 39 bytes"
    ):
        address(with_storage(x, 39))
