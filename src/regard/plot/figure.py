"""Figures of equal panels of cells."""

import re
from typing import TYPE_CHECKING, Any

from regard.errors import ArgumentError
from regard.plot.style import CELL_BORDER_COLOR, INK_COLOR, TEXT_SIZE_PT, new_figure, wrap_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_PANELS = 16
MAX_PANEL_SIDE_IN = 10.0  # inches of one panel, to fit a page
MAX_ROW_WIDTH_IN = 14.0  # inches of all panels of a row


def create_panels(rows: int, columns: int, width: float, height: float) -> "tuple[Figure, list[list[Axes]]]":
    """Return an empty figure of rows x columns panels, each about width x height inches. Opens no window."""
    if rows * columns > MAX_PANELS:
        raise ArgumentError(
            f"a figure must have at most {MAX_PANELS} panels; got {rows} x {columns}. "
            "Plot fewer batch elements or heads at a time."
        )
    margins = 1.0, 1.3  # axis labels and a color bar at the sides, labels and titles above and below
    size = columns * (width + margins[0]), rows * (height + margins[1])
    figure = new_figure(*size, "compressed")
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
    max_width = max(2.4, figure.get_figwidth() - 0.3)
    lines = [""]
    for part in re.split(r" (?=(?:and|or) )", title):
        joined = f"{lines[-1]} {part}".strip()
        if lines[-1] and "\n" in wrap_text(joined, max_width, "bold"):
            lines.append(part)
        else:
            lines[-1] = joined
    lines = [wrapped for line in lines for wrapped in wrap_text(line, max_width, "bold").split("\n")]
    lines = lines if len(lines) <= 3 else [*lines[:2], "…"]
    style = dict(fontsize=TEXT_SIZE_PT, fontweight="bold", color=INK_COLOR, parse_math=False)
    figure.suptitle("\n".join(lines), x=0.1 / figure.get_figwidth(), ha="left", **style)


def fit_to_content(figure: "Figure") -> "Figure":
    """Set the size of the figure to that of its content and return it."""
    for _ in range(2):  # panels move when the figure shrinks
        figure.draw_without_rendering()
        box = figure.get_tightbbox()
        figure.set_size_inches(box.width + 0.2, box.height + 0.2)
        if figure.get_suptitle():
            figure._suptitle.set_x(0.1 / figure.get_figwidth())  # type: ignore[attr-defined]  # suptitle has no other getter
    return figure
