"""Plots of weights as lines between tokens, and as an overlay of an image."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from regard import checks
from regard.argument_types import check_types
from regard.errors import ArgumentError
from regard.plot.figure import add_title, fit_to_content
from regard.plot.style import (
    CURVE_COLORS,
    MUTED_COLOR,
    OVERLAY_COLOR,
    apply_style,
    new_figure,
    require_matplotlib,
)
from regard.plot.svg_and_text import check_weights_and_tokens
from regard.plot.weight_maps import shorten_token
from regard.tensors.convert import ArrayLike

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_LINE_TOKENS = 80  # per side: more lines would cover each other
LINE_TOKEN_HEIGHT_IN = 0.21  # inches of a token


@check_types
def token_lines(
    weights: ArrayLike,
    queries: Sequence[str],
    keys: Sequence[str] | None = None,
    *,
    min_weight: float = 0.05,
    title: str = "",
) -> "Figure":
    """Plot query tokens on the left, key tokens on the right, and a line for each weight.

    Args:
        weights: (n_q, n_k), at most 80 x 80. The opacity of a line is its weight.
        queries: the query tokens.
        keys: the key tokens; the query tokens by default.
        min_weight: smaller weights are not drawn. Default: 0.05.
        title: title of the figure. Default: none.

    >>> figure = token_lines([[1.0, 0.0], [0.3, 0.7]], ["to", "be"])
    >>> len(figure.axes[0].lines)
    3
    """
    require_matplotlib()

    values, keys = check_weights_and_tokens(weights, queries, keys)
    if max(values.shape) > MAX_LINE_TOKENS:
        raise ArgumentError(
            f"token_lines supports at most {MAX_LINE_TOKENS} tokens; got {max(values.shape)}. Use plot.weights."
        )
    figure = new_figure(4.6, 1.2 + LINE_TOKEN_HEIGHT_IN * max(values.shape))
    axes = figure.subplots()
    for (i, j), weight in np.ndenumerate(values):
        if weight >= min_weight:
            style = dict(color=CURVE_COLORS[0], alpha=float(min(1.0, weight)), linewidth=1.8)
            axes.plot([0, 1], [i, j], solid_capstyle="round", **style)  # type: ignore[arg-type]  # keyword arguments of matplotlib
    for x, tokens, side in ((-0.03, queries, "right"), (1.03, keys, "left")):
        for n, token in enumerate(tokens):
            axes.text(x, n, shorten_token(token), ha=side, va="center", parse_math=False)
    for x, name, side in ((-0.03, "query", "right"), (1.03, "key", "left")):
        axes.text(x, -1.1, name, ha=side, va="center", color=MUTED_COLOR)
    axes.set_ylim(max(values.shape) - 0.4, -1.6)
    axes.set_xlim(-0.1, 1.1)
    axes.axis("off")
    if title:
        add_title(figure, title)
    return fit_to_content(apply_style(figure))


@check_types
def overlay(image: ArrayLike, weights: ArrayLike, *, alpha: float = 0.65, title: str = "") -> "Figure":
    """Plot weights over an image.

    Args:
        image: (height, width) or (height, width, 3 or 4), with values from 0 to 1.
        weights: (height, width), at least 0.
        alpha: opacity of the largest weight; smaller weights are more transparent. Default: 0.65.
        title: title of the figure. Default: none.

    >>> overlay(np.zeros((4, 4)), np.ones((4, 4)), title="all").get_suptitle()
    'all'
    """
    require_matplotlib()

    from matplotlib.colors import ListedColormap

    checks.probability(alpha, "alpha")
    pixels, values = checks.array(image, "image", dims=(2, 3)), checks.array(weights, "weights", dims=(2,))
    if not (np.isfinite(values) & (values >= 0)).all():
        raise ArgumentError(f"weights must be finite and at least 0; got a minimum of {values.min()}.")
    if 0 in pixels.shape or (pixels.ndim == 3 and pixels.shape[2] not in (3, 4)):
        raise ArgumentError(f"image must be (height, width) or (height, width, 3 or 4); got shape {pixels.shape}.")
    if pixels.shape[:2] != values.shape:
        raise ArgumentError(f"weights must have the shape of the image, {pixels.shape[:2]}; got shape {values.shape}.")
    figure = new_figure(3.0, 3.0 * values.shape[0] / values.shape[1] + 0.3)
    axes = figure.subplots()
    axes.imshow(pixels, cmap="gray", vmin=0.0, vmax=1.0)
    axes.imshow(values, cmap=ListedColormap([OVERLAY_COLOR]), alpha=_opacities(values, alpha), vmin=0.0)
    axes.axis("off")
    if title:
        add_title(figure, title)
    return fit_to_content(apply_style(figure))


def _opacities(values: NDArray[np.float64], alpha: float) -> NDArray[np.float64]:
    """Return an opacity for each weight: 0 for a weight of 0, `alpha` for the largest."""
    return np.asarray(alpha * values / (values.max(initial=0.0) or 1.0))
