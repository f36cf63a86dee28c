"""Pictures without any library: SVG for a page or a notebook, and letters for a terminal."""

from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np

from regard import checks
from regard.argument_types import check_types
from regard.draw.maps import readable
from regard.errors import SpecError
from regard.files.atomic import write_text

CELL, LETTER = 18, 7  # pixels
SHADES = " ░▒▓█"
INK = (11, 74, 120)


class Svg(str):
    """A drawing as SVG text, which a notebook shows and `save` writes."""

    def _repr_svg_(self) -> str:
        return str(self)

    def save(self, path: Any) -> None:
        """Writes the drawing into a file."""
        write_text(path, self)


@check_types
def svg_weights(weights: Any, queries: Sequence[str], keys: Sequence[str] | None = None) -> Svg:
    """A map of weights with its tokens; a cell tells its number to who points at it.

    >>> svg_weights([[1.0, 0.0], [0.5, 0.5]], ["to", "be"]).count("<rect")
    4
    """
    found, keys = fitting(weights, queries, keys)
    left, top = (12 + LETTER * max((len(readable(t)) for t in tokens), default=0) for tokens in (queries, keys))
    parts = []
    brightest = found.max() or 1.0
    for (i, j), weight in np.ndenumerate(found):
        x, y = left + j * CELL, top + i * CELL
        told = f"{escape(readable(queries[i]))} → {escape(readable(keys[j]))}: {weight:.4f}"
        colour = "rgb({:.0f},{:.0f},{:.0f})".format(*(255 - (255 - c) * weight / brightest for c in INK))
        parts.append(
            f'<rect x="{x}" y="{y}" width="{CELL - 1}" height="{CELL - 1}" fill="{colour}"><title>{told}</title></rect>'
        )
    for i, token in enumerate(queries):
        parts.append(_text(left - 6, top + i * CELL + 13, token, "end"))
    for j, token in enumerate(keys):
        x = left + j * CELL + 12
        parts.append(_text(x, top - 6, token, "start", f' transform="rotate(-90 {x} {top - 6})"'))
    return _page(left + len(keys) * CELL + 6, top + len(queries) * CELL + 6, parts)


@check_types
def svg_lines(weights: Any, queries: Sequence[str], keys: Sequence[str] | None = None, *, least: float = 0.05) -> Svg:
    """Tokens on both sides, and a line for each weight from `least` on.

    >>> svg_lines([[1.0, 0.0], [0.3, 0.7]], ["to", "be"]).count("<line")
    3
    """
    found, keys = fitting(weights, queries, keys)
    left = 12 + LETTER * max((len(readable(t)) for t in queries), default=0)
    right = left + 160
    parts = [
        f'<line x1="{left}" y1="{i * CELL + 15}" x2="{right}" y2="{j * CELL + 15}" stroke="rgb{INK}" '
        f'stroke-width="1.6" stroke-opacity="{min(1.0, weight):.3f}"/>'
        for (i, j), weight in np.ndenumerate(found)
        if weight >= least
    ]
    parts += [_text(left - 6, i * CELL + 19, token, "end") for i, token in enumerate(queries)]
    parts += [_text(right + 6, j * CELL + 19, token, "start") for j, token in enumerate(keys)]
    wide = right + 18 + LETTER * max((len(readable(t)) for t in keys), default=0)
    return _page(wide, max(found.shape) * CELL + 12, parts)


@check_types
def text_weights(weights: Any, queries: Sequence[str], keys: Sequence[str] | None = None) -> str:
    """A map of weights for a terminal: five shades, queries from top to bottom, the brightest key named.

    >>> print(text_weights([[1.0, 0.0], [0.4, 0.6]], ["to", "be"]))
    to █  1.00 to
    be ▒▒ 0.60 be
    """
    found, keys = fitting(weights, queries, keys)
    side = max((len(readable(t)) for t in queries), default=0)
    lines = []
    for token, row in zip(queries, found, strict=True):
        shades = "".join(SHADES[min(4, round(4 * float(weight)))] if weight > 0 else " " for weight in row)
        best = int(row.argmax())
        lines.append(f"{readable(token).rjust(side)} {shades} {row[best]:.2f} {readable(keys[best])}")
    return "\n".join(lines)


def fitting(weights: Any, queries: Sequence[str], keys: Sequence[str] | None) -> tuple[Any, Sequence[str]]:
    """Weights as an array, and the tokens of its columns; those of its rows unless given."""
    found = checks.array(weights, "weights")
    keys = queries if keys is None else keys
    if found.shape != (len(queries), len(keys)) or 0 in found.shape:
        raise SpecError(f"weights must be {len(queries)} x {len(keys)}, as tokens are; got shape {found.shape}.")
    return found, keys


def _text(x: float, y: float, token: str, anchor: str, more: str = "") -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}"{more}>{escape(readable(token))}</text>'


def _page(width: float, height: float, parts: list[str]) -> Svg:
    style = 'font-family="ui-monospace, monospace" font-size="11"'
    paper = f'<path d="M0 0H{width:.0f}V{height:.0f}H0Z" fill="white"/>'
    opened = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" {style}>'
    return Svg(opened + paper + "".join(parts) + "</svg>")
