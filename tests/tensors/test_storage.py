"""Tensors with missing or too small storage raise an error before the native kernels read them."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode

from regard import attention, mask, normalizer, scaled_dot_product_attention, score
from regard.backends.native.backend import builds
from regard.errors import ArgumentError
from regard.tensors.storage import address

pytestmark = pytest.mark.skipif(not builds(), reason="the compiled core is not built")


def randn() -> Tensor:
    return torch.randn(1, 2, 40, 16)


def resize_storage(x: Tensor, size: int) -> Tensor:
    x.untyped_storage().resize_(size)
    return x


@pytest.mark.parametrize("size", [0, 64, 5119])
@pytest.mark.parametrize("name", ["q", "k", "v"])
@pytest.mark.parametrize("is_repeated", [False, True], ids=["first call", "fast path"])
def test_storage_that_is_too_small_raises_error(name: str, size: int, is_repeated: bool) -> None:
    tensors = {"q": randn(), "k": randn(), "v": randn()}
    for _ in range(2 * is_repeated):
        attention(**tensors)
    resize_storage(tensors[name], size)

    with pytest.raises(
        ArgumentError, match=f"{name} must have storage .*need 5120 bytes, and a storage of {size} bytes"
    ):
        attention(**tensors)


def test_view_beyond_a_shrunk_storage_raises_error_on_the_fast_path() -> None:
    base = torch.randn(2, 2, 40, 16)
    q, k = base[1:], randn()
    for _ in range(2):
        attention(q, k, k)
    resize_storage(base, 5120)  # the size of q, but q begins at its end

    with pytest.raises(ArgumentError, match="need 10240 bytes, and a storage of 5120 bytes"):
        attention(q, k, k)


CAPTURED: dict[str, Callable[[], tuple[Tensor, dict[str, object]]]] = {
    "bias": lambda: (bias := torch.randn(2, 40, 40), dict(score=score.bias(bias))),
    "boolean mask": lambda: (values := torch.ones(40, 40, dtype=torch.bool), dict(mask=values)),
    "entmax": lambda: (alpha := torch.full((2,), 1.5), dict(normalizer=normalizer.entmax(alpha))),
}


@pytest.mark.parametrize("name", CAPTURED)
@pytest.mark.parametrize("needs_grad", [False, True], ids=["no gradients", "gradients"])
def test_captured_tensor_without_storage_raises_error(name: str, needs_grad: bool) -> None:
    captured, options = CAPTURED[name]()
    q = randn().requires_grad_(needs_grad)
    resize_storage(captured, 0)

    with pytest.raises(ArgumentError, match=r"captured tensor must have storage .* and a storage of 0 bytes"):
        attention(q, q, q, **options)


def test_gradient_without_storage_raises_error() -> None:
    q = randn().requires_grad_()
    output = attention(q, randn(), randn())

    with pytest.raises(ArgumentError, match=r"must have storage .*need 5120 bytes, and a storage of 0 bytes"):
        torch.autograd.grad(output, q, resize_storage(randn(), 0))


@pytest.mark.parametrize("options", [{}, {"mask": mask.causal()}], ids=["plain", "causal"])
def test_fake_tensors_raise_error(options: dict[str, object]) -> None:
    with FakeTensorMode():
        q = randn()
        with pytest.raises(
            ArgumentError, match=r"needs tensors with data in memory; got a FakeTensor of shape \(1, 2, 40"
        ):
            attention(q, q, q, **options)


@pytest.mark.parametrize("backend", [None, "tiled", "reference"])
def test_tensors_on_the_meta_device_raise_error(backend: str | None) -> None:
    q = torch.empty(1, 2, 40, 16, device="meta")
    with pytest.raises(ArgumentError, match=r"q, k and v must hold data; tensors on the device meta have only shapes"):
        attention(q, q, q, backend=backend)
    with pytest.raises(ArgumentError, match=r"q, k and v must hold data"):
        scaled_dot_product_attention(q, q, q)


def test_zero_tensors_are_materialized() -> None:
    q, zero = randn(), torch._efficientzerotensor((1, 2, 40, 16))
    attention(q, q, q)

    assert not attention(q, q, zero).any()
    torch.testing.assert_close(attention(zero, q, q), q.mean(2, keepdim=True).expand_as(q))
    bias = torch._efficientzerotensor((2, 40, 40))
    assert torch.equal(attention(q, q, q, score=score.bias(bias)), attention(q, q, q, score=score.bias(bias.clone())))


def test_address_is_the_first_element_and_never_null() -> None:
    x = torch.arange(10.0)

    assert address(x[3:]) == x.data_ptr() + 12
    assert address(torch.empty(0)) != 0
    with pytest.raises(
        ArgumentError, match=r"shape \(10,\) and strides \(1,\), which need 40 bytes, and a storage of 39 bytes"
    ):
        address(resize_storage(x, 39))
