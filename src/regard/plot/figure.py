"""Figures of equal panels, and colors for color-blind readers."""

import re
import textwrap
from typing import TYPE_CHECKING, Any

from regard.errors import ArgumentError, MissingDependencyError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_PANELS = 16
MAX_PANEL_SIDE_IN = 10.0  # inches of one panel, to fit a page
MAX_ROW_WIDTH_IN = 14.0  # inches of all panels of a row

# Darker is more; the colors differ in lightness, so that a gray print shows them too.
HIDDEN_COLOR, PARTIAL_COLOR, VISIBLE_COLOR = "#f1f1ee", "#86bfe2", "#0b4a78"
NONFINITE_COLOR = "#d55e00"
SEQUENTIAL_COLORMAP = "viridis"
CELL_BORDER_COLOR = "#ffffff"


def require_matplotlib() -> None:
    """Raise `MissingDependencyError` if matplotlib is not installed."""
    try:
        import matplotlib.figure  # noqa: F401  # only checks that it can be imported
    except ImportError as error:
        raise MissingDependencyError(
            f"regard.plot needs matplotlib; got: {error}. Install it with pip install 'regard[plot]'."
        ) from None


def create_panels(rows: int, columns: int, width: float, height: float) -> "tuple[Figure, list[list[Axes]]]":
    """Return an empty figure of rows x columns panels, each about width x height inches. Opens no window."""
    from matplotlib.figure import Figure

    if rows * columns > MAX_PANELS:
        raise ArgumentError(
            f"a figure must have at most {MAX_PANELS} panels; got {rows} x {columns}. "
            "Plot fewer batch elements or heads at a time."
        )
    margins = 1.0, 1.3  # axis labels and a color bar at the sides, labels and titles above and below
    size = columns * (width + margins[0]), rows * (height + margins[1])
    figure = Figure(figsize=size, layout="compressed")
    figure.get_layout_engine().set(w_pad=0.08, h_pad=0.08)  # type: ignore[union-attr,call-arg]  # the compressed layout has these parameters
    return figure, figure.subplots(rows, columns, squeeze=False).tolist()


def panel_size(rows: int, columns: int, cell: float, panels_per_row: int = 1) -> tuple[float, float]:
    """Return the width and height in inches of a panel of rows x columns cells with a side of `cell` inches."""
    limit = min(MAX_PANEL_SIDE_IN, MAX_ROW_WIDTH_IN / panels_per_row)
    longest = min(limit, max(2.6, cell * max(rows, columns)))
    shortest = max(0.5, longest * min(rows, columns) / max(rows, columns))
    return (longest, shortest) if columns >= rows else (shortest, longest)


def draw_cells(
    axes: "Axes", image: Any, cell: tuple[int, int] = (1, 1), lengths: tuple[int, int] | None = None
) -> None:
    """Draw an image whose cells cover `cell` = (queries, keys) positions; the axes count positions up to `lengths`."""
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter

    rows, columns = image.shape[:2]
    height, width = lengths or (rows * cell[0], columns * cell[1])
    # very long shapes are stretched, because they would be too thin
    aspect = "equal" if max(height, width) <= 4 * min(height, width) else "auto"
    extent = (-0.5, columns * cell[1] - 0.5, rows * cell[0] - 0.5, -0.5)
    axes.imshow(image, extent=extent, aspect=aspect, interpolation="nearest")  # type: ignore[arg-type]  # one of the allowed strings
    axes.set_xlim(-0.5, width - 0.5)
    axes.set_ylim(height - 0.5, -0.5)
    axes.tick_params(length=2, labelsize=8)
    for spine in axes.spines.values():
        spine.set_visible(False)
    for axis, length in ((axes.xaxis, width), (axes.yaxis, height)):
        axis.set_major_locator(
            MaxNLocator(nbins=max(1, min(8, length - 1)), integer=True, steps=[1, 2, 5, 10], min_n_ticks=1)
        )
        axis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))


def draw_cell_borders(axes: "Axes", rows: int, columns: int) -> None:
    """Draw thin lines between cells of single positions if there are at most 40 per side."""
    if max(rows, columns) > 40:
        return
    style = dict(color=CELL_BORDER_COLOR, linewidth=0.6, in_layout=False)
    axes.vlines([line - 0.5 for line in range(1, columns)], -0.5, rows - 0.5, **style)  # type: ignore[arg-type]  # keyword arguments of matplotlib
    axes.hlines([line - 0.5 for line in range(1, rows)], -0.5, columns - 0.5, **style)  # type: ignore[arg-type]  # keyword arguments of matplotlib


def add_title(figure: "Figure", title: str) -> None:
    """Add a title over all panels. Long formulas are broken before `and` and `or`."""
    max_chars = max(20, int(figure.get_figwidth() * 12))
    lines = [""]
    for part in re.split(r" (?=(?:and|or) )", title):
        if lines[-1] and len(lines[-1]) + 1 + len(part) > max_chars:
            lines.append("")
        lines[-1] = f"{lines[-1]} {part}".strip()
    lines = [wrapped for line in lines for wrapped in textwrap.wrap(line, max_chars)]
    lines = lines if len(lines) <= 3 else [*lines[:2], "…"]
    figure.suptitle("\n".join(lines), fontsize=10, parse_math=False)


def fit_to_content(figure: "Figure") -> "Figure":
    """Set the size of the figure to that of its content and return it."""
    for _ in range(2):  # panels move when the figure shrinks
        figure.draw_without_rendering()
        box = figure.get_tightbbox()
        figure.set_size_inches(box.width + 0.2, box.height + 0.2)
    return figure
