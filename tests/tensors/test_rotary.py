"""Rotary embeddings: published numbers, invariants, and errors."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from regard.errors import ArgumentError
from regard.tensors.rotary import apply_rotary, rotary

CLOSE = dict(rtol=1e-12, atol=1e-12)
LAYOUTS = ["half", "interleaved"]


@pytest.mark.parametrize(
    "layout, expected",
    [
        ("interleaved", [-1.142640, 1.922076, 2.959851, 4.029800]),
        ("half", [-1.984111, 1.959901, 2.462378, 4.019800]),
    ],
)
def test_rotation_of_the_vector_1234_at_position_one(layout: str, expected: list[float]) -> None:
    x = torch.tensor([[1.0, 2.0, 3.0, 4.0]], dtype=torch.float64)
    for rotated in rotary(x, x, torch.tensor([1]), layout=layout):
        assert rotated[0].tolist() == pytest.approx(expected, abs=1e-6)


def rotate_by_matrix(x: Tensor, positions: list[int], layout: str, base: float = 10000.0) -> Tensor:
    """Rotate each pair of features by a 2 x 2 matrix, vector by vector."""
    n, width = x.shape
    result = torch.empty_like(x)
    for row in range(n):
        for m in range(width // 2):
            angle = positions[row] * base ** (-2 * m / width)
            one, other = (m, m + width // 2) if layout == "half" else (2 * m, 2 * m + 1)
            a, b = float(x[row, one]), float(x[row, other])
            result[row, one] = a * math.cos(angle) - b * math.sin(angle)
            result[row, other] = a * math.sin(angle) + b * math.cos(angle)
    return result


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("base", [10000.0, 500.0])
def test_feature_pairs_are_rotated_by_their_angles(layout: str, base: float) -> None:
    x = torch.randn(5, 8, dtype=torch.float64)
    positions = [0, 1, 7, 100, -3]
    rotated, _ = rotary(x, x, torch.tensor(positions), layout=layout, base=base)
    torch.testing.assert_close(rotated, rotate_by_matrix(x, positions, layout, base), **CLOSE)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_products_depend_only_on_the_distance(layout: str) -> None:
    q, k = torch.randn(2, 3, 5, 8, dtype=torch.float64), torch.randn(2, 3, 5, 8, dtype=torch.float64)
    positions = torch.arange(5)
    plain, moved = (rotary(q, k, positions + shift, layout=layout) for shift in (0, 1234))
    torch.testing.assert_close(plain[0] @ plain[1].mT, moved[0] @ moved[1].mT, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_rotation_preserves_norms(layout: str) -> None:
    x = torch.randn(7, 10, dtype=torch.float64)
    rotated, _ = rotary(x, x, layout=layout)
    torch.testing.assert_close(rotated.norm(dim=-1), x.norm(dim=-1), **CLOSE)


def test_position_zero_is_the_identity() -> None:
    x = torch.randn(3, 8)
    assert torch.equal(rotary(x, x, torch.zeros(3))[0], x)


def test_layouts_are_equal_up_to_a_permutation_of_features() -> None:
    x = torch.randn(6, 8, dtype=torch.float64)
    order = torch.arange(8).view(2, 4).T.flatten()  # 0 4 1 5 2 6 3 7
    half, _ = rotary(x, x, layout="half")
    interleaved, _ = rotary(x[:, order], x, layout="interleaved")
    torch.testing.assert_close(half[:, order], interleaved, **CLOSE)


def test_default_positions_align_the_last_query_with_the_last_key() -> None:
    q, k = torch.randn(2, 8, dtype=torch.float64), torch.randn(5, 8, dtype=torch.float64)
    rotated = rotary(q, k)
    expected = rotary(q, k, (torch.tensor([3, 4]), torch.arange(5)))
    assert torch.equal(rotated[0], expected[0]) and torch.equal(rotated[1], expected[1])
    together, _ = rotary(k, k)
    decoded = torch.cat([rotary(k[n : n + 1], k[: n + 1])[0] for n in range(5)])
    torch.testing.assert_close(decoded, together, **CLOSE)


def test_positions_may_differ_by_batch_element() -> None:
    q, k = torch.randn(2, 3, 4, 8, dtype=torch.float64), torch.randn(2, 3, 4, 8, dtype=torch.float64)
    positions = torch.tensor([[0, 1, 2, 3], [10, 11, 12, 13]])
    rotated = rotary(q, k, positions)
    for b in range(2):
        expected = rotary(q[b], k[b], positions[b])
        assert torch.equal(rotated[0][b], expected[0]) and torch.equal(rotated[1][b], expected[1])
    three, _ = rotary(q[:, 0], k[:, 0], positions)
    assert torch.equal(three, rotated[0][:, 0])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_rope_dim_rotates_only_the_first_features(layout: str) -> None:
    x = torch.randn(4, 10, dtype=torch.float64)
    rotated, _ = rotary(x, x, rope_dim=6, layout=layout)
    expected, _ = rotary(x[:, :6], x[:, :6], layout=layout)
    assert torch.equal(rotated[:, 6:], x[:, 6:]) and torch.equal(rotated[:, :6], expected)


def test_rotation_at_far_positions_is_accurate() -> None:
    x = torch.randn(1, 64)
    positions = torch.tensor([1_000_003])
    rotated, _ = rotary(x, x, positions)
    exact, _ = rotary(x.double(), x.double(), positions)
    # float32 numbers of magnitude 1 to 3, each the sum of two products
    torch.testing.assert_close(rotated.double(), exact, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_dtype_is_preserved_and_half_precision_is_rounded_once(dtype: torch.dtype) -> None:
    x = torch.randn(6, 8).to(dtype)
    rotated, _ = rotary(x, x)
    assert rotated.dtype == dtype
    expected, _ = rotary(x.double(), x.double())
    if dtype in (torch.bfloat16, torch.float16):
        assert torch.equal(rotated, rotary(x.float(), x.float())[0].to(dtype))
    torch.testing.assert_close(
        rotated.double(), expected, rtol=2 * torch.finfo(dtype).eps, atol=2 * torch.finfo(dtype).eps
    )


def test_apply_rotary_agrees_with_rotary() -> None:
    x = torch.randn(5, 8, dtype=torch.float64)
    angle = torch.arange(5.0, dtype=torch.float64).unsqueeze(1) * 10000.0 ** (
        -torch.arange(0, 8, 2, dtype=torch.float64) / 8
    )
    torch.testing.assert_close(apply_rotary(x, angle.cos(), angle.sin()), rotary(x, x)[0], **CLOSE)


def test_rotary_passes_gradcheck() -> None:
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: rotary(x, x)[0], (x,))


def ones(width: int = 8) -> Tensor:
    return torch.ones(3, width)


INVALID: dict[str, tuple[Callable[[], object], str]] = {
    "layout": (
        lambda: rotary(ones(), ones(), layout="pairs"),
        r"layout must be 'half' or 'interleaved'; got 'pairs'\.",
    ),
    "odd head dimension": (
        lambda: rotary(ones(7), ones(7)),
        r"rope_dim must be even and from 2 to the head dimension 7; got 7\.",
    ),
    "odd rope_dim": (
        lambda: rotary(ones(), ones(), rope_dim=3),
        r"rope_dim must be even and from 2 to the head dimension 8; got 3\.",
    ),
    "rope_dim above the head dimension": (
        lambda: rotary(ones(), ones(), rope_dim=10),
        r"rope_dim must be even and from 2 to the head dimension 8; got 10\.",
    ),
    "rope_dim of zero": (
        lambda: rotary(ones(), ones(), rope_dim=0),
        r"rope_dim must be even and from 2 to the head dimension 8; got 0\.",
    ),
    "query positions": (
        lambda: rotary(ones(), ones(), torch.arange(4)),
        r"shape \(n,\) or \(batch, n\) with n=3; got a tensor of shape \(4,\), torch\.int64\.",
    ),
    "key positions": (
        lambda: rotary(ones(), ones(), (torch.arange(3), torch.arange(2))),
        r"shape \(n,\) or \(batch, n\) with n=3; got a tensor of shape \(2,\), torch\.int64\.",
    ),
}


@pytest.mark.parametrize("name", INVALID)
def test_invalid_arguments_raise_errors_with_their_values(name: str) -> None:
    make, message = INVALID[name]
    with pytest.raises(ArgumentError, match=message):
        make()
