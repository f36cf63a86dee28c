"""Plots of masks draw the visible pairs of the mask."""

import numpy as np
import pytest
import torch
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from regard import mask, plot
from regard.errors import ArgumentError
from regard.plot.style import HIDDEN_COLOR, PARTIAL_COLOR, VISIBLE_COLOR


def levels(axes):
    """Return the levels of a panel's cells from their colors: 0 hidden, 1 partial, 2 visible."""
    (image,) = axes.get_images()
    pixels = np.asarray(image.get_array())
    colors = (
        (255 * np.array([to_rgb(c) for c in (HIDDEN_COLOR, PARTIAL_COLOR, VISIBLE_COLOR)])).round().astype(np.uint8)
    )
    return (pixels[..., None, :] == colors).all(-1).argmax(-1)


def legend(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_small_masks_are_drawn_position_by_position():
    pattern = mask.causal() & mask.sliding_window(3)

    figure = plot.mask(pattern, 9, 12)

    assert isinstance(figure, Figure)
    assert (levels(figure.axes[0]) == 2 * pattern.to_dense(9, 12)[0, 0].numpy()).all()
    assert legend(figure) == ["visible (27)", "hidden (81)"]
    assert figure.get_suptitle() == "j <= p and p - 3 < j and j < p + 3"


def test_large_masks_are_drawn_by_regions():
    pattern = mask.causal() & mask.sliding_window(100)
    size, length = 4, 500

    figure = plot.mask(pattern, length)

    cells = levels(figure.axes[0])
    visible = np.zeros((512, 512))
    visible[:length, :length] = pattern.to_dense(length)[0, 0]
    inside = np.zeros((512, 512))
    inside[:length, :length] = 1
    count, area = (x.reshape(128, size, 128, size).sum((1, 3))[:125, :125] for x in (visible, inside))
    assert cells.shape == (125, 125)
    assert (cells == np.where(count == 0, 0, np.where(count == area, 2, 1))).all()
    assert figure.legends[0].get_title().get_text() == "regions of 4 x 4 positions"


def test_masks_of_ten_million_positions_are_drawn_without_visiting_them():
    figure = plot.mask(mask.causal() & mask.sliding_window(1_000_000), 10_000_000)

    assert levels(figure.axes[0]).size <= 128**2


def test_axes_count_positions_up_to_the_lengths():
    (axes,) = plot.mask(mask.causal(), 300, 1000).axes

    assert axes.get_xlim() == (-0.5, 999.5)
    assert axes.get_ylim() == (299.5, -0.5)
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("key", "query")


def test_query_offset_moves_the_queries():
    last, first = (levels(plot.mask(mask.causal(), 2, 6, query_offset=offset).axes[0]) for offset in (None, 0))

    assert last.tolist() == [[2, 2, 2, 2, 2, 0], [2, 2, 2, 2, 2, 2]]
    assert first.tolist() == [[2, 0, 0, 0, 0, 0], [2, 2, 0, 0, 0, 0]]


def test_masks_that_depend_on_the_head_have_a_panel_for_each_head():
    steps = torch.tensor([1, 2, 3])

    figure = plot.mask(lambda b, h, i, j: (i - j) % steps[h] == 0, 6, num_heads=3)

    panels = [axes for axes in figure.axes if axes.get_visible()]
    assert [axes.get_title() for axes in panels] == ["head 0", "head 1", "head 2"]
    assert [(levels(axes) == 2).sum() for axes in panels] == [36, 18, 12]


def test_masks_that_depend_on_batch_and_head_have_a_grid_of_panels():
    pattern = mask.padding([2, 5]) & mask.from_function(lambda b, h, i, j: (h == 0) | (j <= i))

    for length in (5, 200):
        figure = plot.mask(pattern, length, batch_size=2, num_heads=2)
        titles = [axes.get_title() for axes in figure.axes]
        assert titles == [f"batch element {b}, head {h}" for b in (0, 1) for h in (0, 1)]


def test_unused_panels_are_invisible():
    figure = plot.mask(mask.padding([1, 2, 3, 4, 5]), 5, batch_size=5)

    assert sum(axes.get_visible() for axes in figure.axes) == 5


def test_masks_that_are_equal_for_all_heads_have_one_panel():
    assert len(plot.mask(mask.causal(), 6, batch_size=3, num_heads=40).axes) == 1


def test_boolean_tensors_can_be_drawn():
    visible = torch.rand(7, 9) < 0.5

    assert (levels(plot.mask(visible, 7, 9).axes[0]) == 2 * visible.numpy()).all()


def test_regions_that_bounds_do_not_decide_are_partial():
    # interval arithmetic does not bound the remainder of a product; no pair is visible here
    undecided = mask.from_function(lambda b, h, i, j: (i * j * 2) % 2 == 1)

    cells = levels(plot.mask(undecided, 1000).axes[0])

    assert (cells == 1).any() and not (cells == 2).any()


def test_long_formulas_are_broken_or_cut():
    pattern = mask.bigbird()

    lines = plot.mask(pattern, 2048).get_suptitle().split("\n")

    assert 1 < len(lines) <= 3
    assert plot.mask(pattern, 2048, title="mine").get_suptitle() == "mine"


def test_masks_without_queries_raise():
    with pytest.raises(ArgumentError, match="n_q and n_k must be at least 1; got n_q=0, n_k=5"):
        plot.mask(mask.causal(), 0, 5)


def test_too_many_panels_raise():
    with pytest.raises(ArgumentError, match=r"at most 16 panels; got 5 x 4\. Plot fewer batch elements or heads"):
        plot.mask(lambda b, h, i, j: h < j, 6, num_heads=17)
