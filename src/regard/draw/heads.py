"""Pictures of many heads: a number of each as a field of colours, or a small map of each, layers from top to bottom."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from regard import checks
from regard.argument_types import check_types
from regard.draw.figure import HIDDEN, SEQUENTIAL, check, fitted
from regard.errors import SpecError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GAP = 0.06  # between small maps, of a map's side


@check_types
def heads(rows: Sequence[Mapping[str, Any]], measure: str, *, title: str | None = None) -> "Figure":
    """A field for each head, coloured by one of its numbers, which stands in it; rows are those of `tape.heads()`.

    >>> rows = [{"layer": 0, "head": 0, "entropy": 0.5}, {"layer": 0, "head": 1, "entropy": 1.5}]
    >>> heads(rows, "entropy").axes[0].get_xlabel()
    'head'
    """
    check()
    from matplotlib.figure import Figure

    if not len(rows) or measure not in rows[0]:
        known = ", ".join(rows[0]) if len(rows) else "nothing"
        raise SpecError(f"a measure must be one of the columns: {known}; got {measure!r}.")
    for row in rows:
        _check_row(row, measure)
    layers, numbers = (sorted({row[name] for row in rows}) for name in ("layer", "head"))
    field = np.full((len(layers), len(numbers)), np.nan)
    for row in rows:
        field[layers.index(row["layer"]), numbers.index(row["head"])] = row[measure]
    figure = Figure(figsize=(1.4 + 0.42 * len(numbers), 1.2 + 0.34 * len(layers)), layout="constrained")
    axes = figure.subplots()
    axes.set_facecolor(HIDDEN)
    most = float(np.nanmax(field))
    image = axes.imshow(field, cmap=SEQUENTIAL, vmin=min(0.0, float(np.nanmin(field))), vmax=most or 1.0, aspect="auto")
    for (i, j), value in np.ndenumerate(field):
        if np.isfinite(value):
            is_bright = value > 0.6 * most
            text = f"{value:.2f}" if abs(value) < 100 else f"{value:.0f}"
            axes.text(j, i, text, ha="center", va="center", fontsize=7, color="black" if is_bright else "white")
    axes.set_xticks(range(len(numbers)), [str(n) for n in numbers], fontsize=8)
    axes.set_yticks(range(len(layers)), [str(n) for n in layers], fontsize=8)
    axes.set_xlabel("head", fontsize=9)
    axes.set_ylabel("layer", fontsize=9)
    axes.set_title(measure.replace("_", " ") if title is None else title, fontsize=10)
    figure.colorbar(image, ax=axes, shrink=0.9).ax.tick_params(labelsize=8)
    return fitted(figure)


def _check_row(row: Mapping[str, Any], measure: str) -> None:
    for name in ("layer", "head"):
        checks.whole_number(row.get(name), f"{name} of each row", at_least=0)
    if not isinstance(row.get(measure), checks.NUMBERS):
        raise SpecError(f"{measure} of each row must be a number; got {checks.describe(row.get(measure))}.")


@check_types
def multiples(maps: Any, *, scale: float = 0.5, title: str | None = None) -> "Figure":
    """A small map of each head, (layers, heads, rows, columns), each by its own brightest cell.

    `scale` is the power by which cells are drawn: below 1 small weights show.

    >>> multiples(np.ones((2, 3, 4, 4))).axes[0].get_ylabel()
    'layer'
    """
    check()
    from matplotlib.figure import Figure

    checks.finite_number(scale, "scale", above=0, at_most=100)
    found = checks.array(maps, "maps")
    if found.ndim != 4 or 0 in found.shape:
        raise SpecError(f"maps must be (layers, heads, rows, columns); got shape {found.shape}.")
    layers, many, height, width = found.shape
    between = max(1, round(GAP * max(height, width)))
    paper = np.full((layers * (height + between) - between, many * (width + between) - between), np.nan)
    for (layer, head), _ in np.ndenumerate(found[:, :, 0, 0]):
        one = found[layer, head]
        top, left = layer * (height + between), head * (width + between)
        paper[top : top + height, left : left + width] = (one / (one.max() or 1.0)) ** scale
    figure = Figure(figsize=(min(14.0, 1.0 + 1.1 * many), min(14.0, 0.9 + 1.1 * layers)), layout="constrained")
    axes = figure.subplots()
    axes.imshow(paper, cmap=SEQUENTIAL, vmin=0.0, vmax=1.0, interpolation="nearest")
    middles = [
        [n * (side + between) + side / 2 for n in range(count)] for side, count in ((width, many), (height, layers))
    ]
    axes.set_xticks(middles[0], [str(n) for n in range(many)], fontsize=8)
    axes.set_yticks(middles[1], [str(n) for n in range(layers)], fontsize=8)
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.set_xlabel("head", fontsize=9)
    axes.set_ylabel("layer", fontsize=9)
    if title is not None:
        axes.set_title(title, fontsize=10)
    return fitted(figure)
