"""Axial attention against torch's dense attention over flattened positions, and against each line of the grid."""

from itertools import product

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck
from torch.nn.functional import scaled_dot_product_attention

from regard import attention, mask, score
from regard.errors import ArgumentError
from regard.mechanisms.axial import axial_attention, axial_attention_sum

GRIDS = [(5, 7), (1, 6), (6, 1), (1, 1), (3, 4, 5), (9,)]
every_grid = pytest.mark.parametrize("grid", GRIDS)


def random_inputs(grid: tuple[int, ...], num_kv_heads: int = 4) -> list[Tensor]:
    sizes = ((4, *grid, 6), (num_kv_heads, *grid, 6), (num_kv_heads, *grid, 3))
    return [torch.randn(2, *size, dtype=torch.float64) for size in sizes]


def same_line(grid: tuple[int, ...], axis: int) -> Tensor:
    """Return the pairs of flattened positions that differ only along the axis."""
    positions = torch.cartesian_prod(*(torch.arange(size) for size in grid)).view(-1, len(grid))
    other_axes = [axis_index for axis_index in range(len(grid)) if axis_index != axis]
    return (positions[:, None, other_axes] == positions[None, :, other_axes]).all(-1)


def flat(x: Tensor) -> Tensor:
    return x.flatten(2, -2)


@every_grid
def test_axial_attention_is_dense_attention_masked_to_lines(grid: tuple[int, ...]) -> None:
    q, k, v = (x.requires_grad_() for x in random_inputs(grid))
    for axis in range(len(grid)):
        output = axial_attention(q, k, v, axis=axis, num_axes=len(grid))
        gradients = torch.autograd.grad(output.square().sum(), (q, k, v))

        dense = scaled_dot_product_attention(flat(q), flat(k), flat(v), attn_mask=same_line(grid, axis))
        expected_gradients = torch.autograd.grad(dense.square().sum(), (q, k, v))

        for actual, desired in zip((output, *gradients), (dense.view(output.shape), *expected_gradients), strict=True):
            torch.testing.assert_close(actual, desired, rtol=0, atol=1e-12)  # both in float64
        from_negative_axis = axial_attention(q, k, v, axis=axis - len(grid), num_axes=len(grid))
        assert torch.equal(from_negative_axis, output)


