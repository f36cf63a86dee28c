"""Plots without matplotlib: SVG for a page or a notebook, and text for a terminal."""

from collections.abc import Sequence
from html import escape
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from regard import checks
from regard.argument_types import check_types
from regard.errors import ArgumentError
from regard.files.atomic import write_text
from regard.plot.weight_maps import shorten_token
from regard.tensors.convert import ArrayLike

CELL_PX, LETTER_PX = 18, 7  # pixels
SHADES = " ░▒▓█"
WEIGHT_RGB = (36, 86, 199)


class Svg(str):
    """An SVG image as text. Notebooks display it, and `save` writes it to a file."""

    def _repr_svg_(self) -> str:
        return str(self)

    def save(self, path: str | Path) -> None:
        """Write the image to a file."""
        write_text(path, self)


@check_types
def svg_weights(weights: ArrayLike, queries: Sequence[str], keys: Sequence[str] | None = None) -> Svg:
    """Return a map of weights (n_q, n_k) with its tokens. The tooltip of a cell has its weight.

    `queries` are the query tokens, `keys` the key tokens; by default the query tokens.

    >>> svg_weights([[1.0, 0.0], [0.5, 0.5]], ["to", "be"]).count("<rect")
    4
    """
    values, keys = check_weights_and_tokens(weights, queries, keys)
    left, top = (12 + LETTER_PX * max((len(shorten_token(t)) for t in tokens), default=0) for tokens in (queries, keys))
    parts = []
    max_weight = values.max() or 1.0
    for (i, j), weight in np.ndenumerate(values):
        x, y = left + j * CELL_PX, top + i * CELL_PX
        tooltip = f"{escape(shorten_token(queries[i]))} → {escape(shorten_token(keys[j]))}: {weight:.4f}"
        color = "rgb({:.0f},{:.0f},{:.0f})".format(*(255 - (255 - c) * weight / max_weight for c in WEIGHT_RGB))
        parts.append(
            f'<rect x="{x}" y="{y}" width="{CELL_PX - 1}" height="{CELL_PX - 1}" fill="{color}">'
            f"<title>{tooltip}</title></rect>"
        )
    for i, token in enumerate(queries):
        parts.append(_svg_text(left - 6, top + i * CELL_PX + 13, token, "end"))
    for j, token in enumerate(keys):
        x = left + j * CELL_PX + 12
        parts.append(_svg_text(x, top - 6, token, "start", f' transform="rotate(-90 {x} {top - 6})"'))
    return _svg_document(left + len(keys) * CELL_PX + 6, top + len(queries) * CELL_PX + 6, parts)


@check_types
def svg_token_lines(
    weights: ArrayLike, queries: Sequence[str], keys: Sequence[str] | None = None, *, min_weight: float = 0.05
) -> Svg:
    """Return query tokens on the left, key tokens on the right, and a line for each weight of at least `min_weight`.

    weights is (n_q, n_k). `queries` are the query tokens, `keys` the key tokens; by default the query tokens.
    `min_weight` defaults to 0.05.

    >>> svg_token_lines([[1.0, 0.0], [0.3, 0.7]], ["to", "be"]).count("<line")
    3
    """
    values, keys = check_weights_and_tokens(weights, queries, keys)
    left = 12 + LETTER_PX * max((len(shorten_token(t)) for t in queries), default=0)
    right = left + 160
    parts = [
        f'<line x1="{left}" y1="{i * CELL_PX + 15}" x2="{right}" y2="{j * CELL_PX + 15}" stroke="rgb{WEIGHT_RGB}" '
        f'stroke-width="1.6" stroke-opacity="{min(1.0, weight):.3f}"/>'
        for (i, j), weight in np.ndenumerate(values)
        if weight >= min_weight
    ]
    parts += [_svg_text(left - 6, i * CELL_PX + 19, token, "end") for i, token in enumerate(queries)]
    parts += [_svg_text(right + 6, j * CELL_PX + 19, token, "start") for j, token in enumerate(keys)]
    width = right + 18 + LETTER_PX * max((len(shorten_token(t)) for t in keys), default=0)
    return _svg_document(width, max(values.shape) * CELL_PX + 12, parts)


@check_types
def text_weights(weights: ArrayLike, queries: Sequence[str], keys: Sequence[str] | None = None) -> str:
    """Return a map of weights (n_q, n_k) for a terminal: one row per query, with its largest weight and key.

    `queries` are the query tokens, `keys` the key tokens; by default the query tokens.

    >>> print(text_weights([[1.0, 0.0], [0.4, 0.6]], ["to", "be"]))
    to █  1.00 to
    be ▒▒ 0.60 be
    """
    values, keys = check_weights_and_tokens(weights, queries, keys)
    label_width = max((len(shorten_token(t)) for t in queries), default=0)
    lines = []
    for token, row in zip(queries, values, strict=True):
        shades = "".join(SHADES[min(4, round(4 * float(weight)))] if weight > 0 else " " for weight in row)
        best = int(row.argmax())
        lines.append(f"{shorten_token(token).rjust(label_width)} {shades} {row[best]:.2f} {shorten_token(keys[best])}")
    return "\n".join(lines)


def check_weights_and_tokens(
    weights: ArrayLike, queries: Sequence[str], keys: Sequence[str] | None
) -> tuple[NDArray[np.float64], Sequence[str]]:
    """Return the weights as an array, and the key tokens, by default the query tokens."""
    values = checks.array(weights, "weights")
    keys = queries if keys is None else keys
    if values.shape != (len(queries), len(keys)) or 0 in values.shape:
        raise ArgumentError(
            f"weights must have shape ({len(queries)}, {len(keys)}), like the tokens; got shape {values.shape}."
        )
    return values, keys


def _svg_text(x: float, y: float, token: str, anchor: str, attributes: str = "") -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}"{attributes}>{escape(shorten_token(token))}</text>'


def _svg_document(width: float, height: float, parts: list[str]) -> Svg:
    style = 'font-family="ui-monospace, monospace" font-size="11"'
    background = f'<path d="M0 0H{width:.0f}V{height:.0f}H0Z" fill="white"/>'
    opening_tag = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" {style}>'
    return Svg(opening_tag + background + "".join(parts) + "</svg>")
