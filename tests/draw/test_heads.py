"""Pictures of heads, lines and overlays, and those that need no library: what is drawn is what was given."""

from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from regard import draw
from regard.errors import SpecError

ROWS = [{"layer": layer, "head": head, "entropy": layer + 0.25 * head} for layer in (0, 2) for head in range(4)]


def test_a_field_of_heads_shows_the_number_of_each() -> None:
    figure = draw.heads(ROWS, "entropy")
    axes = figure.axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["0", "2"]
    assert np.array_equal(axes.images[0].get_array(), [[0, 0.25, 0.5, 0.75], [2, 2.25, 2.5, 2.75]])
    assert [text.get_text() for text in axes.texts][:3] == ["0.00", "0.25", "0.50"]
    with pytest.raises(SpecError, match=r"one of the columns: layer, head, entropy; got 'x'"):
        draw.heads(ROWS, "x")


def test_small_maps_lie_where_their_heads_are() -> None:
    maps = np.zeros((2, 3, 4, 5))
    maps[1, 2, 3, 0] = 0.25
    drawn = draw.multiples(maps, scale=1.0).axes[0].images[0].get_array()
    assert drawn.shape == (2 * 4 + 1, 3 * 5 + 2)
    assert [tuple(place) for place in np.argwhere(np.nan_to_num(drawn) > 0)] == [(5 + 3, 12)]
    assert drawn[8, 12] == 1.0  # by its own brightest cell
    with pytest.raises(SpecError, match=r"maps must be \(layers, heads, rows, columns\); got shape \(3, 3\)"):
        draw.multiples(np.zeros((3, 3)))


def test_a_line_is_as_dark_as_its_weight_and_small_ones_are_left_out() -> None:
    figure = draw.lines([[0.9, 0.1], [0.01, 0.99]], ["a", "b"], ["c", "d"], least=0.05)
    found = [(list(line.get_ydata()), line.get_alpha()) for line in figure.axes[0].lines]
    assert found == [([0, 0], 0.9), ([0, 1], 0.1), ([1, 1], 0.99)]
    assert [text.get_text() for text in figure.axes[0].texts] == ["a", "b", "c", "d"]
    with pytest.raises(SpecError, match=r"weights must be 2 x 2, as tokens are; got shape \(1, 2\)"):
        draw.lines([[1.0, 0.0]], ["a", "b"])
    with pytest.raises(SpecError, match=r"at most 80 tokens; got 81\. Draw a map"):
        draw.lines(np.eye(81), ["a"] * 81)


def test_an_overlay_has_the_image_below_and_the_weights_above() -> None:
    image, weights = np.linspace(0, 1, 12).reshape(3, 4), np.arange(12.0).reshape(3, 4)
    below, above = draw.overlay(image, weights).axes[0].images
    assert np.array_equal(below.get_array(), image)
    assert np.array_equal(above.get_array(), weights)
    with pytest.raises(SpecError, match=r"as large as the image, \(3, 4\); got shape \(4, 3\)"):
        draw.overlay(image, weights.T)


def test_svg_is_well_formed_and_tells_each_weight(tmp_path: Path) -> None:
    drawn = draw.svg_weights([[1.0, 0.0], [0.25, 0.75]], ["<a>", "b & c"])
    told = [title.text for title in ElementTree.fromstring(drawn).iter("{http://www.w3.org/2000/svg}title")]
    assert told == ["<a> → <a>: 1.0000", "<a> → b & c: 0.0000", "b & c → <a>: 0.2500", "b & c → b & c: 0.7500"]
    assert drawn._repr_svg_() == drawn
    drawn.save(tmp_path / "x.svg")
    assert (tmp_path / "x.svg").read_text(encoding="utf8") == drawn
    lines = ElementTree.fromstring(draw.svg_lines([[1.0, 0.0], [0.3, 0.7]], ["<", ">"]))
    assert len(list(lines.iter("{http://www.w3.org/2000/svg}line"))) == 3


def test_a_terminal_gets_shades_and_the_brightest_key() -> None:
    shown = draw.text_weights([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.0, 0.26, 0.74]], ["a", "long", "\n"])
    assert shown.splitlines() == ["   a █   1.00 a", "long ▒▒  0.50 a", "   ↵  ░▓ 0.74 ↵"]
    with pytest.raises(SpecError, match=r"weights must be 1 x 1"):
        draw.text_weights([[1.0, 0.0]], ["a"])


def test_curves_of_growth_tell_their_last_power() -> None:
    figure = draw.growth([64, 128, 256], {"a": [1.0, 2.0, 16.0], "b": [3.0, 3.0, 3.0]}, unit="bytes")
    axes = figure.axes[0]
    assert [list(line.get_ydata()) for line in axes.lines] == [[1.0, 2.0, 16.0], [3.0, 3.0, 3.0]]
    assert [text.get_text() for text in axes.texts] == ["a, n^3.0", "b, n^0.0"]
    assert axes.get_ylabel() == "bytes"
    with pytest.raises(SpecError, match=r"for each of 3 lengths; a has 2"):
        draw.growth([1, 2, 3], {"a": [1.0, 2.0]})
