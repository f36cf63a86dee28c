"""A picture of two attentions side by side: their weights, how far apart their answers are, what each takes."""

from typing import TYPE_CHECKING, Any

import numpy as np

from regard import checks
from regard.argument_types import check_types
from regard.draw.figure import PARTIAL, SEEN, SEQUENTIAL, check
from regard.errors import SpecError
from regard.plan.report import in_bytes, in_seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Side = tuple[str, Any, float, int | None]  # name, a map of its weights or None, seconds, bytes or None


@check_types
def comparison(a: Side, b: Side, by_query: Any) -> "Figure":
    """Maps of those that have one (the first head), the error of each query, and bars of time and memory.

    >>> figure = comparison(("a", None, 1.0, 2**20), ("b", None, 0.5, None), [0.0, 0.1])
    >>> [axes.get_title() for axes in figure.axes]
    ['error of b by query', 'time', 'extra memory']
    """
    check()
    from matplotlib.figure import Figure

    maps = [(name, _first_map(name, found)) for name, found, _, _ in (a, b) if found is not None]
    errors = checks.array(by_query, "by_query", dims=(1,))
    figure = Figure(figsize=(3.4 * len(maps) + 6.2, 3.3), layout="constrained")
    panels = figure.subplots(1, len(maps) + 3, width_ratios=[1.0] * len(maps) + [1.1, 0.45, 0.45], squeeze=False)[0]
    brightest = max((float(found.max()) for _, found in maps), default=1.0)
    for axes, (name, found) in zip(panels, maps, strict=False):
        axes.imshow(found, cmap=SEQUENTIAL, vmin=0.0, vmax=brightest, interpolation="nearest", aspect="auto")
        axes.set(title=f"weights of {name}", xlabel="key", ylabel="query", xticks=[], yticks=[])
    curve, times, memory = panels[len(maps) :]
    curve.plot(np.arange(len(errors)), errors, color=SEEN, linewidth=1.0)
    curve.set(title=f"error of {b[0]} by query", xlabel="query", ylabel="of the answer's size", ylim=(0.0, None))
    _bars(times, "time", (a[0], b[0]), [side[2] for side in (a, b)], in_seconds)
    _bars(memory, "extra memory", (a[0], b[0]), [side[3] for side in (a, b)], in_bytes)
    for axes in panels:
        axes.title.set_fontsize(9)
        axes.tick_params(labelsize=8)
    return figure


def _first_map(name: str, weights: Any) -> Any:
    """The map of the first head."""
    values = checks.array(weights, f"the weights of {name}")
    if values.ndim < 2 or 0 in values.shape:
        raise SpecError(f"the weights of {name} must be an array (..., n_q, n_k); got shape {values.shape}.")
    return values.reshape(-1, *values.shape[-2:])[0]


def _bars(axes: "Axes", title: str, names: tuple[str, str], values: list[Any], words: Any) -> None:
    heights = [0.0 if value is None else float(value) for value in values]
    axes.bar([0, 1], heights, color=[SEEN, PARTIAL], width=0.7)
    for place, value in enumerate(values):
        text = "not known" if value is None else words(value)
        axes.annotate(text, (place, heights[place]), ha="center", va="bottom", fontsize=7)
    axes.set_xticks([0, 1], [name if len(name) <= 12 else f"{name[:11]}…" for name in names], rotation=30)
    axes.set(title=title, yticks=[], ylim=(0.0, 1.15 * (max(heights) or 1.0)))
    for spine in ("left", "top", "right"):
        axes.spines[spine].set_visible(False)
