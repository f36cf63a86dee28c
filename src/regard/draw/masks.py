"""Pictures of masks: every position where there are few, regions where there are many."""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from regard import checks
from regard.argument_types import check_types
from regard.draw.figure import HIDDEN, PARTIAL, SEEN, check, fitted, heading, panel_size, paper, separate, show
from regard.errors import SpecError
from regard.spec.mask import Mask, as_mask
from regard.spec.regions import Cover

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CELLS = 128  # a side, at most: as many positions are drawn one by one

_COLOURS = np.array([[int(c[n : n + 2], 16) for n in (1, 3, 5)] for c in (HIDDEN, PARTIAL, SEEN)], np.uint8)


@check_types
def mask(
    mask: Any,
    n_q: int,
    n_k: int | None = None,
    *,
    batch: int = 1,
    heads: int = 1,
    start: Any = None,
    title: str | None = None,
) -> "Figure":
    """A picture of who may look at whom, queries from top to bottom, keys from left to right.

    Up to 128 x 128 positions are drawn one by one. Beyond that a cell is a square region of positions: dark where all
    are seen, lighter where some are, empty where none is. Regions are found from the mask's formula without visiting
    the positions, so a million of them cost little more than a thousand; one the formula's bounds leave a doubt about
    counts as partial. A mask that tells batch elements or heads apart gets a panel for each of them.

    `mask` is whatever `attention` takes as one; `start` is as there; `title=None` prints the mask's formula.

    >>> from regard.spec.mask import causal, window
    >>> figure = mask(causal() & window(256), 100_000)
    >>> figure.get_suptitle()
    'j <= p and p - 256 < j and j < p + 256'
    """
    check()
    n_k = n_q if n_k is None else n_k
    for name, count in (("n_q", n_q), ("n_k", n_k), ("batch", batch), ("heads", heads)):
        checks.whole_number(count, name, at_least=1 if name in ("batch", "heads") else 0, at_most=checks.MAX_SIZE)
    if min(n_q, n_k) < 1:
        raise SpecError(f"a mask must have at least 1 query and 1 key to be drawn; got n_q={n_q}, n_k={n_k}.")
    drawn = as_mask(mask)
    size = _region_size(max(n_q, n_k))
    tiles = drawn.regions(n_q, n_k, size=size, batch=batch, heads=heads, start=start)
    if size == 1:
        seen = drawn.dense(n_q, n_k, batch=batch, heads=heads, start=start)
        levels = 2 * seen[: tiles.batch, : tiles.heads].numpy().astype(np.int64)
    else:
        levels = _levels(tiles)
    return _drawn(drawn, levels, size, (n_q, n_k), title)


def _region_size(length: int) -> int:
    """A power of two, since bounds over aligned regions are exact."""
    return 1 << (-(-length // CELLS) - 1).bit_length()


def _levels(tiles: Cover) -> NDArray[np.int64]:
    """0 hidden, 1 partial, 2 seen, for each panel and cell."""
    levels = np.zeros((tiles.batch, tiles.heads, *tiles.grid), np.int64)
    found = tiles.tiles()
    levels[found.b, found.h, found.row, found.column] = np.where(found.full, 2, 1)
    return levels


def _drawn(mask: Mask, levels: NDArray[np.int64], size: int, lengths: tuple[int, int], title: str | None) -> "Figure":
    batch, heads, rows, columns = levels.shape
    down, beside = (batch, heads) if min(batch, heads) > 1 else (-(-batch * heads // 4), min(4, batch * heads))
    side = 0.16 if max(rows, columns) <= 32 else 0.04
    figure, panels = paper(down, beside, *panel_size(rows, columns, side, beside))
    every = [axes for line in panels for axes in line]
    for axes, (b, h) in zip(every, np.ndindex(batch, heads), strict=False):
        show(axes, _COLOURS[levels[b, h]], (size, size), lengths)
        if size == 1:
            separate(axes, rows, columns)
        names = [f"batch element {b}"] * (batch > 1) + [f"head {h}"] * (heads > 1)
        axes.set_title(", ".join(names), fontsize=9)
        axes.set_xlabel("key", fontsize=9)
        axes.set_ylabel("query", fontsize=9)
    for axes in every[batch * heads :]:
        axes.set_visible(False)
    heading(figure, str(mask) if title is None else title)
    _legend(figure, levels, (min(size, lengths[0]), min(size, lengths[1])))
    return fitted(figure)


def _legend(figure: "Figure", levels: NDArray[np.int64], region: tuple[int, int]) -> None:
    from matplotlib.patches import Patch

    count = np.bincount(levels.ravel(), minlength=3)
    names = [(SEEN, f"seen ({count[2]:,})"), (HIDDEN, f"hidden ({count[0]:,})")]
    if region != (1, 1):
        names.insert(1, (PARTIAL, f"partial ({count[1]:,})"))
    figure.legend(
        handles=[Patch(facecolor=colour, edgecolor="#9a9a9a", linewidth=0.5, label=name) for colour, name in names],
        title=None if region == (1, 1) else f"regions of {region[0]:,} x {region[1]:,} positions",
        title_fontsize=8,
        fontsize=8,
        ncols=len(names),
        loc="outside lower center",
        frameon=False,
    )