@pytest.mark.parametrize("backend", ["native", "tiled"])
def test_axial_attention_equals_masks_for_rows_and_columns(backend: str) -> None:
    """Compare with masks over flattened positions: i // 17 is the row, i % 17 the column."""
    q, k, v = torch.randn(3, 1, 4, 12, 17, 8)
    options = dict(backend=backend)

    row_attention = attention(flat(q), flat(k), flat(v), mask=lambda b, h, i, j: i // 17 == j // 17, **options)
    column_attention = attention(flat(q), flat(k), flat(v), mask=lambda b, h, i, j: i % 17 == j % 17, **options)

    close = dict(rtol=0, atol=5e-6)  # means of 17 numbers of size about 1 in float32
    torch.testing.assert_close(flat(axial_attention(q, k, v, axis=1)), row_attention, **close)
    torch.testing.assert_close(flat(axial_attention(q, k, v, axis=0)), column_attention, **close)


def test_each_line_is_a_separate_sequence() -> None:
    q, k, v = random_inputs((3, 4, 5))

    output = axial_attention(q, k, v, axis=1, num_axes=3)

    for b, h, x, z in product(range(2), range(4), range(3), range(5)):
        weights = torch.softmax(q[b, h, x, :, z] @ k[b, h, x, :, z].mT / 6**0.5, -1)
        torch.testing.assert_close(output[b, h, x, :, z], weights @ v[b, h, x, :, z])


@every_grid
def test_axial_attention_sum_adds_all_axes(grid: tuple[int, ...]) -> None:
    q, k, v = random_inputs(grid)

    output = axial_attention_sum(q, k, v, num_axes=len(grid))

    masks = [same_line(grid, axis) for axis in range(len(grid))]
    dense = sum(scaled_dot_product_attention(flat(q), flat(k), flat(v), attn_mask=line_mask) for line_mask in masks)
    torch.testing.assert_close(flat(output), dense)


def test_mask_and_score_use_positions_along_the_axis() -> None:
    grid = (5, 7)
    q, k, v = random_inputs(grid)
    coordinates = torch.arange(35) // 7, torch.arange(35) % 7
    for axis, coordinate in enumerate(coordinates):
        visible = same_line(grid, axis) & (coordinate <= coordinate[:, None])
        bias = torch.where(visible, -0.3 * (coordinate[:, None] - coordinate), -torch.inf).double()

        causal = axial_attention(q, k, v, axis=axis, mask=mask.causal())
        faded = axial_attention(q, k, v, axis=axis, mask=mask.causal(), score=score.alibi([0.3] * 4))

        expected = scaled_dot_product_attention(flat(q), flat(k), flat(v), attn_mask=visible)
        torch.testing.assert_close(flat(causal), expected)
        torch.testing.assert_close(flat(faded), scaled_dot_product_attention(flat(q), flat(k), flat(v), attn_mask=bias))
    total = axial_attention_sum(q, k, v, mask=mask.causal())
    torch.testing.assert_close(total, sum(axial_attention(q, k, v, axis=a, mask=mask.causal()) for a in (0, 1)))


def test_two_passes_connect_all_positions_of_a_grid() -> None:
    x = torch.randn(1, 4, 5, 3, dtype=torch.float64, requires_grad=True)

    once = axial_attention(x, x, x, axis=0)
    (gradient,) = torch.autograd.grad(once[0, 1, 2].sum(), x)
    assert (gradient[0].abs().sum(-1) > 0).nonzero().tolist() == [[row, 2] for row in range(4)]

    once = axial_attention(x, x, x, axis=0)
    twice = axial_attention(once, once, once, axis=1)
    (gradient,) = torch.autograd.grad(twice[0, 1, 2].sum(), x)
    assert (gradient[0].abs().sum(-1) > 0).all()


def test_keys_may_have_another_length_along_the_axis() -> None:
    q, _, _ = random_inputs((5, 7))
    _, k, v = random_inputs((5, 3))

    output = axial_attention(q, k, v, axis=1)

    torch.testing.assert_close(output[:, :, 2], scaled_dot_product_attention(q[:, :, 2], k[:, :, 2], v[:, :, 2]))


def test_grouped_heads_and_inputs_without_batch() -> None:
    q, k, v = random_inputs((5, 7), num_kv_heads=2)
    expected = axial_attention(q, *(x.repeat_interleave(2, dim=1) for x in (k, v)), axis=0)

    torch.testing.assert_close(axial_attention(q, k, v, axis=0), expected)
    torch.testing.assert_close(axial_attention(q[1], k[1], v[1], axis=0), expected[1])
    nested = [x.unsqueeze(0).expand(3, *x.shape) for x in (q, k, v)]
    torch.testing.assert_close(axial_attention(*nested, axis=0)[2], expected)


def test_an_unbatched_line_has_separate_heads() -> None:
    x = torch.randn(4, 9, 6, dtype=torch.float64)

    output = axial_attention(x, x, x, axis=0, num_axes=1, mask=lambda b, h, i, j: (j <= i) & (h >= 2))

    assert (output[:2] == 0).all()
    torch.testing.assert_close(output[2:], scaled_dot_product_attention(x, x, x, is_causal=True)[2:])


def test_gradients() -> None:
    q, k, v = (torch.randn(1, 2, 3, 2, dtype=torch.float64, requires_grad=True) for _ in range(3))

    assert gradcheck(lambda q, k, v: axial_attention_sum(q, k, v, mask=mask.causal()), (q, k, v))


def test_invalid_arguments_raise() -> None:
    q, k, v = random_inputs((3, 4))
    with pytest.raises(ArgumentError, match="between -2 and 1 for a grid of 2 axes; got 2"):
        axial_attention(q, k, v, axis=2)
    with pytest.raises(ArgumentError, match="num_axes must be at least 1; got 0"):
        axial_attention_sum(q, k, v, num_axes=0)
    with pytest.raises(
        ArgumentError, match=r"must all be \(\.\.\., num_heads, 2 grid axes, head_dim\); got q=\(4, 6\)"
    ):
        axial_attention(q[0, 0, 0], k[0, 0, 0], v[0, 0, 0], axis=0)
    with pytest.raises(ArgumentError, match=r"2 grid axes, head_dim\); got q=\(2, 4, 3, 4, 6\), k=\(4, 3, 4, 6\)"):
        axial_attention(q, k[0], v[0], axis=0)
    with pytest.raises(
        ArgumentError, match=r"same grid except along axis 0; got q=\(2, 4, 3, 4, 6\), k=\(2, 4, 3, 2, 6\)"
    ):
        axial_attention(q, k[..., :2, :], v[..., :2, :], axis=0)
