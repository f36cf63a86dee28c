"""Charts: argument checks, shared colors, and the text for a terminal."""

import numpy as np
import pytest
from matplotlib.colors import to_hex

from regard.errors import ArgumentError
from regard.plot.chart_panels import ImagePanel, Panel, PointAnimation, Series, charts
from regard.plot.style import CURVE_COLORS
from regard.plot.terminal_charts import text_charts

PAIR = [
    Series("computed", [1, 10, 100], [1, 2, 3], "points", color_group="a"),
    Series("formula", [1, 10, 100], [1, 2, 3], color_group="a"),
    Series("wrong", [1, 10, 100], [3, 2, 1], "dashed"),
]


def test_curves_of_one_color_group_share_a_color() -> None:
    panel = Panel("t", "x", "y", [*PAIR, Series("more", [1], [1], color_group="a"), Series("own", [1], [1])])
    assert panel.color_indices == [0, 0, 1, 0, 2]
    colors = [to_hex(line.get_color()) for line in charts([panel]).axes[0].lines]
    assert colors == [CURVE_COLORS[n] for n in panel.color_indices]


def test_curves_without_a_color_group_have_different_colors() -> None:
    assert Panel("", "", "", [Series("", [1], [1]), Series("", [1], [2])]).color_indices == [0, 1]


def test_x_and_y_must_have_the_same_length() -> None:
    with pytest.raises(ArgumentError, match=r"x and y of 'curve' must have the same length; got \(3,\) and \(2,\)"):
        Series("curve", [1, 2, 3], [1, 2])


def test_an_image_must_be_a_matrix() -> None:
    with pytest.raises(ArgumentError, match=r"the image 'map' must be a matrix; got shape \(3,\)"):
        ImagePanel("map", "key", "query", [1, 2, 3])


def test_animations_need_a_time_for_each_moment() -> None:
    with pytest.raises(
        ArgumentError, match=r"\(moments, points, 2 or 3\) and times shape \(moments,\); got \(4, 5, 2\) and \(3,\)"
    ):
        PointAnimation("m", [0, 1, 2], np.zeros((4, 5, 2)))
    assert PointAnimation("m", range(4), np.zeros((4, 5, 3))).groups.tolist() == [0] * 5


def test_charts_need_a_panel() -> None:
    with pytest.raises(ArgumentError, match="at least one panel; got none"):
        charts([])


def test_two_panels_are_in_a_row_and_an_odd_first_panel_is_wide() -> None:
    panels = [Panel(f"p{n}", "x", "y", PAIR, log_x=True) for n in range(5)]
    figure = charts(panels, title="all")
    boxes = [axes.get_position() for axes in figure.axes]
    assert boxes[0].width > 1.8 * boxes[1].width
    assert boxes[0].y0 > boxes[1].y1 and boxes[1].y0 == boxes[2].y0 > boxes[3].y1
    assert boxes[1].x0 < boxes[2].x0
    rows = [round(axes.get_position().y0, 3) for axes in charts(panels[:4]).axes]
    assert rows[0] == rows[1] > rows[2] == rows[3]
    assert figure.axes[0].get_xscale() == "log" and figure.axes[0].get_yscale() == "linear"


def test_a_spread_is_drawn_as_a_band_around_the_curve() -> None:
    axes = charts([Panel("t", "x", "y", [Series("mean", [0, 1], [2, 3], spread=[0.5, 1])])]).axes[0]
    (band,) = axes.collections
    (vertices,) = [path.vertices for path in band.get_paths()]
    assert {(0, 1.5), (0, 2.5), (1, 2), (1, 4)} <= {(x, y) for x, y in vertices}
    assert to_hex(band.get_facecolor()[0]) == CURVE_COLORS[0]


def test_points_are_drawn_as_letters_on_their_line() -> None:
    lines = text_charts([Panel("Title", "x", "y", PAIR, log_x=True)], width=40, height=5).splitlines()
    assert lines[:2] == ["Title", "y"]
    assert lines[2].startswith("3 │") and lines[2].endswith("a")  # the highest point is the last
    assert lines[4].count("a") == 1  # the middle point is in the middle of a logarithmic axis
    assert lines[6].startswith("1 │a") and lines[6].endswith("B")  # the wrong curve ends below
    assert lines[8].split() == ["1", "100", "x"]
    assert lines[9:] == ["A points: computed; line: formula", "B dashed: wrong"]


def test_curves_are_drawn_at_their_values() -> None:
    rows = text_charts([Panel("", "", "", [Series("up", [0, 1], [0, 1])])], width=23, height=5).splitlines()[2:7]
    heights = [min(n for n, row in enumerate(rows) if len(row) > column and row[column] > " ") for column in (5, 21)]
    assert heights == [4, 0]


@pytest.mark.parametrize("width", [30, 79])
def test_no_line_is_wider_than_width(width: int) -> None:
    label = "a label that goes on and on, and is broken where the line ends"
    panel = Panel("t", "x", "y", [Series(label, np.arange(1, 50), 1e-7 * np.arange(1, 50) ** 9.0)], log_y=True)
    image = ImagePanel("i", "key", "query", np.random.default_rng(0).normal(size=(50, 300)), signed=True)
    lines = text_charts([panel, image], width=width).splitlines()
    assert max(len(line) for line in lines) <= width
    assert len(lines) < 60


def test_values_that_cannot_be_drawn_are_skipped() -> None:
    curves = [Series("a", [0, 1, 2], [np.nan, 5, 7], "points"), Series("b", [1, 2], [-1, 0])]
    text = text_charts([Panel("t", "x", "y", curves, log_y=True)], width=30, height=4)
    assert text.count("a", 5) >= 2 and "7 │" in text and "5 │" in text
    empty = text_charts([Panel("t", "x", "y", [Series("a", [], [])])], width=30, height=4)
    assert "A line: a" in empty


def test_constant_curves_are_drawn_in_the_middle() -> None:
    text = text_charts([Panel("t", "x", "y", [Series("a", [0, 1], [2, 2])])], width=30, height=5)
    assert "2.5 │" in text and "1.5 │" in text
    assert "⠒⠒⠒" in text or "⠤⠤⠤" in text


def test_images_have_shades_and_signed_images_both_signs() -> None:
    text = text_charts([ImagePanel("i", "key", "query", [[0, 1], [0.5, 0]])]).splitlines()
    assert text[1:3] == ["  ██", "▒▒"]
    signed = text_charts([ImagePanel("i", "key", "query", [[-1, 1], [0, np.nan]], signed=True)]).splitlines()
    assert signed[1:3] == ["##██", "  ??"]


def test_pooled_images_keep_the_largest_magnitude() -> None:
    values = np.zeros((100, 300))
    values[57, 123] = -4.0
    text = text_charts([ImagePanel("i", "key", "query", values, signed=True)])
    assert text.count("#") == 1 + 1  # one cell, and the legend
    assert "largest magnitude 4" in text
