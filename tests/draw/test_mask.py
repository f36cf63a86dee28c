"""Pictures of masks: what they show is what the mask says."""

import numpy as np
import pytest
import torch
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from regard import draw, mask
from regard.draw.figure import HIDDEN, PARTIAL, SEEN
from regard.errors import SpecError


def levels(axes):
    """0 hidden, 1 partial, 2 seen: the cells of a panel, read back from their colours."""
    (image,) = axes.get_images()
    pixels = np.asarray(image.get_array())
    known = (255 * np.array([to_rgb(c) for c in (HIDDEN, PARTIAL, SEEN)])).round().astype(np.uint8)
    return (pixels[..., None, :] == known).all(-1).argmax(-1)


def legend(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_a_small_mask_is_drawn_position_by_position():
    chosen = mask.causal() & mask.window(3)

    figure = draw.mask(chosen, 9, 12)

    assert isinstance(figure, Figure)
    assert (levels(figure.axes[0]) == 2 * chosen.dense(9, 12)[0, 0].numpy()).all()
    assert legend(figure) == ["seen (27)", "hidden (81)"]
    assert figure.get_suptitle() == "j <= p and p - 3 < j and j < p + 3"


def test_a_large_mask_is_drawn_by_regions_that_cover_it():
    chosen = mask.causal() & mask.window(100)
    size, length = 4, 500

    figure = draw.mask(chosen, length)

    cells = levels(figure.axes[0])
    seen = np.zeros((512, 512))
    seen[:length, :length] = chosen.dense(length)[0, 0]
    inside = np.zeros((512, 512))
    inside[:length, :length] = 1
    count, area = (x.reshape(128, size, 128, size).sum((1, 3))[:125, :125] for x in (seen, inside))
    assert cells.shape == (125, 125)
    assert (cells == np.where(count == 0, 0, np.where(count == area, 2, 1))).all()
    assert figure.legends[0].get_title().get_text() == "regions of 4 x 4 positions"


def test_a_mask_of_ten_million_positions_a_side_is_drawn_without_visiting_them():
    figure = draw.mask(mask.causal() & mask.window(1_000_000), 10_000_000)

    assert levels(figure.axes[0]).size <= 128**2


def test_the_axes_count_positions_and_end_where_the_mask_ends():
    (axes,) = draw.mask(mask.causal(), 300, 1000).axes

    assert axes.get_xlim() == (-0.5, 999.5)
    assert axes.get_ylim() == (299.5, -0.5)
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("key", "query")


def test_start_moves_the_queries():
    last, first = (levels(draw.mask(mask.causal(), 2, 6, start=start).axes[0]) for start in (None, 0))

    assert last.tolist() == [[2, 2, 2, 2, 2, 0], [2, 2, 2, 2, 2, 2]]
    assert first.tolist() == [[2, 0, 0, 0, 0, 0], [2, 2, 0, 0, 0, 0]]


def test_a_mask_that_tells_heads_apart_gets_a_panel_for_each():
    steps = torch.tensor([1, 2, 3])

    figure = draw.mask(lambda b, h, i, j: (i - j) % steps[h] == 0, 6, heads=3)

    shown = [axes for axes in figure.axes if axes.get_visible()]
    assert [axes.get_title() for axes in shown] == ["head 0", "head 1", "head 2"]
    assert [(levels(axes) == 2).sum() for axes in shown] == [36, 18, 12]


def test_a_mask_that_tells_batch_elements_and_heads_apart_gets_a_grid_of_panels():
    chosen = mask.padding([2, 5]) & mask.where(lambda b, h, i, j: (h == 0) | (j <= i))

    for length in (5, 200):
        figure = draw.mask(chosen, length, batch=2, heads=2)
        titles = [axes.get_title() for axes in figure.axes]
        assert titles == [f"batch element {b}, head {h}" for b in (0, 1) for h in (0, 1)]


def test_panels_that_are_not_needed_are_left_out():
    figure = draw.mask(mask.padding([1, 2, 3, 4, 5]), 5, batch=5)

    assert sum(axes.get_visible() for axes in figure.axes) == 5


def test_a_mask_that_is_the_same_for_all_heads_gets_one_panel():
    assert len(draw.mask(mask.causal(), 6, batch=3, heads=40).axes) == 1


def test_a_boolean_tensor_can_be_drawn():
    seen = torch.rand(7, 9) < 0.5

    assert (levels(draw.mask(seen, 7, 9).axes[0]) == 2 * seen.numpy()).all()


def test_a_region_the_bounds_cannot_decide_counts_as_partial():
    # the remainder of a product is beyond interval arithmetic, though nothing is ever seen here
    undecided = mask.where(lambda b, h, i, j: (i * j * 2) % 2 == 1)

    cells = levels(draw.mask(undecided, 1000).axes[0])

    assert (cells == 1).any() and not (cells == 2).any()


def test_a_long_formula_is_broken_or_cut():
    chosen = mask.bigbird()

    lines = draw.mask(chosen, 2048).get_suptitle().split("\n")

    assert 1 < len(lines) <= 3
    assert draw.mask(chosen, 2048, title="mine").get_suptitle() == "mine"


def test_no_queries_are_refused():
    with pytest.raises(SpecError, match="at least 1 query and 1 key to be drawn; got n_q=0, n_k=5"):
        draw.mask(mask.causal(), 0, 5)


def test_too_many_panels_are_refused():
    with pytest.raises(SpecError, match=r"at most 16 panels; got 5 x 4\. Draw fewer batch elements or heads"):
        draw.mask(lambda b, h, i, j: h < j, 6, heads=17)
