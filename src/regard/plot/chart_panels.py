"""Charts as data, and their plots with matplotlib. The explorer and the terminal draw the same data.

>>> line = Series("twice", [1, 2, 3], [2, 4, 6])
>>> charts([Panel("Doubling", "x", "2x", [line])]).axes[0].get_title()
'Doubling'
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from regard import checks
from regard.argument_types import check_fields, check_types
from regard.errors import ArgumentError
from regard.plot.figure import SEQUENTIAL_COLORMAP, create_panels, require_matplotlib
from regard.tensors.convert import ArrayLike

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Distinct for color-blind readers, and by lightness in print (Okabe and Ito).
CURVE_COLORS = ("#0b4a78", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#7f7f7f", "#000000")
DIVERGING_COLORMAP = "RdBu_r"
PANEL_WIDTH_IN, PANEL_HEIGHT_IN, MAX_PANEL_COLUMNS = 3.6, 2.6, 3  # inches of a panel, and panels in a row

CurveStyle = Literal["line", "dashed", "points"]


@dataclass(frozen=True, eq=False, init=False)
class Series:
    """One curve of a panel.

    Args:
        label: text of the legend.
        x, y: arrays of equal length.
        style: "line" (default) for formulas, "points" for computed numbers, "dashed" for wrong formulas.
        color_group: curves of a panel with the same group share a color. By default each curve has its own.
    """

    label: str
    x: NDArray[np.float64]
    y: NDArray[np.float64]
    style: CurveStyle = "line"
    color_group: str = ""

    def __init__(
        self, label: str, x: ArrayLike, y: ArrayLike, style: CurveStyle = "line", color_group: str = ""
    ) -> None:
        _set_fields(self, label=label, x=x, y=y, style=style, color_group=color_group)
        check_fields(self)
        x, y = checks.array(x, "x"), checks.array(y, "y")
        if x.ndim != 1 or x.shape != y.shape:
            raise ArgumentError(f"x and y of {label!r} must have the same length; got {x.shape} and {y.shape}.")
        _set_fields(self, x=x, y=y)


@dataclass(frozen=True, eq=False)
class Panel:
    """The curves `series` over one pair of axes, with a `title` and the labels `xlabel` and `ylabel`.

    `log_x` and `log_y` (default False) make an axis logarithmic.
    """

    title: str
    xlabel: str
    ylabel: str
    series: Sequence[Series]
    log_x: bool = False
    log_y: bool = False

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def color_indices(self) -> list[int]:
        """The index of each curve's color, from 0.

        >>> pair = [
        ...     Series("computed", [1], [2], "points", color_group="a"),
        ...     Series("formula", [1], [2], color_group="a"),
        ... ]
        >>> Panel("", "", "", [*pair, Series("other", [1], [3])]).color_indices
        [0, 0, 1]
        """
        groups = [series.color_group or f"curve {n}" for n, series in enumerate(self.series)]
        return [list(dict.fromkeys(groups)).index(group) for group in groups]


@dataclass(frozen=True, eq=False, init=False)
class ImagePanel:
    """The matrix `values` (rows, columns) as an image, with a `title` and the labels `xlabel` and `ylabel`.

    With `signed=True` (default False) the colors diverge from 0.
    """

    title: str
    xlabel: str
    ylabel: str
    values: NDArray[np.float64]
    signed: bool = False

    def __init__(self, title: str, xlabel: str, ylabel: str, values: ArrayLike, signed: bool = False) -> None:
        _set_fields(self, title=title, xlabel=xlabel, ylabel=ylabel, values=values, signed=signed)
        check_fields(self)
        values = checks.array(values, "values")
        if values.ndim != 2 or 0 in values.shape:
            raise ArgumentError(f"the image {title!r} must be a matrix; got shape {values.shape}.")
        _set_fields(self, values=values)


@dataclass(frozen=True, eq=False, init=False)
class PointAnimation:
    """Moving points: `points` (moments, points, 2 or 3) at `times` (moments,), colored by `groups` (points,)."""

    title: str
    times: NDArray[np.float64]
    points: NDArray[np.float64]
    groups: NDArray[np.int64]

    def __init__(self, title: str, times: ArrayLike, points: ArrayLike, groups: ArrayLike | None = None) -> None:
        _set_fields(self, title=title, times=times, points=points, groups=groups)
        check_fields(self)
        times, points = checks.array(times, "times"), checks.array(points, "points")
        if points.ndim != 3 or points.shape[-1] not in (2, 3) or times.shape != points.shape[:1]:
            raise ArgumentError(
                f"points must have shape (moments, points, 2 or 3) and times shape (moments,); "
                f"got {points.shape} and {times.shape}."
            )
        groups = np.zeros(points.shape[1], dtype=int) if groups is None else _check_groups(groups, points.shape[1])
        _set_fields(self, times=times, points=points, groups=groups)


def _set_fields(instance: object, **fields: object) -> None:
    """Set the fields of a frozen dataclass."""
    for name, value in fields.items():
        object.__setattr__(instance, name, value)


def _check_groups(groups: Any, count: int) -> NDArray[np.int64]:
    """Return the group of each point as integers."""
    numbers = checks.array(groups, "groups", dims=(1,))
    if len(numbers) != count or not (np.isfinite(numbers) & (numbers == np.round(numbers))).all():
        raise ArgumentError(f"groups must be an integer for each of {count} points; got {checks.describe(groups)}.")
    return numbers.astype(np.int64)


@check_types
def charts(panels: Sequence[Panel | ImagePanel], title: str = "") -> "Figure":
    """Plot all panels in one figure, three in a row; four panels are two by two.

    Args:
        panels: curves or images, one for each panel.
        title: title of the figure. Default: none.

    >>> len(charts([Panel("Doubling", "x", "2x", [Series("twice", [1, 2], [2, 4])])]).axes)
    1
    """
    require_matplotlib()
    if not len(panels):
        raise ArgumentError("charts needs at least one panel; got none.")
    columns = 2 if len(panels) == 4 else min(len(panels), MAX_PANEL_COLUMNS)
    figure, rows = create_panels(-(-len(panels) // columns), columns, PANEL_WIDTH_IN, PANEL_HEIGHT_IN)
    all_axes = [axes for row in rows for axes in row]
    for axes, panel in zip(all_axes, panels, strict=False):
        (_draw_image if isinstance(panel, ImagePanel) else _draw_curves)(axes, panel)  # type: ignore[arg-type]  # narrowed by isinstance
    for axes in all_axes[len(panels) :]:
        axes.set_visible(False)
    if title:
        figure.suptitle(title, fontsize=11)
    return figure


def _draw_curves(axes: "Axes", panel: Panel) -> None:
    styles: dict[CurveStyle, dict[str, Any]] = {
        "line": dict(linestyle="-", linewidth=1.6),
        "dashed": dict(linestyle="--", linewidth=1.3),
        "points": dict(linestyle="", marker="o", markersize=4),
    }
    for series, color_index in zip(panel.series, panel.color_indices, strict=True):
        axes.plot(
            series.x,
            series.y,
            label=series.label,
            color=CURVE_COLORS[color_index % len(CURVE_COLORS)],
            **styles[series.style],
        )
    axes.set_xscale("log" if panel.log_x else "linear")
    axes.set_yscale("log" if panel.log_y else "linear")
    _set_labels(axes, panel)
    axes.grid(alpha=0.25, linewidth=0.6)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    if any(series.label for series in panel.series):
        axes.legend(fontsize=7, frameon=False)


def _draw_image(axes: "Axes", image: ImagePanel) -> None:
    max_abs = float(np.abs(image.values).max(initial=0.0)) or 1.0
    colors: dict[str, Any] = (
        dict(cmap=DIVERGING_COLORMAP, vmin=-max_abs, vmax=max_abs) if image.signed else dict(cmap=SEQUENTIAL_COLORMAP)
    )
    mappable = axes.imshow(image.values, aspect="auto", interpolation="nearest", **colors)
    axes.figure.colorbar(mappable, ax=axes, shrink=0.9).ax.tick_params(labelsize=7)
    _set_labels(axes, image)


def _set_labels(axes: "Axes", panel: Panel | ImagePanel) -> None:
    axes.set_title(panel.title, fontsize=9, parse_math=False)
    axes.set_xlabel(panel.xlabel, fontsize=8)
    axes.set_ylabel(panel.ylabel, fontsize=8)
    axes.tick_params(labelsize=7, which="both")
