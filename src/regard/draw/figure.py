"""The paper: a figure of equal panels, and colours that are told apart without seeing red or green."""

import re
import textwrap
from typing import TYPE_CHECKING, Any

from regard.errors import MissingError, SpecError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_PANELS = 16
LONGEST_SIDE = 10.0  # inches of one panel; beyond that a picture no longer fits a page
WIDEST = 14.0  # inches of all panels of a row together

# Dark is more, and the steps differ in lightness, so they also survive a print in grey.
HIDDEN, PARTIAL, SEEN = "#f1f1ee", "#86bfe2", "#0b4a78"
UNDEFINED = "#d55e00"
SEQUENTIAL = "viridis"
LINE = "#ffffff"


def check() -> None:
    """Refuse before any work where matplotlib is missing."""
    try:
        import matplotlib.figure  # noqa: F401  # only whether it is there
    except ImportError as error:
        raise MissingError(
            f"regard.draw must have matplotlib; got: {error}. Install it with pip install 'regard[draw]'."
        ) from None


def paper(rows: int, columns: int, width: float, height: float) -> "tuple[Figure, list[list[Axes]]]":
    """An empty figure of rows x columns panels, each about width x height inches. No window, nothing global."""
    from matplotlib.figure import Figure

    if rows * columns > MOST_PANELS:
        raise SpecError(
            f"a picture must have at most {MOST_PANELS} panels; got {rows} x {columns}. "
            "Draw fewer batch elements or heads at a time."
        )
    margins = 1.0, 1.3  # axis labels and a colour bar beside, labels and titles above and below
    size = columns * (width + margins[0]), rows * (height + margins[1])
    figure = Figure(figsize=size, layout="compressed")
    figure.get_layout_engine().set(w_pad=0.08, h_pad=0.08)  # type: ignore[union-attr,call-arg]  # this layout takes them
    return figure, figure.subplots(rows, columns, squeeze=False).tolist()


def panel_size(rows: int, columns: int, cell: float, beside: int = 1) -> tuple[float, float]:
    """Width and height in inches of a panel of rows x columns cells that should have this side, `beside` in a row."""
    most = min(LONGEST_SIDE, WIDEST / beside)
    longest = min(most, max(2.6, cell * max(rows, columns)))
    shortest = max(0.5, longest * min(rows, columns) / max(rows, columns))
    return (longest, shortest) if columns >= rows else (shortest, longest)


def show(axes: "Axes", image: Any, cell: tuple[int, int] = (1, 1), lengths: tuple[int, int] | None = None) -> None:
    """An image of cells of `cell` = (queries, keys) positions, measured in positions and cut off at `lengths`."""
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter

    rows, columns = image.shape[:2]
    height, width = lengths or (rows * cell[0], columns * cell[1])
    # a hundred times as wide as high would be a hair: long shapes are stretched
    aspect = "equal" if max(height, width) <= 4 * min(height, width) else "auto"
    extent = (-0.5, columns * cell[1] - 0.5, rows * cell[0] - 0.5, -0.5)
    axes.imshow(image, extent=extent, aspect=aspect, interpolation="nearest")  # type: ignore[arg-type]  # one of the two words
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


def separate(axes: "Axes", rows: int, columns: int) -> None:
    """Thin lines between cells that are single positions, where there is room for lines."""
    if max(rows, columns) > 40:
        return
    style = dict(color=LINE, linewidth=0.6, in_layout=False)
    axes.vlines([line - 0.5 for line in range(1, columns)], -0.5, rows - 0.5, **style)  # type: ignore[arg-type]  # as above
    axes.hlines([line - 0.5 for line in range(1, rows)], -0.5, columns - 0.5, **style)  # type: ignore[arg-type]  # as above


def heading(figure: "Figure", title: str) -> None:
    """A title over all panels: a formula is broken before `and` and `or` where the paper ends."""
    letters = max(20, int(figure.get_figwidth() * 12))
    lines = [""]
    for part in re.split(r" (?=(?:and|or) )", title):
        if lines[-1] and len(lines[-1]) + 1 + len(part) > letters:
            lines.append("")
        lines[-1] = f"{lines[-1]} {part}".strip()
    lines = [short for line in lines for short in textwrap.wrap(line, letters)]
    shown = lines if len(lines) <= 3 else [*lines[:2], "…"]
    figure.suptitle("\n".join(shown), fontsize=10, parse_math=False)


def fitted(figure: "Figure") -> "Figure":
    """The figure on paper of the size that its panels and letters take."""
    for _ in range(2):  # panels move when the paper shrinks
        figure.draw_without_rendering()
        box = figure.get_tightbbox()
        figure.set_size_inches(box.width + 0.2, box.height + 0.2)
    return figure
