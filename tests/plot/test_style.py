"""All figures have one text size and the colors of the palette, which are those of the explorer."""

import itertools
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.colors import to_hex, to_rgb
from matplotlib.text import Text

from regard import mask, plot
from regard.plot.direct_labels import CurveLabel, place_labels
from regard.plot.style import (
    CURVE_COLORS,
    TEXT_SIZE_PT,
    apply_style,
    diverging_colormap,
    new_figure,
    sequential_colormap,
    text_width,
    wrap_text,
)
from tests.plot.test_figure import CURVES, FIGURES, IMAGE

FRONTEND = Path(__file__).parents[2] / "src" / "regard" / "explorer" / "frontend"
# Machado, Oliveira and Fernandes, 2009: linear red, green and blue of readers without one kind of cones
COLOR_BLINDNESS = {
    "none": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}


@pytest.mark.parametrize("name", [name for name in FIGURES if not name.startswith("many")])
def test_axes_are_labeled_and_all_texts_have_the_one_size(name: str) -> None:
    figure = FIGURES[name]()
    figure.draw_without_rendering()

    for axes in figure.axes:
        if axes.get_visible() and axes.axison and axes.get_label() != "<colorbar>" and len(axes.get_yticks()):
            assert axes.get_xlabel() and axes.get_ylabel()
    texts = [text for text in figure.findobj(Text) if text.get_text().strip() and text.get_visible()]
    assert {text.get_fontsize() for text in texts} == {TEXT_SIZE_PT}


def test_lines_have_colors_of_the_palette() -> None:
    figures = [FIGURES[name]() for name in ("charts", "growth", "comparison", "lines")]
    lines = [line for figure in figures for axes in figure.axes for line in axes.lines]
    assert len(lines) > 10
    assert {to_hex(line.get_color()) for line in lines} <= set(CURVE_COLORS)


def test_images_have_the_colormaps_of_the_style() -> None:
    assert plot.charts([IMAGE]).axes[0].images[0].get_cmap() == diverging_colormap()
    assert plot.heads([{"layer": 0, "head": 0, "x": 1.0}], "x").axes[0].images[0].get_cmap() == sequential_colormap()
    assert plot.head_maps(np.ones((1, 1, 2, 2))).axes[0].images[0].get_cmap() == sequential_colormap()


def test_curves_have_the_colors_of_the_explorer() -> None:
    script = (FRONTEND / "lib" / "color" / "palettes.js").read_text(encoding="utf8")
    (colors,) = re.findall(r"light: (\[\"#.*\])", script)
    assert re.findall(r"#\w{6}", colors) == list(CURVE_COLORS)


def test_colormaps_are_those_of_the_explorer() -> None:
    # computed by colorRamp of palettes.js at 0, 64, 128, 200 and 255
    ink = [(246, 250, 255), (130, 193, 255), (69, 136, 255), (43, 84, 166), (30, 50, 87)]
    difference = [(0, 78, 186), (117, 167, 231), (251, 249, 248), (212, 129, 80), (160, 26, 0)]
    for colormap, expected in ((sequential_colormap(), ink), (diverging_colormap(), difference)):
        colors = [tuple(round(255 * x) for x in colormap(n)[:3]) for n in (0, 64, 128, 200, 255)]
        assert colors == expected


@pytest.mark.parametrize("kind", COLOR_BLINDNESS)
def test_the_first_four_colors_are_distinct_for_color_blind_readers(kind: str) -> None:
    colors = [_oklab(np.array(COLOR_BLINDNESS[kind]) @ _linear(color)) for color in CURVE_COLORS[:4]]
    assert min(np.linalg.norm(a - b) for a, b in itertools.combinations(colors, 2)) > 0.1


def test_curve_colors_can_be_read_as_text() -> None:
    luminances = [_linear(color) @ [0.2126, 0.7152, 0.0722] for color in CURVE_COLORS]
    assert min(1.05 / (luminance + 0.05) for luminance in luminances) > 3.5


def _linear(color: str) -> np.ndarray:
    encoded = np.array(to_rgb(color))
    return np.where(encoded <= 0.04045, encoded / 12.92, ((encoded + 0.055) / 1.055) ** 2.4)


def _oklab(linear: np.ndarray) -> np.ndarray:
    cones = [[0.4122214708, 0.5363325363, 0.0514459929], [0.2119034982, 0.6806995451, 0.1073969566],
             [0.0883024619, 0.2817188376, 0.6299787005]]  # fmt: skip
    lab = [[0.2104542553, 0.793617785, -0.0040720468], [1.9779984951, -2.428592205, 0.4505937099],
           [0.0259040371, 0.7827717662, -0.808675766]]  # fmt: skip
    return np.array(lab) @ np.cbrt(np.array(cones) @ np.clip(linear, 0, 1))


def test_labels_are_inside_the_panel_and_cover_no_curve() -> None:
    figure = plot.charts([CURVES])
    figure.draw_without_rendering()
    axes = figure.axes[0]
    assert [text.get_text() for text in axes.texts] == ["● computed\n— x squared", "root", "logarithm"]
    for text in axes.texts:
        box = text.get_window_extent()
        assert axes.bbox.x0 <= box.x0 and box.x1 <= axes.bbox.x1 and axes.bbox.y0 <= box.y0 and box.y1 <= axes.bbox.y1
        for line in axes.lines:
            assert not any(box.contains(x, y) for x, y in axes.transData.transform(line.get_xydata()))


def test_a_label_is_nearest_to_its_own_curve() -> None:
    figure = new_figure(4, 3)
    axes = figure.subplots()
    curves = [np.array([[0.0, y], [1.0, y]]) for y in (0.0, 1.0, 2.0)]
    for curve in curves:
        axes.plot(*curve.T)
    apply_style(figure).draw_without_rendering()
    place_labels(axes, [CurveLabel("middle", "#000000", curves[1])], curves)
    box = axes.texts[0].get_window_extent().transformed(axes.transData.inverted())
    assert abs((box.y0 + box.y1) / 2 - 1) < 0.5


def test_end_labels_do_not_overlap_and_keep_their_order() -> None:
    figure = plot.growth(
        [1, 2], {name: [1.0, value] for name, value in (("a", 4.0), ("b", 4.0), ("c", 3.99), ("d", 90))}
    )
    figure.draw_without_rendering()
    boxes = [text.get_window_extent() for text in figure.axes[0].texts]
    by_height = sorted(boxes, key=lambda box: box.y0)
    assert by_height == [boxes[2], boxes[0], boxes[1], boxes[3]]
    assert all(below.y1 <= above.y0 for below, above in itertools.pairwise(by_height))


def test_text_is_wrapped_to_a_width() -> None:
    lines = wrap_text("Five words in narrow lines", 1.0).split("\n")
    assert " ".join(lines) == "Five words in narrow lines"
    assert len(lines) > 1 and all(text_width(line) <= 1.0 for line in lines)


def test_numbers_on_dark_cells_are_light() -> None:
    axes = plot.weights(torch.tensor([[1.0, 0.05]])).axes[0]
    assert [to_hex(text.get_color()) for text in axes.texts] == ["#ffffff", "#1b1d22"]


def test_masks_have_no_other_colors() -> None:
    (image,) = plot.mask(mask.causal(), 4).axes[0].images
    assert len(np.unique(np.asarray(image.get_array()).reshape(-1, 3), axis=0)) == 2
