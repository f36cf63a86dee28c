"""Plots of weights: a small matrix with its tokens, or a pooled map of a large one (`measure.pooled_map`)."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from regard import checks
from regard.argument_types import UNCHECKED, check_types
from regard.errors import ArgumentError
from regard.measure import PooledMap
from regard.plot.figure import add_title, create_panels, draw_cell_borders, draw_cells, fit_to_content, panel_size
from regard.plot.style import (
    HIDDEN_COLOR,
    NONFINITE_COLOR,
    apply_style,
    require_matplotlib,
    sequential_colormap,
    text_color_on,
)
from regard.tensors.convert import ArrayLike
from regard.weights import AttentionWeights

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure

Array = NDArray[np.float64]
TickLabels = Sequence[str] | None
TokenLabels: TypeAlias = Annotated[Sequence[str] | tuple[TickLabels, TickLabels], UNCHECKED]

MAX_MAP_SIDE = 2048  # cells per side; a screen does not have more pixels
MAX_NUMBERED_SIDE = 12  # cells per side; cells of smaller maps have their numbers
MAX_LABEL_CHARACTERS = 14  # of a token
LETTER_WIDTH_IN, LINE_HEIGHT_IN, NUMBER_WIDTH_IN = 0.12, 0.19, 0.38  # upper bounds, in inches


class _MapPanel(NamedTuple):
    """The title and values of one panel. Panels with the same `color_group` share a color scale."""

    title: str
    values: Array
    color_group: int


class _MapStyle(NamedTuple):
    """The properties that all panels share. `cell_width_in` and `cell_height_in` are inches of a cell."""

    cell_shape: tuple[int, int]
    queries: TickLabels
    keys: TickLabels
    has_numbers: bool
    cell_width_in: float
    cell_height_in: float


@check_types
def weights(
    weights: ArrayLike | PooledMap,
    tokens: TokenLabels | None = None,
    *,
    scale: str = "linear",
    titles: Sequence[str] | None = None,
    title: str | None = None,
) -> "Figure":
    """Plot attention weights, with queries from top to bottom and keys from left to right. Darker is more.

    A weight of exactly 0, such as that of a masked pair, is left blank.

    Args:
        weights: an array (..., n_q, n_k), such as `result.weights[0, 3, :20]`; small arrays are drawn with their
            numbers. Or a result of `measure.pooled_map`, drawn as the mean and the maximum of each cell. Leading
            dimensions become panels with one color scale.
        tokens: labels of both axes, or a pair (labels of the queries, labels of the keys), each a list or None.
            None (the default) labels positions.
        scale: "linear" (default), or "log" for four powers of ten.
        titles: a title for each map of the leading dimensions; by default their indices.
        title: title of the figure. Default: none.

    >>> import torch
    >>> from regard import attention_with_weights
    >>> x = torch.eye(3)
    >>> figure = weights(attention_with_weights(x, x, x).weights[...], tokens=["a", "b", "c"])
    >>> [t.get_text() for t in figure.axes[0].get_xticklabels()]
    ['a', 'b', 'c']
    """
    require_matplotlib()
    if scale not in ("linear", "log"):
        raise ArgumentError(f"scale must be 'linear' or 'log'; got {scale!r}. Use 'log' if few weights are large.")
    maps, cell = _map_panels(weights, titles)
    height, width = maps[0].values.shape
    labels = _labels(tokens, (height, width), cell)
    has_numbers = max(height, width) <= MAX_NUMBERED_SIDE and cell == (1, 1)
    side = 0.46 if has_numbers else 0.2 if any(labels) else 0.02
    rows, columns = _panel_grid_shape(len(maps), isinstance(weights, PooledMap))
    size = panel_size(height, width, side, columns)
    figure, panels = create_panels(rows, columns, *size)
    has_numbers = has_numbers and size[0] / width > NUMBER_WIDTH_IN
    style = _MapStyle(cell, *labels, has_numbers, size[0] / width, size[1] / height)
    _draw_maps(figure, [axes for row in panels for axes in row], maps, scale, style)
    if title is not None:
        add_title(figure, title)
    return fit_to_content(apply_style(figure))


def _map_panels(weights: Any, titles: Sequence[str] | None) -> tuple[list[_MapPanel], tuple[int, int]]:
    """Return the maps in the order of their panels, and the number of queries and keys per cell."""
    if isinstance(weights, PooledMap):
        parts, cell = [("mean", _array(weights.mean)), ("maximum", _array(weights.max))], weights.cell_size
    else:
        parts, cell = [("", _array(weights))], (1, 1)
    leading = parts[0][1].shape[:-2]
    names = _titles(titles, leading)
    if max(parts[0][1].shape[-2:]) > MAX_MAP_SIDE:
        raise ArgumentError(
            f"a map must have at most {MAX_MAP_SIDE} cells per side; got {parts[0][1].shape[-2:]}. "
            "Use result.weights.measure(measure.pooled_map(256, 256)).pooled_map."
        )
    maps = []
    for name, index in zip(names, np.ndindex(leading), strict=True):
        for column, (part, values) in enumerate(parts):
            maps.append(_MapPanel(", ".join(filter(None, (name, part))), values[index], column))
    return maps, cell


def _array(weights: Any) -> Array:
    if isinstance(weights, torch.Tensor):
        weights = weights.detach().to("cpu", torch.float64).numpy()
    try:
        # np.asarray would compute all lazy weights, row by row
        values = np.zeros(()) if isinstance(weights, AttentionWeights) else np.asarray(weights, dtype=np.float64)
    except (TypeError, ValueError):
        values = np.zeros(())
    if values.ndim < 2 or 0 in values.shape:
        got = f"shape {values.shape}" if values.ndim else type(weights).__name__
        raise ArgumentError(
            f"weights must be an array (..., n_q, n_k) or a result of measure.pooled_map; got {got}. Index a part such "
            "as result.weights[0, 0, :20, :20], or result.weights.measure(measure.pooled_map(128, 128)).pooled_map."
        )
    return values


def _titles(titles: Sequence[str] | None, leading: tuple[int, ...]) -> list[str]:
    count = math.prod(leading)
    if titles is None:
        return [str(list(index)) if count > 1 else "" for index in np.ndindex(leading)]
    if len(titles) != count:
        raise ArgumentError(
            f"titles must have one title for each of {count} maps; got {len(titles)}. Use None for none."
        )
    return list(titles)


def _labels(tokens: Any, shape: tuple[int, ...], cell: tuple[int, int]) -> tuple[TickLabels, TickLabels]:
    """Return the labels of queries and keys; None for positions."""
    if tokens is None:
        return None, None
    if not _is_list(tokens):
        raise ArgumentError(f"tokens must be a list of labels, or a pair of lists; got {checks.describe(tokens)}.")
    is_pair = isinstance(tokens, tuple) and len(tokens) == 2 and not any(isinstance(t, str) for t in tokens)
    pair = tokens if is_pair else (tokens, tokens)
    short_labels: list[TickLabels] = []
    for labels, length, axis, size in zip(pair, shape, ("queries", "keys"), cell, strict=True):
        if labels is not None and not _is_list(labels):
            raise ArgumentError(
                f"the labels of {axis} must be a list of strings, or None; got {checks.describe(labels)}."
            )
        if labels is not None and size > 1:
            raise ArgumentError(
                f"tokens must label single {axis}; got a map with {size} {axis} per cell. Plot it without tokens, "
                "or index the rows and columns to read."
            )
        if labels is not None and len(labels) != length:
            raise ArgumentError(
                f"tokens must have a label for each of {length} {axis}; got {len(labels)}. For different axes use "
                "a pair (labels of the queries, labels of the keys)."
            )
        short_labels.append(None if labels is None else [shorten_token(str(label)) for label in labels])
    return short_labels[0], short_labels[1]


def _is_list(value: Any) -> bool:
    return isinstance(value, (Sequence, np.ndarray)) and not isinstance(value, (str, bytes))


def shorten_token(token: str) -> str:
    """Return a token as one short line, with visible white space."""
    label = token.replace("\n", "↵").replace("\t", "⇥")
    label = label.replace(" ", "␣") if label.strip() != label else label
    return label if len(label) <= MAX_LABEL_CHARACTERS else label[: MAX_LABEL_CHARACTERS - 1] + "…"


def _panel_grid_shape(count: int, is_pooled: bool) -> tuple[int, int]:
    if is_pooled:
        return count // 2, 2
    columns = math.ceil(math.sqrt(count))
    return -(-count // columns), columns


def _draw_maps(figure: "Figure", panels: "list[Axes]", maps: list[_MapPanel], scale: str, style: _MapStyle) -> None:
    from matplotlib.cm import ScalarMappable

    for color_group in sorted({m.color_group for m in maps}):
        group = [(axes, m) for axes, m in zip(panels, maps, strict=False) if m.color_group == color_group]
        norm = _color_norm([m.values for _, m in group], scale)
        colors = ScalarMappable(norm, sequential_colormap())
        for axes, m in group:
            image = colors.to_rgba(np.nan_to_num(m.values, posinf=norm.vmax, neginf=norm.vmin))
            draw_cells(axes, _blank_hidden_cells(image, m.values), style.cell_shape)
            _label_map(axes, m, style)
            if style.has_numbers:
                _write_numbers(axes, m.values, image)
        bar = figure.colorbar(colors, ax=[axes for axes, _ in group], shrink=0.8, pad=0.02)
        bar.outline.set_visible(False)
    for axes in panels[len(maps) :]:
        axes.set_visible(False)


def _color_norm(values: list[Array], scale: str) -> "Normalize":
    from matplotlib.colors import LogNorm, Normalize

    finite = np.concatenate([v[np.isfinite(v)] for v in values])
    maximum = float(finite.max(initial=0.0)) or 1.0
    if scale == "linear":
        return Normalize(min(0.0, float(finite.min(initial=0.0))), maximum)
    return LogNorm(maximum * 1e-4, maximum, clip=True)


def _blank_hidden_cells(image: Any, values: Array) -> Any:
    from matplotlib.colors import to_rgba

    image = image.copy()
    image[values == 0.0] = to_rgba(HIDDEN_COLOR)
    image[~np.isfinite(values)] = to_rgba(NONFINITE_COLOR)
    return image


def _label_map(axes: "Axes", panel: _MapPanel, style: _MapStyle) -> None:
    """Set the title, the axis labels and the tokens of a panel."""
    axes.set_title(panel.title, parse_math=False)
    axes.set_ylabel(_axis_name("query", style.cell_shape[0]))
    axes.set_xlabel(_axis_name("key", style.cell_shape[1]))
    if style.cell_shape == (1, 1):
        draw_cell_borders(axes, *panel.values.shape)
    if style.queries is not None:
        positions = _labeled_positions(len(style.queries), style.cell_height_in)
        axes.set_yticks(positions, [style.queries[n] for n in positions], parse_math=False)
    if style.keys is not None:
        positions = _labeled_positions(len(style.keys), style.cell_width_in)
        is_horizontal = max(map(len, style.keys)) * LETTER_WIDTH_IN < style.cell_width_in
        texts = [style.keys[n] for n in positions]
        axes.set_xticks(positions, texts, rotation=0 if is_horizontal else 90, parse_math=False)


def _axis_name(name: str, size: int) -> str:
    return name if size == 1 else f"{name} ({size} per cell)"


def _labeled_positions(count: int, cell_size_in: float) -> list[int]:
    """Return the positions that have a label: all, or every n-th if a line of text is higher than a cell."""
    return list(range(0, count, math.ceil(LINE_HEIGHT_IN / cell_size_in)))


def _write_numbers(axes: "Axes", values: Array, image: Any) -> None:
    for (row, column), value in np.ndenumerate(values):
        if value != 0.0 and np.isfinite(value):
            color = text_color_on(image[row, column])
            text = axes.text(column, row, f"{value:.2f}", ha="center", va="center", color=color)
            text.set_in_layout(False)  # it is inside its cell, and measuring it would be slow
