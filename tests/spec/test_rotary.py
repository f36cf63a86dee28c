"""Rotary positions: the published numbers, what they leave alone, and where they refuse."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from regard.errors import SpecError
from regard.spec.rotary import rotary, rotate

CLOSE = dict(rtol=1e-12, atol=1e-12)
LAYOUTS = ["half", "interleaved"]


@pytest.mark.parametrize(
    "layout, expected",
    [
        ("interleaved", [-1.142640, 1.922076, 2.959851, 4.029800]),
        ("half", [-1.984111, 1.959901, 2.462378, 4.019800]),
    ],
)
def test_the_vector_1234_at_position_one_is_turned_as_published(layout: str, expected: list[float]) -> None:
    x = torch.tensor([[1.0, 2.0, 3.0, 4.0]], dtype=torch.float64)
    for found in rotary(x, x, torch.tensor([1]), layout=layout):
        assert found[0].tolist() == pytest.approx(expected, abs=1e-6)


def turned_by_matrix(x: Tensor, at: list[int], layout: str, base: float = 10000.0) -> Tensor:
    """Each pair of features turned by a 2 x 2 matrix, vector by vector."""
    n, width = x.shape
    result = torch.empty_like(x)
    for row in range(n):
        for m in range(width // 2):
            angle = at[row] * base ** (-2 * m / width)
            one, other = (m, m + width // 2) if layout == "half" else (2 * m, 2 * m + 1)
            a, b = float(x[row, one]), float(x[row, other])
            result[row, one] = a * math.cos(angle) - b * math.sin(angle)
            result[row, other] = a * math.sin(angle) + b * math.cos(angle)
    return result


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("base", [10000.0, 500.0])
def test_pairs_of_features_are_turned_by_their_own_angles(layout: str, base: float) -> None:
    x = torch.randn(5, 8, dtype=torch.float64)
    at = [0, 1, 7, 100, -3]
    found, _ = rotary(x, x, torch.tensor(at), layout=layout, base=base)
    torch.testing.assert_close(found, turned_by_matrix(x, at, layout, base), **CLOSE)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_products_depend_on_the_distance_alone(layout: str) -> None:
    q, k = torch.randn(2, 3, 5, 8, dtype=torch.float64), torch.randn(2, 3, 5, 8, dtype=torch.float64)
    at = torch.arange(5)
    plain, moved = (rotary(q, k, at + shift, layout=layout) for shift in (0, 1234))
    torch.testing.assert_close(plain[0] @ plain[1].mT, moved[0] @ moved[1].mT, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_turning_changes_no_length(layout: str) -> None:
    x = torch.randn(7, 10, dtype=torch.float64)
    found, _ = rotary(x, x, layout=layout)
    torch.testing.assert_close(found.norm(dim=-1), x.norm(dim=-1), **CLOSE)


def test_position_zero_leaves_a_vector_as_it_is() -> None:
    x = torch.randn(3, 8)
    assert torch.equal(rotary(x, x, torch.zeros(3))[0], x)


def test_the_two_layouts_are_one_after_reordering_the_features() -> None:
    x = torch.randn(6, 8, dtype=torch.float64)
    order = torch.arange(8).view(2, 4).T.flatten()  # 0 4 1 5 2 6 3 7
    half, _ = rotary(x, x, layout="half")
    interleaved, _ = rotary(x[:, order], x, layout="interleaved")
    torch.testing.assert_close(half[:, order], interleaved, **CLOSE)


def test_without_positions_the_queries_stand_at_the_end_of_the_keys() -> None:
    q, k = torch.randn(2, 8, dtype=torch.float64), torch.randn(5, 8, dtype=torch.float64)
    found = rotary(q, k)
    expected = rotary(q, k, (torch.tensor([3, 4]), torch.arange(5)))
    assert torch.equal(found[0], expected[0]) and torch.equal(found[1], expected[1])
    together, _ = rotary(k, k)
    decoded = torch.cat([rotary(k[n : n + 1], k[: n + 1])[0] for n in range(5)])
    torch.testing.assert_close(decoded, together, **CLOSE)


def test_positions_may_differ_by_batch_element() -> None:
    q, k = torch.randn(2, 3, 4, 8, dtype=torch.float64), torch.randn(2, 3, 4, 8, dtype=torch.float64)
    at = torch.tensor([[0, 1, 2, 3], [10, 11, 12, 13]])
    found = rotary(q, k, at)
    for b in range(2):
        expected = rotary(q[b], k[b], at[b])
        assert torch.equal(found[0][b], expected[0]) and torch.equal(found[1][b], expected[1])
    three, _ = rotary(q[:, 0], k[:, 0], at)
    assert torch.equal(three, found[0][:, 0])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_only_the_first_features_are_turned_if_a_width_is_given(layout: str) -> None:
    x = torch.randn(4, 10, dtype=torch.float64)
    found, _ = rotary(x, x, width=6, layout=layout)
    expected, _ = rotary(x[:, :6], x[:, :6], layout=layout)
    assert torch.equal(found[:, 6:], x[:, 6:]) and torch.equal(found[:, :6], expected)


def test_far_positions_are_turned_as_exactly_as_near_ones() -> None:
    x = torch.randn(1, 64)
    at = torch.tensor([1_000_003])
    found, _ = rotary(x, x, at)
    exact, _ = rotary(x.double(), x.double(), at)
    # float32 numbers of size 1 to 3, each the sum of two products
    torch.testing.assert_close(found.double(), exact, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_the_dtype_is_kept_and_half_precision_is_rounded_once(dtype: torch.dtype) -> None:
    x = torch.randn(6, 8).to(dtype)
    found, _ = rotary(x, x)
    assert found.dtype == dtype
    expected, _ = rotary(x.double(), x.double())
    if dtype in (torch.bfloat16, torch.float16):
        assert torch.equal(found, rotary(x.float(), x.float())[0].to(dtype))
    torch.testing.assert_close(
        found.double(), expected, rtol=2 * torch.finfo(dtype).eps, atol=2 * torch.finfo(dtype).eps
    )


def test_turning_by_given_cosines_and_sines_is_the_same() -> None:
    x = torch.randn(5, 8, dtype=torch.float64)
    angle = torch.arange(5.0, dtype=torch.float64).unsqueeze(1) * 10000.0 ** (
        -torch.arange(0, 8, 2, dtype=torch.float64) / 8
    )
    torch.testing.assert_close(rotate(x, angle.cos(), angle.sin()), rotary(x, x)[0], **CLOSE)


def test_gradients_flow_through_a_turn() -> None:
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: rotary(x, x)[0], (x,))


def some(width: int = 8) -> Tensor:
    return torch.ones(3, width)


REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "layout": (
        lambda: rotary(some(), some(), layout="pairs"),
        r"layout must be 'half' or 'interleaved'; got 'pairs'\.",
    ),
    "odd width": (lambda: rotary(some(7), some(7)), r"rotary needs an even width of at most 7; got 7\."),
    "part of it odd": (lambda: rotary(some(), some(), width=3), r"rotary needs an even width of at most 8; got 3\."),
    "too wide": (lambda: rotary(some(), some(), width=10), r"rotary needs an even width of at most 8; got 10\."),
    "no width": (lambda: rotary(some(), some(), width=0), r"rotary needs an even width of at most 8; got 0\."),
    "positions": (
        lambda: rotary(some(), some(), torch.arange(4)),
        r"a number for each of 3 vectors; got a tensor of shape \(4,\), torch\.int64\.",
    ),
    "positions of keys": (
        lambda: rotary(some(), some(), (torch.arange(3), torch.arange(2))),
        r"a number for each of 3 vectors; got a tensor of shape \(2,\), torch\.int64\.",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_turned_is_refused_with_its_numbers(name: str) -> None:
    make, message = REFUSED[name]
    with pytest.raises(SpecError, match=message):
        make()
