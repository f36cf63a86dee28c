"""Charts as text for a terminal: curves as braille dots, points as the letter of their curve.

>>> from regard.plot.chart_panels import Panel, Series
>>> line = Series("twice", [0, 1, 2, 3], [0, 2, 4, 6])
>>> print(text_charts([Panel("Doubling", "x", "2x", [line])], width=24, height=4))
Doubling
2x
6 │                ⣀⡠⠔⠒A
  │          ⢀⡠⠤⠒⠊⠉
  │     ⣀⡠⠤⠒⠊⠁
0 │⣀⠤⠔⠊⠉
  └─────────────────────
   0                3  x
A line: twice
"""

from collections.abc import Sequence
from textwrap import wrap

import numpy as np
from numpy.typing import NDArray

from regard import checks
from regard.argument_types import check_types
from regard.plot.chart_panels import ImagePanel, Panel, Series

SERIES_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
BRAILLE_BLANK = 0x2800  # the character without dots
BRAILLE_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # of a braille character, by row and column
POSITIVE_SHADES, NEGATIVE_SHADES = " ░▒▓█", " .:=#"  # shades above and below 0
MAX_CHART_CHARACTERS = 10_000  # per line, or lines
MAX_IMAGE_CHARACTERS = 64, 20  # columns and lines

Numbers = NDArray[np.float64]
Range = tuple[float, float]


@check_types
def text_charts(panels: Sequence[Panel | ImagePanel], *, width: int = 79, height: int = 12) -> str:
    """Return all panels as text, one below another.

    `width` is the maximum number of characters per line (default 79), `height` the number of lines of the curves
    (default 12).

    >>> print(text_charts([ImagePanel("Identity", "key", "query", [[1.0, 0.0], [0.0, 1.0]])]).splitlines()[0])
    Identity
    """
    checks.integer(width, "width", at_least=20, at_most=MAX_CHART_CHARACTERS)
    checks.integer(height, "height", at_least=2, at_most=MAX_CHART_CHARACTERS)
    texts = [
        _image_panel_text(panel, width) if isinstance(panel, ImagePanel) else _curve_panel_text(panel, width, height)
        for panel in panels
    ]
    return "\n\n".join(texts)


def _curve_panel_text(panel: Panel, width: int, height: int) -> str:
    positions = [_axis_positions(panel, series) for series in panel.series]
    x_range, y_range = (_range([axes[n] for axes in positions]) for n in range(2))
    limits = [_format_axis_value(value, panel.log_y) for value in reversed(y_range)]
    label_width = max(len(limit) for limit in limits)
    columns = width - label_width - 2
    canvas = _canvas_lines(panel, positions, x_range, y_range, (height, columns))
    labels = [limits[0], *[""] * (height - 2), limits[1]]
    rows = [f"{label.rjust(label_width)} │{line}" for label, line in zip(labels, canvas, strict=True)]
    axis = " " * label_width + " └" + "─" * columns
    x_labels = _x_axis_line(panel, x_range, label_width, columns)
    return "\n".join([panel.title, panel.ylabel, *rows, axis, x_labels, *_legend(panel, width)])


def _axis_positions(panel: Panel, series: Series) -> tuple[Numbers, Numbers]:
    """Return the coordinates of a curve on linear axes; NaN for values that a logarithmic axis cannot show."""
    with np.errstate(divide="ignore", invalid="ignore"):
        x = np.log10(series.x) if panel.log_x else series.x
        y = np.log10(series.y) if panel.log_y else series.y
    is_finite = np.isfinite(x) & np.isfinite(y)
    return np.where(is_finite, x, np.nan), np.where(is_finite, y, np.nan)


