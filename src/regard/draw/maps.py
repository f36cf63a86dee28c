"""Pictures of weights: a small matrix with its tokens, or a map that `measure.pool` made of a large one."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from regard import checks
from regard.argument_types import check_types
from regard.draw.figure import HIDDEN, SEQUENTIAL, UNDEFINED, check, fitted, heading, panel_size, paper, separate, show
from regard.errors import SpecError
from regard.measure import Pooled
from regard.weights import Weights

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure

Array = NDArray[np.float64]
Labels = Sequence[str] | None

LARGEST = 2048  # cells a side: beyond that a screen has no dots for them
NUMBERED = 12  # cells a side: up to here each shows its number
LETTERS = 14  # of a token
LETTER, LINE_HEIGHT, NUMBER = 0.1, 0.16, 0.28  # inches that a letter, a line and a number in a cell take at most


class _Map(NamedTuple):
    """What one panel shows, and the column of panels whose colours it shares."""

    title: str
    values: Array
    column: int


class _Style(NamedTuple):
    """What all panels have in common; `width` and `height` are those of a cell, in inches."""

    cell: tuple[int, int]
    queries: Labels
    keys: Labels
    has_numbers: bool
    width: float
    height: float


@check_types
def weights(
    weights: Any,
    tokens: Any = None,
    *,
    scale: str = "linear",
    titles: Sequence[str] | None = None,
    title: str | None = None,
) -> "Figure":
    """A picture of attention weights, queries from top to bottom, keys from left to right, brighter being more.

    `weights` is what `measure.pool` found, drawn as two maps, the mean and the maximum of each cell; or an array
    (..., n_q, n_k), such as `attended.weights[0, 3, :20]`, which gets its numbers written in if it is small. Leading
    dimensions become panels with one scale of colours. A weight of exactly 0, as of a hidden pair, is left blank.

    tokens: the labels of both axes, or a pair (labels of the queries, labels of the keys), either of them None for
    plain numbers. scale: "linear" or "log"; log shows four powers of ten. titles: one for each map of the leading
    dimensions. title: one over all.

    >>> import torch
    >>> from regard import attend
    >>> x = torch.eye(3)
    >>> figure = weights(attend(x, x, x).weights[...], tokens=["a", "b", "c"])
    >>> [t.get_text() for t in figure.axes[0].get_xticklabels()]
    ['a', 'b', 'c']
    """
    check()
    if scale not in ("linear", "log"):
        raise SpecError(f"scale must be 'linear' or 'log'; got {scale!r}. Take log where few weights are large.")
    maps, cell = _maps(weights, titles)
    height, width = maps[0].values.shape
    labels = _labels(tokens, (height, width), cell)
    has_numbers = max(height, width) <= NUMBERED and cell == (1, 1)
    side = 0.46 if has_numbers else 0.2 if any(labels) else 0.03
    rows, columns = _arranged(len(maps), isinstance(weights, Pooled))
    size = panel_size(height, width, side, columns)
    figure, panels = paper(rows, columns, *size)
    has_numbers = has_numbers and size[0] / width > NUMBER
    style = _Style(cell, *labels, has_numbers, size[0] / width, size[1] / height)
    _fill(figure, [axes for line in panels for axes in line], maps, scale, style)
    if title is not None:
        heading(figure, title)
    return fitted(figure)


def _maps(weights: Any, titles: Sequence[str] | None) -> tuple[list[_Map], tuple[int, int]]:
    """The maps in the order of their panels, and how many queries and keys a cell of them stands for."""
    if isinstance(weights, Pooled):
        parts, cell = [("mean", _array(weights.mean)), ("maximum", _array(weights.max))], weights.cell
    else:
        parts, cell = [("", _array(weights))], (1, 1)
    leading = parts[0][1].shape[:-2]
    names = _titles(titles, leading)
    if max(parts[0][1].shape[-2:]) > LARGEST:
        raise SpecError(
            f"a map must have at most {LARGEST} cells a side to be drawn; got {parts[0][1].shape[-2:]}. "
            "Use attended.weights.measure(measure.pool(256, 256)).pool."
        )
    maps = []
    for name, index in zip(names, np.ndindex(leading), strict=True):
        for column, (part, values) in enumerate(parts):
            maps.append(_Map(", ".join(filter(None, (name, part))), values[index], column))
    return maps, cell


def _array(weights: Any) -> Array:
    if isinstance(weights, torch.Tensor):
        weights = weights.detach().to("cpu", torch.float64).numpy()
    try:
        # lazy weights would be computed row by row, all of them
        values = np.zeros(()) if isinstance(weights, Weights) else np.asarray(weights, dtype=np.float64)
    except (TypeError, ValueError):
        values = np.zeros(())
    if values.ndim < 2 or 0 in values.shape:
        got = f"shape {values.shape}" if values.ndim else type(weights).__name__
        raise SpecError(
            f"weights must be an array (..., n_q, n_k) or what measure.pool found; got {got}. Take a part such as "
            "attended.weights[0, 0, :20, :20], or attended.weights.measure(measure.pool(128, 128)).pool."
        )
    return values


def _titles(titles: Sequence[str] | None, leading: tuple[int, ...]) -> list[str]:
    count = math.prod(leading)
    if titles is None:
        return [str(list(index)) if count > 1 else "" for index in np.ndindex(leading)]
    if len(titles) != count:
        raise SpecError(f"titles must name each of {count} maps; got {len(titles)}. Give one for each, or none.")
    return list(titles)


def _labels(tokens: Any, shape: tuple[int, ...], cell: tuple[int, int]) -> tuple[Labels, Labels]:
    """The labels of queries and keys; None for plain numbers."""
    if tokens is None:
        return None, None
    if not _is_list(tokens):
        raise SpecError(f"tokens must be a list of labels, or a pair of lists; got {checks.describe(tokens)}.")
    is_pair = isinstance(tokens, tuple) and len(tokens) == 2 and not any(isinstance(t, str) for t in tokens)
    pair = tokens if is_pair else (tokens, tokens)
    found: list[Labels] = []
    for labels, length, of, size in zip(pair, shape, ("queries", "keys"), cell, strict=True):
        if labels is not None and not _is_list(labels):
            raise SpecError(f"the labels of {of} must be a list of strings, or None; got {checks.describe(labels)}.")
        if labels is not None and size > 1:
            raise SpecError(
                f"tokens must label single {of}; got a map with {size} {of} a cell. Draw it without tokens, or index "
                "the rows and columns you want to read."
            )
        if labels is not None and len(labels) != length:
            raise SpecError(
                f"tokens must have a label for each of {length} {of}; got {len(labels)}. For unequal axes give a pair "
                "(labels of the queries, labels of the keys)."
            )
        found.append(None if labels is None else [readable(str(label)) for label in labels])
    return found[0], found[1]


def _is_list(value: Any) -> bool:
    return isinstance(value, (Sequence, np.ndarray)) and not isinstance(value, (str, bytes))


def readable(token: str) -> str:
    """A token on one short line, also if it is white space."""
    shown = token.replace("\n", "↵").replace("\t", "⇥")
    shown = shown.replace(" ", "␣") if shown.strip() != shown else shown
    return shown if len(shown) <= LETTERS else shown[: LETTERS - 1] + "…"


def _arranged(count: int, is_pooled: bool) -> tuple[int, int]:
    if is_pooled:
        return count // 2, 2
    columns = math.ceil(math.sqrt(count))
    return -(-count // columns), columns


def _fill(figure: "Figure", panels: "list[Axes]", maps: list[_Map], scale: str, style: _Style) -> None:
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable

    for column in sorted({m.column for m in maps}):
        shown = [(axes, m) for axes, m in zip(panels, maps, strict=False) if m.column == column]
        norm = _norm([m.values for _, m in shown], scale)
        colours = ScalarMappable(norm, colormaps[SEQUENTIAL])
        for axes, m in shown:
            image = colours.to_rgba(np.nan_to_num(m.values, posinf=norm.vmax, neginf=norm.vmin))
            show(axes, _with_blanks(image, m.values), style.cell)
            _write(axes, m, style)
            if style.has_numbers:
                _write_numbers(axes, m.values, image)
        bar = figure.colorbar(colours, ax=[axes for axes, _ in shown], shrink=0.8, pad=0.02)
        bar.ax.tick_params(labelsize=8)
        bar.outline.set_visible(False)
    for axes in panels[len(maps) :]:
        axes.set_visible(False)


def _norm(values: list[Array], scale: str) -> "Normalize":
    from matplotlib.colors import LogNorm, Normalize

    finite = np.concatenate([v[np.isfinite(v)] for v in values])
    most = float(finite.max(initial=0.0)) or 1.0
    if scale == "linear":
        return Normalize(min(0.0, float(finite.min(initial=0.0))), most)
    return LogNorm(most * 1e-4, most, clip=True)


def _with_blanks(image: Any, values: Array) -> Any:
    from matplotlib.colors import to_rgba

    image = image.copy()
    image[values == 0.0] = to_rgba(HIDDEN)
    image[~np.isfinite(values)] = to_rgba(UNDEFINED)
    return image


def _write(axes: "Axes", m: _Map, style: _Style) -> None:
    """Titles, what the axes are, and the tokens."""
    axes.set_title(m.title, fontsize=9, parse_math=False)
    axes.set_ylabel(_axis_name("query", style.cell[0]), fontsize=9)
    axes.set_xlabel(_axis_name("key", style.cell[1]), fontsize=9)
    if style.cell == (1, 1):
        separate(axes, *m.values.shape)
    if style.queries is not None:
        places = _places(len(style.queries), style.height)
        axes.set_yticks(places, [style.queries[n] for n in places], fontsize=8, parse_math=False)
    if style.keys is not None:
        places = _places(len(style.keys), style.width)
        lies = max(map(len, style.keys)) * LETTER < style.width
        texts = [style.keys[n] for n in places]
        axes.set_xticks(places, texts, fontsize=8, rotation=0 if lies else 90, parse_math=False)


def _axis_name(name: str, size: int) -> str:
    return name if size == 1 else f"{name} ({size} a cell)"


def _places(count: int, room: float) -> list[int]:
    """Which of the labels are written: all, or every so many where a line of letters is higher than a cell."""
    return list(range(0, count, math.ceil(LINE_HEIGHT / room)))


def _write_numbers(axes: "Axes", values: Array, image: Any) -> None:
    for (row, column), value in np.ndenumerate(values):
        if value != 0.0 and np.isfinite(value):
            lightness = float(image[row, column, :3] @ [0.299, 0.587, 0.114])
            colour = "black" if lightness > 0.4 else "white"
            text = axes.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=7.5, color=colour)
            text.set_in_layout(False)  # it lies inside its cell, and measuring it would take most of the time
