"""Pictures of who looks at whom: lines between tokens, and weights laid over an image."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from regard import checks
from regard.argument_types import check_types
from regard.draw.figure import SEEN, SEQUENTIAL, check, fitted
from regard.draw.maps import readable
from regard.draw.plain import fitting
from regard.errors import SpecError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_TOKENS = 80  # of a column: beyond that lines cover each other


@check_types
def lines(
    weights: Any, queries: Sequence[str], keys: Sequence[str] | None = None, *, least: float = 0.05, title: str = ""
) -> "Figure":
    """Tokens that look on the left, tokens that are looked at on the right, and a line for each weight from `least` on,
    the darker the more.

    >>> figure = lines([[1.0, 0.0], [0.3, 0.7]], ["to", "be"])
    >>> len(figure.axes[0].lines)
    3
    """
    check()
    from matplotlib.figure import Figure

    found, keys = fitting(weights, queries, keys)
    if max(found.shape) > MOST_TOKENS:
        raise SpecError(f"lines must be between at most {MOST_TOKENS} tokens; got {max(found.shape)}. Draw a map.")
    figure = Figure(figsize=(4.2, 0.9 + 0.2 * max(found.shape)), layout="constrained")
    axes = figure.subplots()
    for (i, j), weight in np.ndenumerate(found):
        if weight >= least:
            axes.plot([0, 1], [i, j], color=SEEN, alpha=float(min(1.0, weight)), linewidth=1.6, solid_capstyle="round")
    for x, tokens, side in ((-0.03, queries, "right"), (1.03, keys, "left")):
        for place, token in enumerate(tokens):
            axes.text(x, place, readable(token), ha=side, va="center", fontsize=8, parse_math=False)
    axes.set_ylim(max(found.shape) - 0.4, -0.6)
    axes.set_xlim(-0.1, 1.1)
    axes.axis("off")
    if title:
        axes.set_title(title, fontsize=10)
    return fitted(figure)


@check_types
def overlay(image: Any, weights: Any, *, strength: float = 0.65, title: str = "") -> "Figure":
    """Weights (height, width) laid over an image (height, width) or (height, width, 3) of numbers from 0 to 1.

    >>> overlay(np.zeros((4, 4)), np.ones((4, 4)), title="all").axes[0].get_title()
    'all'
    """
    check()
    from matplotlib.figure import Figure

    checks.probability(strength, "strength")
    picture, found = checks.array(image, "image", dims=(2, 3)), checks.array(weights, "weights", dims=(2,))
    if not (np.isfinite(found) & (found >= 0)).all():
        raise SpecError(f"weights must be finite numbers of at least 0; got some of {found.min()}.")
    if 0 in picture.shape or (picture.ndim == 3 and picture.shape[2] not in (3, 4)):
        raise SpecError(f"image must be (height, width) or (height, width, 3 or 4); got shape {picture.shape}.")
    if picture.shape[:2] != found.shape:
        raise SpecError(f"weights must be as large as the image, {picture.shape[:2]}; got shape {found.shape}.")
    figure = Figure(figsize=(3.0, 3.0 * found.shape[0] / found.shape[1] + 0.3), layout="constrained")
    axes = figure.subplots()
    axes.imshow(picture, cmap="gray", vmin=0.0, vmax=1.0)
    axes.imshow(found, cmap=SEQUENTIAL, alpha=strength, vmin=0.0)
    axes.axis("off")
    if title:
        axes.set_title(title, fontsize=10)
    return fitted(figure)
