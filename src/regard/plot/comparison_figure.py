"""Plot of two attention mechanisms: their weights, the error of the output, time and memory."""

from typing import TYPE_CHECKING, Any

import numpy as np

from regard import checks
from regard.argument_types import check_types
from regard.errors import ArgumentError
from regard.plan.report import format_bytes, format_seconds
from regard.plot.style import (
    CURVE_COLORS,
    PAGE_WIDTH_IN,
    apply_style,
    new_figure,
    require_matplotlib,
    sequential_colormap,
    set_title,
    style_chart,
)
from regard.tensors.convert import ArrayLike

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# name, map of the weights or None, seconds, bytes or None
ComparisonSide = tuple[str, ArrayLike | None, float, int | None]


@check_types
def comparison(a: ComparisonSide, b: ComparisonSide, error_by_query: ArrayLike) -> "Figure":
    """Plot two mechanisms: maps of the first head, the error of each query, and bars of time and memory.

    Args:
        a, b: name, map of the weights or None, seconds, and bytes or None of each mechanism.
        error_by_query: relative error of the output of `b`, (n_q,).

    >>> figure = comparison(("a", None, 1.0, 2**20), ("b", None, 0.5, None), [0.0, 0.1])
    >>> [axes.get_title() for axes in figure.axes]
    ['error of b by query', 'time', 'extra memory']
    """
    require_matplotlib()
    names = a[0], b[0]
    maps = [(name, _first_map(name, weights)) for name, weights, _, _ in (a, b) if weights is not None]
    errors = checks.array(error_by_query, "error_by_query", dims=(1,))
    figure = new_figure(PAGE_WIDTH_IN, 4.6 if maps else 2.6)
    parts: Any = figure.subfigures(2, 1, height_ratios=(1.15, 1)) if maps else [figure]
    map_panels = _draw_maps(parts[0], maps) if maps else []
    curve, times, memory = parts[-1].subplots(1, 3, width_ratios=(1.6, 1, 1))
    curve.plot(np.arange(len(errors)), errors, color=CURVE_COLORS[1], linewidth=1.5)
    curve.set(xlabel="query", ylabel="relative error", ylim=(0.0, None))
    style_chart(curve)
    set_title(curve, f"error of {b[0]} by query", 2.2)
    _draw_bars(times, "time", names, [side[2] for side in (a, b)], format_seconds)
    _draw_bars(memory, "extra memory", names, [side[3] for side in (a, b)], format_bytes)
    if map_panels:
        bar = figure.colorbar(map_panels[0].images[0], ax=map_panels, shrink=0.9, pad=0.02, label="weight")
        bar.outline.set_visible(False)
    return apply_style(figure)


def _draw_maps(figure: Any, maps: list[tuple[str, Any]]) -> "list[Axes]":
    """Draw the maps with one color scale and return their panels. A mechanism without weights has an empty panel."""
    panels: list[Axes] = list(figure.subplots(1, 2))
    max_weight = max(float(weights.max()) for _, weights in maps) or 1.0
    for axes, (name, weights) in zip(panels, maps, strict=False):
        axes.imshow(weights, cmap=sequential_colormap(), vmin=0.0, vmax=max_weight, interpolation="nearest")
        axes.set(xlabel="key", ylabel="query")
        set_title(axes, f"weights of {name}", 2.3)
    for axes in panels[len(maps) :]:
        axes.set_visible(False)
    return panels


def _first_map(name: str, weights: Any) -> Any:
    """Return the map of the first head."""
    values = checks.array(weights, f"the weights of {name}")
    if values.ndim < 2 or 0 in values.shape:
        raise ArgumentError(f"the weights of {name} must be an array (..., n_q, n_k); got shape {values.shape}.")
    return values.reshape(-1, *values.shape[-2:])[0]


def _draw_bars(axes: "Axes", title: str, names: tuple[str, str], values: list[Any], format_value: Any) -> None:
    heights = [0.0 if value is None else float(value) for value in values]
    axes.bar([0, 1], heights, color=CURVE_COLORS[:2], width=0.7)
    for n, value in enumerate(values):
        text = "unknown" if value is None else format_value(value)
        axes.annotate(text, (n, heights[n]), (0, 2), textcoords="offset points", ha="center", va="bottom")
    axes.set_xticks([0, 1], [name if len(name) <= 9 else f"{name[:8]}…" for name in names])
    axes.set(yticks=[], ylim=(0.0, 1.2 * (max(heights) or 1.0)), xlim=(-0.6, 1.6))
    set_title(axes, title, 1.4)
    for spine in ("left", "top", "right"):
        axes.spines[spine].set_visible(False)
