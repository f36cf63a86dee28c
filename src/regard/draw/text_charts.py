"""Charts as letters, for a terminal: curves in braille dots, points as the letter of what they are of.

>>> from regard.draw.charts import Panel, Series
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
from regard.draw.charts import Image, Panel, Series

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
BRAILLE = 0x2800  # the letter without dots
DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # of a braille letter, by row and column
MORE, LESS = " ░▒▓█", " .:=#"  # shades above and below 0
MAX_LETTERS = 10_000  # across or down
LARGEST_IMAGE = 64, 20  # letters across and down

Numbers = NDArray[np.float64]
Range = tuple[float, float]


@check_types
def text_charts(panels: Sequence[Panel | Image], *, width: int = 79, height: int = 12) -> str:
    """All panels below each other, none wider than `width` letters; `height` is the lines that curves have."""
    checks.whole_number(width, "width", at_least=20, at_most=MAX_LETTERS)
    checks.whole_number(height, "height", at_least=2, at_most=MAX_LETTERS)
    drawn = [_image(each, width) if isinstance(each, Image) else _curves(each, width, height) for each in panels]
    return "\n\n".join(drawn)


def _curves(panel: Panel, width: int, height: int) -> str:
    placed = [_scaled(panel, series) for series in panel.series]
    across, up = (_range([axis[n] for axis in placed]) for n in range(2))
    ends = [_number(value, panel.log_y) for value in reversed(up)]
    side = max(len(end) for end in ends)
    columns = width - side - 2
    letters = _letters(panel, placed, across, up, (height, columns))
    marks = [ends[0], *[""] * (height - 2), ends[1]]
    rows = [f"{mark.rjust(side)} │{line}" for mark, line in zip(marks, letters, strict=True)]
    foot = " " * side + " └" + "─" * columns
    return "\n".join([panel.title, panel.up, *rows, foot, _below(panel, across, side, columns), *_legend(panel, width)])


def _scaled(panel: Panel, series: Series) -> tuple[Numbers, Numbers]:
    """Where it lies on straight axes; what has no place there is NaN."""
    with np.errstate(divide="ignore", invalid="ignore"):
        x = np.log10(series.x) if panel.log_x else series.x
        y = np.log10(series.y) if panel.log_y else series.y
    both = np.isfinite(x) & np.isfinite(y)
    return np.where(both, x, np.nan), np.where(both, y, np.nan)


def _range(values: Sequence[Numbers]) -> Range:
    known = np.concatenate([each[np.isfinite(each)] for each in values]) if values else np.zeros(0)
    low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 1.0)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _letters(
    panel: Panel, placed: Sequence[tuple[Numbers, Numbers]], across: Range, up: Range, size: tuple[int, int]
) -> list[str]:
    rows, columns = size
    dots = np.zeros((4 * rows, 2 * columns), dtype=bool)
    marks: dict[tuple[int, int], str] = {}
    for series, number, (x, y) in zip(panel.series, panel.colours, placed, strict=True):
        right = _shares(x, across) * (2 * columns - 1)
        down = (1 - _shares(y, up)) * (4 * rows - 1)
        known = [(float(a), float(b)) for a, b in zip(right, down, strict=True) if a == a]
        letter = LETTERS[number % len(LETTERS)]
        if series.style == "points":
            marks.update({(round(b) // 4, round(a) // 2): letter.lower() for a, b in known})
        elif known:
            _draw(dots, known, gaps=series.style == "dashed")
            marks.setdefault((round(known[-1][1]) // 4, round(known[-1][0]) // 2), letter)
    weights = np.array(DOTS)
    cells = (dots.reshape(rows, 4, columns, 2) * weights[None, :, None, :]).sum((1, 3))
    shown = [[" " if cell == 0 else chr(BRAILLE + cell) for cell in row] for row in cells]
    for (row, column), mark in marks.items():
        shown[row][column] = mark
    return ["".join(row).rstrip() for row in shown]


def _shares(values: Numbers, ends: Range) -> Numbers:
    return (values - ends[0]) / (ends[1] - ends[0])


def _draw(dots: NDArray[np.bool_], places: Sequence[tuple[float, float]], *, gaps: bool) -> None:
    """Straight lines from place to place; with gaps two of five dots are left out."""
    drawn = 0
    for (a, b), (c, d) in zip(places, [*places[1:], places[-1]], strict=True):
        count = max(1, round(max(abs(c - a), abs(d - b))))
        for step in range(count):
            drawn += 1
            if not (gaps and drawn % 5 in (3, 4)):
                dots[round(b + (d - b) * step / count), round(a + (c - a) * step / count)] = True


def _number(value: float, log: bool) -> str:
    return f"{10**value if log else value:.4g}"


def _below(panel: Panel, across: Range, side: int, columns: int) -> str:
    left, right = (_number(value, panel.log_x) for value in across)
    name = f"  {panel.across}"
    gap = columns - len(left) - len(right) - len(name)
    return " " * (side + 2) + left + " " * max(1, gap) + right + name


def _legend(panel: Panel, width: int) -> list[str]:
    lines = []
    for number in dict.fromkeys(panel.colours):
        said = [
            f"{series.style}: {series.label}"
            for series, own in zip(panel.series, panel.colours, strict=True)
            if own == number and series.label
        ]
        lines += wrap(f"{LETTERS[number % len(LETTERS)]} {'; '.join(said)}", width, subsequent_indent="  ")
    return lines


def _image(image: Image, width: int) -> str:
    values = _pooled(image.values, (min(width, LARGEST_IMAGE[0]), LARGEST_IMAGE[1]))
    low, high = (float(np.nanmin(values)), float(np.nanmax(values))) if np.isfinite(values).any() else (0.0, 0.0)
    most = max(abs(low), abs(high)) or 1.0
    wide = 2 if 2 * values.shape[1] <= width else 1
    rows = ["".join(_shade(value, image.signed, low, high, most) * wide for value in row) for row in values]
    if image.signed:
        scale = f"{LESS[1:]} below 0, {MORE[1:]} above; the largest {most:.3g}"
    else:
        scale = f"from {low:.3g} to {high:.3g}: '{MORE}'"
    words = f"down: {image.up}; across: {image.across}; {scale}"
    return "\n".join([image.title, *(row.rstrip() for row in rows), *wrap(words, width)])


def _pooled(values: Numbers, size: tuple[int, int]) -> Numbers:
    """At most so many columns and rows: each cell the number of largest size in it."""
    for axis, most in ((1, size[0]), (0, size[1])):
        step = -(-values.shape[axis] // most)
        if step > 1:
            parts = np.array_split(values, range(step, values.shape[axis], step), axis)
            values = np.stack([_largest(part, axis) for part in parts], axis)
    return values


def _largest(part: Numbers, axis: int) -> Numbers:
    at = np.expand_dims(np.abs(part).argmax(axis), axis)
    return np.take_along_axis(part, at, axis).squeeze(axis)


def _shade(value: float, signed: bool, low: float, high: float, most: float) -> str:
    if not np.isfinite(value):
        return "?"
    if signed:
        return (MORE if value > 0 else LESS)[min(4, round(4 * abs(value) / most))]
    return MORE[min(4, round(4 * (value - low) / ((high - low) or 1.0)))]
