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
from regard.plot.direct_labels import CurveLabel, place_labels
from regard.plot.figure import add_title
from regard.plot.style import (
    CURVE_COLORS,
    PAGE_WIDTH_IN,
    apply_style,
    diverging_colormap,
    new_figure,
    require_matplotlib,
    sequential_colormap,
    set_title,
    style_chart,
    wrap_text,
)
from regard.tensors.convert import ArrayLike

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANEL_HEIGHT_IN, TITLE_WIDTH_IN = 2.75, 2.2  # inches of a panel of half the page width, and of its title
STYLE_MARKS = {"line": "—", "dashed": "╌", "points": "●"}

CurveStyle = Literal["line", "dashed", "points"]


@dataclass(frozen=True, eq=False, init=False)
class Series:
    """One curve of a panel.

    Args:
        label: text of the legend.
        x, y: arrays of equal length.
        style: "line" (default) for formulas, "points" for computed numbers, "dashed" for wrong formulas.
        color_group: curves of a panel with the same group share a color. By default each curve has its own.
        spread: distance from the curve to each edge of a band around it, such as a standard deviation. Default: no
            band. The terminal draws no bands.
    """

    label: str
    x: NDArray[np.float64]
    y: NDArray[np.float64]
    style: CurveStyle = "line"
    color_group: str = ""
    spread: NDArray[np.float64] | None = None

    def __init__(
        self,
        label: str,
        x: ArrayLike,
        y: ArrayLike,
        style: CurveStyle = "line",
        color_group: str = "",
        spread: ArrayLike | None = None,
    ) -> None:
        _set_fields(self, label=label, x=x, y=y, style=style, color_group=color_group, spread=spread)
        check_fields(self)
        x, y = checks.array(x, "x"), checks.array(y, "y")
        if x.ndim != 1 or x.shape != y.shape:
            raise ArgumentError(f"x and y of {label!r} must have the same length; got {x.shape} and {y.shape}.")
        _set_fields(self, x=x, y=y, spread=None if spread is None else _check_spread(spread, x.shape, label))


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


def _check_spread(spread: ArrayLike, shape: tuple[int, ...], label: str) -> NDArray[np.float64]:
    """Return the distances from a curve to the edges of its band."""
    distances = checks.array(spread, "spread")
    if distances.shape != shape or not (distances >= 0).all():
        raise ArgumentError(
            f"spread of {label!r} must be {shape[0]} numbers of at least 0; got {checks.describe(spread)}."
        )
    return distances


def _check_groups(groups: Any, count: int) -> NDArray[np.int64]:
    """Return the group of each point as integers."""
    numbers = checks.array(groups, "groups", dims=(1,))
    if len(numbers) != count or not (np.isfinite(numbers) & (numbers == np.round(numbers))).all():
        raise ArgumentError(f"groups must be an integer for each of {count} points; got {checks.describe(groups)}.")
    return numbers.astype(np.int64)


@check_types
def charts(panels: Sequence[Panel | ImagePanel], title: str = "") -> "Figure":
    """Plot all panels in one figure, two in a row. The first of an odd number of panels has a row of its own.

    Args:
        panels: curves or images, one for each panel. Curves are labeled inside their panel.
        title: title of the figure. Default: none.

    >>> len(charts([Panel("Doubling", "x", "2x", [Series("twice", [1, 2], [2, 4])])]).axes)
    1
    """
    require_matplotlib()
    if not len(panels):
        raise ArgumentError("charts needs at least one panel; got none.")
    num_rows = len(panels) // 2 + len(panels) % 2
    figure = new_figure(PAGE_WIDTH_IN, PANEL_HEIGHT_IN * num_rows + 0.3 * bool(title))
    grid = figure.add_gridspec(num_rows, 2)
    labels = []
    for n, panel in enumerate(panels):
        is_wide = n == 0 and len(panels) % 2 == 1
        row, column = divmod(n + len(panels) % 2, 2)
        axes = figure.add_subplot(grid[0, :] if is_wide else grid[row, column])
        width = PAGE_WIDTH_IN - 0.9 if is_wide else TITLE_WIDTH_IN
        set_title(axes, panel.title, width)
        axes.set(xlabel=wrap_text(panel.xlabel, width), ylabel=wrap_text(panel.ylabel, PANEL_HEIGHT_IN - 0.8))
        if isinstance(panel, ImagePanel):
            _draw_image(axes, panel)
        else:
            _draw_curves(axes, panel)
            labels.append((axes, _curve_labels(panel, 2.4 if is_wide else 1.4)))
    if title:
        add_title(figure, title)
    apply_style(figure)
    figure.draw_without_rendering()  # labels are placed in the final layout
    for axes, texts in labels:
        place_labels(axes, texts, [np.stack(line.get_data(), axis=1) for line in axes.lines])
    return figure


def _draw_curves(axes: "Axes", panel: Panel) -> None:
    styles: dict[CurveStyle, dict[str, Any]] = {
        "line": dict(linestyle="-", linewidth=1.8),
        "dashed": dict(linestyle=(0, (4, 2)), linewidth=1.5),
        "points": dict(linestyle="", marker="o", markersize=4.5, markeredgewidth=0),
    }
    for series, color_index in zip(panel.series, panel.color_indices, strict=True):
        color = CURVE_COLORS[color_index % len(CURVE_COLORS)]
        axes.plot(series.x, series.y, label=series.label, color=color, **styles[series.style])
        if series.spread is not None:
            low, high = series.y - series.spread, series.y + series.spread
            axes.fill_between(series.x, low, high, color=color, alpha=0.18, linewidth=0)
    axes.set_xscale("log" if panel.log_x else "linear")
    axes.set_yscale("log" if panel.log_y else "linear")
    axes.margins(y=0.12)
    style_chart(axes)


def _curve_labels(panel: Panel, width: float) -> list[CurveLabel]:
    """Return one label for each color: its series, each after the mark of its style."""
    labels = []
    for color_index in dict.fromkeys(panel.color_indices):
        group = [
            series for series, index in zip(panel.series, panel.color_indices, strict=True) if index == color_index
        ]
        named = [series for series in group if series.label]
        texts = [f"{STYLE_MARKS[series.style]} {series.label}" if len(group) > 1 else series.label for series in named]
        if texts:
            points = np.concatenate([np.stack([series.x, series.y], axis=1) for series in named[-1:]])
            text = "\n".join(wrap_text(text, width) for text in texts)
            labels.append(CurveLabel(text, CURVE_COLORS[color_index % len(CURVE_COLORS)], points))
    return labels


def _draw_image(axes: "Axes", image: ImagePanel) -> None:
    max_abs = float(np.abs(image.values).max(initial=0.0)) or 1.0
    colors: dict[str, Any] = (
        dict(cmap=diverging_colormap(), vmin=-max_abs, vmax=max_abs)
        if image.signed
        else dict(cmap=sequential_colormap())
    )
    mappable = axes.imshow(image.values, aspect="auto", interpolation="nearest", **colors)
    axes.figure.colorbar(mappable, ax=axes, shrink=0.9, pad=0.02).outline.set_visible(False)
