"""Axial attention: torch's dense attention over flat positions that hides other rows, each line of a grid by itself."""

from itertools import product

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck
from torch.nn.functional import scaled_dot_product_attention

from regard import attention, mask, score
from regard.errors import SpecError
from regard.mechanism.axial import axial, axial_attention

GRIDS = [(5, 7), (1, 6), (6, 1), (1, 1), (3, 4, 5), (9,)]
every_grid = pytest.mark.parametrize("grid", GRIDS)


def numbers(grid: tuple[int, ...], key_heads: int = 4) -> list[Tensor]:
    sizes = ((4, *grid, 6), (key_heads, *grid, 6), (key_heads, *grid, 3))
    return [torch.randn(2, *size, dtype=torch.float64) for size in sizes]


def same_line(grid: tuple[int, ...], axis: int) -> Tensor:
    """Which flat positions differ along one axis only."""
    places = torch.cartesian_prod(*(torch.arange(size) for size in grid)).view(-1, len(grid))
    others = [at for at in range(len(grid)) if at != axis]
    return (places[:, None, others] == places[None, :, others]).all(-1)


def flat(x: Tensor) -> Tensor:
    return x.flatten(2, -2)


@every_grid
def test_it_is_dense_attention_over_flat_positions_that_hides_other_lines(grid: tuple[int, ...]) -> None:
    q, k, v = (x.requires_grad_() for x in numbers(grid))
    for axis in range(len(grid)):
        found = axial_attention(q, k, v, axis=axis, dims=len(grid))
        got = torch.autograd.grad(found.square().sum(), (q, k, v))

        dense = scaled_dot_product_attention(flat(q), flat(k), flat(v), attn_mask=same_line(grid, axis))
        expected = torch.autograd.grad(dense.square().sum(), (q, k, v))

        for one, other in zip((found, *got), (dense.view(found.shape), *expected), strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-12)  # both in float64
        again = axial_attention(q, k, v, axis=axis - len(grid), dims=len(grid))
        assert torch.equal(again, found)


