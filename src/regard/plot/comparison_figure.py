"""Plot of two attention mechanisms: their weights, the error of the output, time and memory."""

from typing import TYPE_CHECKING, Any

import numpy as np

from regard import checks
from regard.argument_types import check_types
from regard.errors import ArgumentError
from regard.plan.report import format_bytes, format_seconds
from regard.plot.figure import PARTIAL_COLOR, SEQUENTIAL_COLORMAP, VISIBLE_COLOR, require_matplotlib
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
    from matplotlib.figure import Figure

    maps = [(name, _first_map(name, weights)) for name, weights, _, _ in (a, b) if weights is not None]
    errors = checks.array(error_by_query, "error_by_query", dims=(1,))
    figure = Figure(figsize=(3.4 * len(maps) + 6.2, 3.3), layout="constrained")
    panels = figure.subplots(1, len(maps) + 3, width_ratios=[1.0] * len(maps) + [1.1, 0.45, 0.45], squeeze=False)[0]
    max_weight = max((float(weights.max()) for _, weights in maps), default=1.0)
    for axes, (name, weights) in zip(panels, maps, strict=False):
        axes.imshow(
            weights, cmap=SEQUENTIAL_COLORMAP, vmin=0.0, vmax=max_weight, interpolation="nearest", aspect="auto"
        )
        axes.set(title=f"weights of {name}", xlabel="key", ylabel="query", xticks=[], yticks=[])
    curve, times, memory = panels[len(maps) :]
    curve.plot(np.arange(len(errors)), errors, color=VISIBLE_COLOR, linewidth=1.0)
    curve.set(title=f"error of {b[0]} by query", xlabel="query", ylabel="relative error", ylim=(0.0, None))
    _bars(times, "time", (a[0], b[0]), [side[2] for side in (a, b)], format_seconds)
    _bars(memory, "extra memory", (a[0], b[0]), [side[3] for side in (a, b)], format_bytes)
    for axes in panels:
        axes.title.set_fontsize(9)
        axes.tick_params(labelsize=8)
    return figure


def _first_map(name: str, weights: Any) -> Any:
    """Return the map of the first head."""
    values = checks.array(weights, f"the weights of {name}")
    if values.ndim < 2 or 0 in values.shape:
        raise ArgumentError(f"the weights of {name} must be an array (..., n_q, n_k); got shape {values.shape}.")
    return values.reshape(-1, *values.shape[-2:])[0]


def _bars(axes: "Axes", title: str, names: tuple[str, str], values: list[Any], format_value: Any) -> None:
    heights = [0.0 if value is None else float(value) for value in values]
    axes.bar([0, 1], heights, color=[VISIBLE_COLOR, PARTIAL_COLOR], width=0.7)
    for n, value in enumerate(values):
        text = "unknown" if value is None else format_value(value)
        axes.annotate(text, (n, heights[n]), ha="center", va="bottom", fontsize=7)
    axes.set_xticks([0, 1], [name if len(name) <= 12 else f"{name[:11]}…" for name in names], rotation=30)
    axes.set(title=title, yticks=[], ylim=(0.0, 1.15 * (max(heights) or 1.0)))
    for spine in ("left", "top", "right"):
        axes.spines[spine].set_visible(False)
