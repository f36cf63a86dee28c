"""Charts: what is refused, which curves share a colour, and what a terminal shows."""

import numpy as np
import pytest
from matplotlib.colors import to_hex

from regard.draw.charts import COLOURS, Image, Motion, Panel, Series, charts
from regard.draw.text_charts import text_charts
from regard.errors import SpecError

PAIR = [
    Series("found", [1, 10, 100], [1, 2, 3], "points", of="a"),
    Series("formula", [1, 10, 100], [1, 2, 3], of="a"),
    Series("wrong", [1, 10, 100], [3, 2, 1], "dashed"),
]


def test_curves_of_one_thing_share_a_colour_and_others_do_not() -> None:
    panel = Panel("t", "x", "y", [*PAIR, Series("more", [1], [1], of="a"), Series("own", [1], [1])])
    assert panel.colours == [0, 0, 1, 0, 2]
    drawn = [to_hex(line.get_color()) for line in charts([panel]).axes[0].lines]
    assert drawn == [COLOURS[n] for n in panel.colours]


def test_a_curve_that_is_of_nothing_has_a_colour_even_if_it_is_called_like_another() -> None:
    assert Panel("", "", "", [Series("", [1], [1]), Series("", [1], [2])]).colours == [0, 1]


def test_lists_of_two_lengths_are_refused() -> None:
    with pytest.raises(SpecError, match=r"x and y of 'found' must be lists of one length; got \(3,\) and \(2,\)"):
        Series("found", [1, 2, 3], [1, 2])


def test_an_image_must_be_a_matrix() -> None:
    with pytest.raises(SpecError, match=r"the image 'map' must be a matrix; got shape \(3,\)"):
        Image("map", "key", "query", [1, 2, 3])


def test_motion_must_have_a_time_for_each_moment() -> None:
    with pytest.raises(SpecError, match=r"\(moments, points, 2 or 3\).*got \(4, 5, 2\) and \(3,\)"):
        Motion("m", [0, 1, 2], np.zeros((4, 5, 2)))
    assert Motion("m", range(4), np.zeros((4, 5, 3))).groups.tolist() == [0] * 5


def test_charts_of_nothing_are_refused() -> None:
    with pytest.raises(SpecError, match="at least one panel; got none"):
        charts([])


def test_panels_that_do_not_fill_their_rows_leave_empty_places_unseen() -> None:
    panels = [Panel(f"p{n}", "x", "y", PAIR, log_x=True) for n in range(5)]
    figure = charts(panels, title="all")
    assert [axes.get_visible() for axes in figure.axes] == [True] * 5 + [False]
    assert [axes.get_visible() for axes in charts(panels[:4]).axes] == [True] * 4  # two by two
    assert figure.axes[0].get_xscale() == "log" and figure.axes[0].get_yscale() == "linear"


def test_a_terminal_shows_points_as_letters_on_the_dots_of_their_line() -> None:
    lines = text_charts([Panel("Title", "x", "y", PAIR, log_x=True)], width=40, height=5).splitlines()
    assert lines[:2] == ["Title", "y"]
    assert lines[2].startswith("3 │") and lines[2].endswith("a")  # the highest point is the last
    assert lines[4].count("a") == 1  # the middle one in the middle, since the axis is that of logarithms
    assert lines[6].startswith("1 │a") and lines[6].endswith("B")  # the wrong curve ends below
    assert lines[8].split() == ["1", "100", "x"]
    assert lines[9:] == ["A points: found; line: formula", "B dashed: wrong"]


def test_a_curve_is_drawn_where_its_numbers_are() -> None:
    rows = text_charts([Panel("", "", "", [Series("up", [0, 1], [0, 1])])], width=23, height=5).splitlines()[2:7]
    heights = [
        min(place for place, row in enumerate(rows) if len(row) > column and row[column] > " ") for column in (5, 21)
    ]
    assert heights == [4, 0]


@pytest.mark.parametrize("width", [30, 79])
def test_no_line_is_wider_than_it_may_be(width: int) -> None:
    label = "a label that goes on and on, and is broken where the line ends"
    panel = Panel("t", "x", "y", [Series(label, np.arange(1, 50), 1e-7 * np.arange(1, 50) ** 9.0)], log_y=True)
    image = Image("i", "key", "query", np.random.default_rng(0).normal(size=(50, 300)), signed=True)
    lines = text_charts([panel, image], width=width).splitlines()
    assert max(len(line) for line in lines) <= width
    assert len(lines) < 60


def test_numbers_that_have_no_place_are_left_out() -> None:
    curves = [Series("a", [0, 1, 2], [np.nan, 5, 7], "points"), Series("b", [1, 2], [-1, 0])]
    shown = text_charts([Panel("t", "x", "y", curves, log_y=True)], width=30, height=4)
    assert shown.count("a", 5) >= 2 and "7 │" in shown and "5 │" in shown
    empty = text_charts([Panel("t", "x", "y", [Series("a", [], [])])], width=30, height=4)
    assert "A line: a" in empty


def test_a_level_line_has_a_place() -> None:
    shown = text_charts([Panel("t", "x", "y", [Series("a", [0, 1], [2, 2])])], width=30, height=5)
    assert "2.5 │" in shown and "1.5 │" in shown
    assert "⠒⠒⠒" in shown or "⠤⠤⠤" in shown


def test_an_image_is_dark_where_it_is_large_and_signed_where_it_says() -> None:
    shown = text_charts([Image("i", "key", "query", [[0, 1], [0.5, 0]])]).splitlines()
    assert shown[1:3] == ["  ██", "▒▒"]
    signed = text_charts([Image("i", "key", "query", [[-1, 1], [0, np.nan]], signed=True)]).splitlines()
    assert signed[1:3] == ["##██", "  ??"]


def test_a_large_image_keeps_what_is_largest() -> None:
    values = np.zeros((100, 300))
    values[57, 123] = -4.0
    shown = text_charts([Image("i", "key", "query", values, signed=True)])
    assert shown.count("#") == 1 + 1  # one cell, and the line that explains the letters
    assert "the largest 4" in shown
