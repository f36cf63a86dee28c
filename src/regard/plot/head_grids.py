"""Plots of many heads: a grid with one value per head, or a small map of each head."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from regard import checks
from regard.argument_types import check_types
from regard.errors import ArgumentError
from regard.plot.figure import add_title, fit_to_content
from regard.plot.style import (
    HIDDEN_COLOR,
    PAGE_WIDTH_IN,
    apply_style,
    new_figure,
    require_matplotlib,
    sequential_colormap,
    text_color_on,
)
from regard.tensors.convert import ArrayLike

if TYPE_CHECKING:
    from matplotlib.figure import Figure

THUMBNAIL_GAP = 0.06  # between small maps, as a fraction of their side
HEAD_CELL_IN = 0.44, 0.3  # inches of a cell with its number


@check_types
def heads(rows: Sequence[Mapping[str, object]], metric: str, *, title: str | None = None) -> "Figure":
    """Plot a grid of layers and heads, colored by one metric.

    Args:
        rows: rows of `recording.head_table()`, or dicts with "layer", "head" and the metric.
        metric: the column to plot.
        title: title of the figure; the name of the column by default.

    >>> rows = [{"layer": 0, "head": 0, "entropy": 0.5}, {"layer": 0, "head": 1, "entropy": 1.5}]
    >>> heads(rows, "entropy").axes[0].get_xlabel()
    'head'
    """
    require_matplotlib()
    if not len(rows) or metric not in rows[0]:
        known = ", ".join(rows[0]) if len(rows) else "nothing"
        raise ArgumentError(f"metric must be one of the columns: {known}; got {metric!r}.")
    checked_rows = [_check_row(row, metric) for row in rows]
    layers, head_indices = (sorted({row[name] for row in checked_rows}) for name in ("layer", "head"))
    grid = np.full((len(layers), len(head_indices)), np.nan)
    for row in checked_rows:
        grid[layers.index(row["layer"]), head_indices.index(row["head"])] = row[metric]
    figure = new_figure(1.5 + HEAD_CELL_IN[0] * len(head_indices), 1.2 + HEAD_CELL_IN[1] * len(layers))
    axes = figure.subplots()
    axes.set_facecolor(HIDDEN_COLOR)
    maximum = float(np.nanmax(grid))
    minimum = min(0.0, float(np.nanmin(grid)))
    image = axes.imshow(grid, cmap=sequential_colormap(), vmin=minimum, vmax=maximum or 1.0, aspect="auto")
    for (i, j), value in np.ndenumerate(grid):
        if np.isfinite(value):
            text = f"{value:.2f}" if abs(value) < 100 else f"{value:.0f}"
            axes.text(j, i, text, ha="center", va="center", color=text_color_on(image.to_rgba(value)))
    axes.set_xticks(range(len(head_indices)), [str(n) for n in head_indices])
    axes.set_yticks(range(len(layers)), [str(n) for n in layers])
    axes.set_xlabel("head")
    axes.set_ylabel("layer")
    add_title(figure, metric.replace("_", " ") if title is None else title)
    figure.colorbar(image, ax=axes, shrink=0.9, pad=0.02).outline.set_visible(False)
    return fit_to_content(apply_style(figure))


def _check_row(row: Mapping[str, object], metric: str) -> Mapping[str, Any]:
    """Return the row if its layer, head and metric are numbers."""
    for name in ("layer", "head"):
        checks.integer(row.get(name), f"{name} of each row", at_least=0)
    if not isinstance(row.get(metric), checks.NUMBER_TYPES):
        raise ArgumentError(f"{metric} of each row must be a number; got {checks.describe(row.get(metric))}.")
    return row


@check_types
def head_maps(maps: ArrayLike, *, gamma: float = 0.5, title: str | None = None) -> "Figure":
    """Plot a small map of each head, scaled to its largest value.

    Args:
        maps: (layers, heads, rows, columns).
        gamma: exponent of the values; below 1 small weights are visible. Default: 0.5.
        title: title of the figure. Default: none.

    >>> head_maps(np.ones((2, 3, 4, 4))).axes[0].get_ylabel()
    'layer'
    """
    require_matplotlib()
    checks.finite_number(gamma, "gamma", above=0, at_most=100)
    values = checks.array(maps, "maps")
    if values.ndim != 4 or 0 in values.shape:
        raise ArgumentError(f"maps must have shape (layers, heads, rows, columns); got shape {values.shape}.")
    num_layers, num_heads, height, width = values.shape
    gap = max(1, round(THUMBNAIL_GAP * max(height, width)))
    image = np.full((num_layers * (height + gap) - gap, num_heads * (width + gap) - gap), np.nan)
    for (layer, head), _ in np.ndenumerate(values[:, :, 0, 0]):
        head_map = values[layer, head]
        top, left = layer * (height + gap), head * (width + gap)
        image[top : top + height, left : left + width] = (head_map / (head_map.max() or 1.0)) ** gamma
    side = min(1.1, (PAGE_WIDTH_IN - 0.7) / num_heads)
    figure = new_figure(0.7 + side * num_heads, min(14.0, 0.8 + side * num_layers * height / width))
    axes = figure.subplots()
    axes.set_facecolor(HIDDEN_COLOR)  # the gaps between maps
    axes.imshow(image, cmap=sequential_colormap(), vmin=0.0, vmax=1.0, interpolation="nearest")
    centers = [
        [n * (side + gap) + side / 2 for n in range(count)]
        for side, count in ((width, num_heads), (height, num_layers))
    ]
    axes.set_xticks(centers[0], [str(n) for n in range(num_heads)])
    axes.set_yticks(centers[1], [str(n) for n in range(num_layers)])
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.set_xlabel("head")
    axes.set_ylabel("layer")
    if title is not None:
        add_title(figure, title)
    return fit_to_content(apply_style(figure))
