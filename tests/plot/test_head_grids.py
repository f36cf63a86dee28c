"""Plots of heads, lines, overlays, SVG, text and growth curves draw the given values."""

from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from regard import plot
from regard.errors import ArgumentError

ROWS = [{"layer": layer, "head": head, "entropy": layer + 0.25 * head} for layer in (0, 2) for head in range(4)]


def test_head_grids_have_the_value_of_each_head() -> None:
    figure = plot.heads(ROWS, "entropy")
    axes = figure.axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["0", "2"]
    assert np.array_equal(axes.images[0].get_array(), [[0, 0.25, 0.5, 0.75], [2, 2.25, 2.5, 2.75]])
    assert [label.get_text() for label in axes.texts][:3] == ["0.00", "0.25", "0.50"]
    with pytest.raises(ArgumentError, match=r"one of the columns: layer, head, entropy; got 'x'"):
        plot.heads(ROWS, "x")


def test_head_maps_are_at_the_positions_of_their_heads() -> None:
    maps = np.zeros((2, 3, 4, 5))
    maps[1, 2, 3, 0] = 0.25
    image = plot.head_maps(maps, gamma=1.0).axes[0].images[0].get_array()
    assert image.shape == (2 * 4 + 1, 3 * 5 + 2)
    assert [tuple(index) for index in np.argwhere(np.nan_to_num(image) > 0)] == [(5 + 3, 12)]
    assert image[8, 12] == 1.0  # relative to its largest value
    with pytest.raises(
        ArgumentError, match=r"maps must have shape \(layers, heads, rows, columns\); got shape \(3, 3\)"
    ):
        plot.head_maps(np.zeros((3, 3)))


def test_the_opacity_of_a_line_is_its_weight_and_small_weights_are_skipped() -> None:
    figure = plot.token_lines([[0.9, 0.1], [0.01, 0.99]], ["a", "b"], ["c", "d"], min_weight=0.05)
    lines = [(list(line.get_ydata()), line.get_alpha()) for line in figure.axes[0].lines]
    assert lines == [([0, 0], 0.9), ([0, 1], 0.1), ([1, 1], 0.99)]
    assert [text.get_text() for text in figure.axes[0].texts] == ["a", "b", "c", "d", "query", "key"]
    with pytest.raises(ArgumentError, match=r"weights must have shape \(2, 2\), like the tokens; got shape \(1, 2\)"):
        plot.token_lines([[1.0, 0.0]], ["a", "b"])
    with pytest.raises(ArgumentError, match=r"at most 80 tokens; got 81\. Use plot\.weights"):
        plot.token_lines(np.eye(81), ["a"] * 81)


def test_overlays_draw_the_weights_over_the_image() -> None:
    image, weights = np.linspace(0, 1, 12).reshape(3, 4), np.arange(12.0).reshape(3, 4)
    below, above = plot.overlay(image, weights).axes[0].images
    assert np.array_equal(below.get_array(), image)
    assert np.array_equal(above.get_array(), weights)
    with pytest.raises(ArgumentError, match=r"the shape of the image, \(3, 4\); got shape \(4, 3\)"):
        plot.overlay(image, weights.T)


def test_svg_is_well_formed_and_has_each_weight_as_a_tooltip(tmp_path: Path) -> None:
    svg = plot.svg_weights([[1.0, 0.0], [0.25, 0.75]], ["<a>", "b & c"])
    tooltips = [title.text for title in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}title")]
    assert tooltips == ["<a> → <a>: 1.0000", "<a> → b & c: 0.0000", "b & c → <a>: 0.2500", "b & c → b & c: 0.7500"]
    assert svg._repr_svg_() == svg
    svg.save(tmp_path / "x.svg")
    assert (tmp_path / "x.svg").read_text(encoding="utf8") == svg
    lines = ElementTree.fromstring(plot.svg_token_lines([[1.0, 0.0], [0.3, 0.7]], ["<", ">"]))
    assert len(list(lines.iter("{http://www.w3.org/2000/svg}line"))) == 3


def test_text_weights_have_shades_and_the_largest_weight() -> None:
    text = plot.text_weights([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.0, 0.26, 0.74]], ["a", "long", "\n"])
    assert text.splitlines() == ["   a █   1.00 a", "long ▒▒  0.50 a", "   ↵  ░▓ 0.74 ↵"]
    with pytest.raises(ArgumentError, match=r"weights must have shape \(1, 1\)"):
        plot.text_weights([[1.0, 0.0]], ["a"])


def test_growth_curves_are_labeled_with_their_last_exponent() -> None:
    figure = plot.growth([64, 128, 256], {"a": [1.0, 2.0, 16.0], "b": [3.0, 3.0, 3.0]}, unit="bytes")
    axes = figure.axes[0]
    assert [list(line.get_ydata()) for line in axes.lines] == [[1.0, 2.0, 16.0], [3.0, 3.0, 3.0]]
    assert [text.get_text() for text in axes.texts] == ["a, n^3.0", "b, n^0.0"]
    assert axes.get_ylabel() == "bytes"
    with pytest.raises(ArgumentError, match=r"for each of 3 lengths; a has 2"):
        plot.growth([1, 2, 3], {"a": [1.0, 2.0]})