@pytest.mark.parametrize("engine", ["native", "tiled"])
def test_rows_and_columns_are_masks_too(engine: str) -> None:
    """The same through regard's masks over flat positions, which name rows by division and columns by the rest."""
    q, k, v = torch.randn(3, 1, 4, 12, 17, 8)
    by = dict(engine=engine)

    along_rows = attention(flat(q), flat(k), flat(v), mask=lambda b, h, i, j: i // 17 == j // 17, **by)
    along_columns = attention(flat(q), flat(k), flat(v), mask=lambda b, h, i, j: i % 17 == j % 17, **by)

    close = dict(rtol=0, atol=5e-6)  # means of 17 numbers of size about 1 in float32
    torch.testing.assert_close(flat(axial_attention(q, k, v, axis=1)), along_rows, **close)
    torch.testing.assert_close(flat(axial_attention(q, k, v, axis=0)), along_columns, **close)


def test_each_line_is_a_sequence_of_its_own() -> None:
    q, k, v = numbers((3, 4, 5))

    found = axial_attention(q, k, v, axis=1, dims=3)

    for b, h, x, z in product(range(2), range(4), range(3), range(5)):
        weights = torch.softmax(q[b, h, x, :, z] @ k[b, h, x, :, z].mT / 6**0.5, -1)
        torch.testing.assert_close(found[b, h, x, :, z], weights @ v[b, h, x, :, z])


@every_grid
def test_axial_is_the_sum_over_axes(grid: tuple[int, ...]) -> None:
    q, k, v = numbers(grid)

    found = axial(q, k, v, dims=len(grid))

    tables = [same_line(grid, axis) for axis in range(len(grid))]
    dense = sum(scaled_dot_product_attention(flat(q), flat(k), flat(v), attn_mask=table) for table in tables)
    torch.testing.assert_close(flat(found), dense)


def test_a_mask_and_a_score_speak_of_places_along_the_axis() -> None:
    grid = (5, 7)
    q, k, v = numbers(grid)
    place = torch.arange(35) // 7, torch.arange(35) % 7
    for axis, along in enumerate(place):
        ordered = same_line(grid, axis) & (along <= along[:, None])
        bias = torch.where(ordered, -0.3 * (along[:, None] - along), -torch.inf).double()

        causal = axial_attention(q, k, v, axis=axis, mask=mask.causal())
        faded = axial_attention(q, k, v, axis=axis, mask=mask.causal(), score=score.alibi([0.3] * 4))

        expected = scaled_dot_product_attention(flat(q), flat(k), flat(v), attn_mask=ordered)
        torch.testing.assert_close(flat(causal), expected)
        torch.testing.assert_close(flat(faded), scaled_dot_product_attention(flat(q), flat(k), flat(v), attn_mask=bias))
    both = axial(q, k, v, mask=mask.causal())
    torch.testing.assert_close(both, sum(axial_attention(q, k, v, axis=a, mask=mask.causal()) for a in (0, 1)))


def test_one_pass_reaches_a_line_and_two_passes_reach_every_position() -> None:
    x = torch.randn(1, 4, 5, 3, dtype=torch.float64, requires_grad=True)

    once = axial_attention(x, x, x, axis=0)
    (reached,) = torch.autograd.grad(once[0, 1, 2].sum(), x)
    assert (reached[0].abs().sum(-1) > 0).nonzero().tolist() == [[row, 2] for row in range(4)]

    once = axial_attention(x, x, x, axis=0)
    twice = axial_attention(once, once, once, axis=1)
    (reached,) = torch.autograd.grad(twice[0, 1, 2].sum(), x)
    assert (reached[0].abs().sum(-1) > 0).all()


def test_keys_may_be_more_or_fewer_along_the_axis() -> None:
    q, _, _ = numbers((5, 7))
    _, k, v = numbers((5, 3))

    found = axial_attention(q, k, v, axis=1)

    torch.testing.assert_close(found[:, :, 2], scaled_dot_product_attention(q[:, :, 2], k[:, :, 2], v[:, :, 2]))


def test_heads_share_keys_and_no_batch_need_be_given() -> None:
    q, k, v = numbers((5, 7), key_heads=2)
    spread = axial_attention(q, *(x.repeat_interleave(2, dim=1) for x in (k, v)), axis=0)

    torch.testing.assert_close(axial_attention(q, k, v, axis=0), spread)
    torch.testing.assert_close(axial_attention(q[1], k[1], v[1], axis=0), spread[1])
    deeper = [x.unsqueeze(0).expand(3, *x.shape) for x in (q, k, v)]
    torch.testing.assert_close(axial_attention(*deeper, axis=0)[2], spread)


def test_a_line_without_a_batch_keeps_its_heads_apart() -> None:
    x = torch.randn(4, 9, 6, dtype=torch.float64)

    found = axial_attention(x, x, x, axis=0, dims=1, mask=lambda b, h, i, j: (j <= i) & (h >= 2))

    assert (found[:2] == 0).all()
    torch.testing.assert_close(found[2:], scaled_dot_product_attention(x, x, x, is_causal=True)[2:])


def test_gradients() -> None:
    q, k, v = (torch.randn(1, 2, 3, 2, dtype=torch.float64, requires_grad=True) for _ in range(3))

    assert gradcheck(lambda q, k, v: axial(q, k, v, mask=mask.causal()), (q, k, v))


def test_what_is_wrong_is_said() -> None:
    q, k, v = numbers((3, 4))
    with pytest.raises(SpecError, match="between -2 and 1 for a grid of 2 axes; got 2"):
        axial_attention(q, k, v, axis=2)
    with pytest.raises(SpecError, match="at least 1 axis; got dims=0"):
        axial(q, k, v, dims=0)
    with pytest.raises(SpecError, match=r"\(\.\.\., heads, 2 axes of a grid, width\) alike; got q=\(4, 6\)"):
        axial_attention(q[0, 0, 0], k[0, 0, 0], v[0, 0, 0], axis=0)
    with pytest.raises(SpecError, match=r"2 axes of a grid, width\) alike; got q=\(2, 4, 3, 4, 6\), k=\(4, 3, 4, 6\)"):
        axial_attention(q, k[0], v[0], axis=0)
    with pytest.raises(SpecError, match=r"one grid but for axis 0; got q=\(2, 4, 3, 4, 6\), k=\(2, 4, 3, 2, 6\)"):
        axial_attention(q, k[..., :2, :], v[..., :2, :], axis=0)
