"""Plots of many heads: a grid with one value per head, or a small map of each head."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from regard import checks
from regard.argument_types import check_types
from regard.errors import ArgumentError
from regard.plot.figure import HIDDEN_COLOR, SEQUENTIAL_COLORMAP, fit_to_content, require_matplotlib
from regard.tensors.convert import ArrayLike

if TYPE_CHECKING:
    from matplotlib.figure import Figure

THUMBNAIL_GAP = 0.06  # between small maps, as a fraction of their side


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
    from matplotlib.figure import Figure

    if not len(rows) or metric not in rows[0]:
        known = ", ".join(rows[0]) if len(rows) else "nothing"
        raise ArgumentError(f"metric must be one of the columns: {known}; got {metric!r}.")
    checked_rows = [_check_row(row, metric) for row in rows]
    layers, head_indices = (sorted({row[name] for row in checked_rows}) for name in ("layer", "head"))
    grid = np.full((len(layers), len(head_indices)), np.nan)
    for row in checked_rows:
        grid[layers.index(row["layer"]), head_indices.index(row["head"])] = row[metric]
    figure = Figure(figsize=(1.4 + 0.42 * len(head_indices), 1.2 + 0.34 * len(layers)), layout="constrained")
    axes = figure.subplots()
    axes.set_facecolor(HIDDEN_COLOR)
    maximum = float(np.nanmax(grid))
    image = axes.imshow(
        grid, cmap=SEQUENTIAL_COLORMAP, vmin=min(0.0, float(np.nanmin(grid))), vmax=maximum or 1.0, aspect="auto"
    )
    for (i, j), value in np.ndenumerate(grid):
        if np.isfinite(value):
            is_bright = value > 0.6 * maximum
            text = f"{value:.2f}" if abs(value) < 100 else f"{value:.0f}"
            axes.text(j, i, text, ha="center", va="center", fontsize=7, color="black" if is_bright else "white")
    axes.set_xticks(range(len(head_indices)), [str(n) for n in head_indices], fontsize=8)
    axes.set_yticks(range(len(layers)), [str(n) for n in layers], fontsize=8)
    axes.set_xlabel("head", fontsize=9)
    axes.set_ylabel("layer", fontsize=9)
    axes.set_title(metric.replace("_", " ") if title is None else title, fontsize=10)
    figure.colorbar(image, ax=axes, shrink=0.9).ax.tick_params(labelsize=8)
    return fit_to_content(figure)


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
    from matplotlib.figure import Figure

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
    figure = Figure(figsize=(min(14.0, 1.0 + 1.1 * num_heads), min(14.0, 0.9 + 1.1 * num_layers)), layout="constrained")
    axes = figure.subplots()
    axes.imshow(image, cmap=SEQUENTIAL_COLORMAP, vmin=0.0, vmax=1.0, interpolation="nearest")
    centers = [
        [n * (side + gap) + side / 2 for n in range(count)]
        for side, count in ((width, num_heads), (height, num_layers))
    ]
    axes.set_xticks(centers[0], [str(n) for n in range(num_heads)], fontsize=8)
    axes.set_yticks(centers[1], [str(n) for n in range(num_layers)], fontsize=8)
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.set_xlabel("head", fontsize=9)
    axes.set_ylabel("layer", fontsize=9)
    if title is not None:
        axes.set_title(title, fontsize=10)
    return fit_to_content(figure)