def _range(values: Sequence[Numbers]) -> Range:
    finite = np.concatenate([array[np.isfinite(array)] for array in values]) if values else np.zeros(0)
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _canvas_lines(
    panel: Panel, positions: Sequence[tuple[Numbers, Numbers]], x_range: Range, y_range: Range, size: tuple[int, int]
) -> list[str]:
    rows, columns = size
    dots = np.zeros((4 * rows, 2 * columns), dtype=bool)
    marks: dict[tuple[int, int], str] = {}
    for series, color_index, (x, y) in zip(panel.series, panel.color_indices, positions, strict=True):
        dot_columns = _axis_fractions(x, x_range) * (2 * columns - 1)
        dot_rows = (1 - _axis_fractions(y, y_range)) * (4 * rows - 1)
        points = [(float(a), float(b)) for a, b in zip(dot_columns, dot_rows, strict=True) if a == a]
        letter = SERIES_LETTERS[color_index % len(SERIES_LETTERS)]
        if series.style == "points":
            marks.update({(round(b) // 4, round(a) // 2): letter.lower() for a, b in points})
        elif points:
            _draw_dots(dots, points, is_dashed=series.style == "dashed")
            marks.setdefault((round(points[-1][1]) // 4, round(points[-1][0]) // 2), letter)
    bits = np.array(BRAILLE_DOTS)
    cells = (dots.reshape(rows, 4, columns, 2) * bits[None, :, None, :]).sum((1, 3))
    characters = [[" " if cell == 0 else chr(BRAILLE_BLANK + cell) for cell in row] for row in cells]
    for (row, column), mark in marks.items():
        characters[row][column] = mark
    return ["".join(row).rstrip() for row in characters]


def _axis_fractions(values: Numbers, ends: Range) -> Numbers:
    return (values - ends[0]) / (ends[1] - ends[0])


def _draw_dots(dots: NDArray[np.bool_], points: Sequence[tuple[float, float]], *, is_dashed: bool) -> None:
    """Draw straight lines from point to point; a dashed line leaves out two of five dots."""
    num_dots = 0
    for (a, b), (c, d) in zip(points, [*points[1:], points[-1]], strict=True):
        count = max(1, round(max(abs(c - a), abs(d - b))))
        for step in range(count):
            num_dots += 1
            if not (is_dashed and num_dots % 5 in (3, 4)):
                dots[round(b + (d - b) * step / count), round(a + (c - a) * step / count)] = True


def _format_axis_value(value: float, log: bool) -> str:
    return f"{10**value if log else value:.4g}"


def _x_axis_line(panel: Panel, x_range: Range, label_width: int, columns: int) -> str:
    left, right = (_format_axis_value(value, panel.log_x) for value in x_range)
    name = f"  {panel.xlabel}"
    gap = columns - len(left) - len(right) - len(name)
    return " " * (label_width + 2) + left + " " * max(1, gap) + right + name


def _legend(panel: Panel, width: int) -> list[str]:
    lines = []
    for color_index in dict.fromkeys(panel.color_indices):
        labels = [
            f"{series.style}: {series.label}"
            for series, index in zip(panel.series, panel.color_indices, strict=True)
            if index == color_index and series.label
        ]
        lines += wrap(
            f"{SERIES_LETTERS[color_index % len(SERIES_LETTERS)]} {'; '.join(labels)}", width, subsequent_indent="  "
        )
    return lines


def _image_panel_text(image: ImagePanel, width: int) -> str:
    values = _pool_by_magnitude(image.values, (min(width, MAX_IMAGE_CHARACTERS[0]), MAX_IMAGE_CHARACTERS[1]))
    low, high = (float(np.nanmin(values)), float(np.nanmax(values))) if np.isfinite(values).any() else (0.0, 0.0)
    max_magnitude = max(abs(low), abs(high)) or 1.0
    cell_width = 2 if 2 * values.shape[1] <= width else 1
    rows = [
        "".join(_shade(value, image.signed, low, high, max_magnitude) * cell_width for value in row) for row in values
    ]
    if image.signed:
        scale = f"{NEGATIVE_SHADES[1:]} below 0, {POSITIVE_SHADES[1:]} above 0; largest magnitude {max_magnitude:.3g}"
    else:
        scale = f"from {low:.3g} to {high:.3g}: '{POSITIVE_SHADES}'"
    legend = f"down: {image.ylabel}; across: {image.xlabel}; {scale}"
    return "\n".join([image.title, *(row.rstrip() for row in rows), *wrap(legend, width)])


def _pool_by_magnitude(values: Numbers, size: tuple[int, int]) -> Numbers:
    """Reduce a matrix to at most `size` = (columns, rows): the value of largest magnitude of each cell."""
    for axis, limit in ((1, size[0]), (0, size[1])):
        step = -(-values.shape[axis] // limit)
        if step > 1:
            parts = np.array_split(values, range(step, values.shape[axis], step), axis)
            values = np.stack([_largest_magnitude(part, axis) for part in parts], axis)
    return values


def _largest_magnitude(part: Numbers, axis: int) -> Numbers:
    indices = np.expand_dims(np.abs(part).argmax(axis), axis)
    return np.take_along_axis(part, indices, axis).squeeze(axis)


def _shade(value: float, signed: bool, low: float, high: float, max_magnitude: float) -> str:
    if not np.isfinite(value):
        return "?"
    if signed:
        return (POSITIVE_SHADES if value > 0 else NEGATIVE_SHADES)[min(4, round(4 * abs(value) / max_magnitude))]
    return POSITIVE_SHADES[min(4, round(4 * (value - low) / ((high - low) or 1.0)))]
