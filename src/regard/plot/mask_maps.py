"""Plots of masks: single positions of small masks, regions of large ones."""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from regard import checks
from regard.argument_types import check_types
from regard.errors import ArgumentError
from regard.expr.closed_expr import QueryOffset
from regard.expr.tile_coverage import TileCoverage
from regard.mask import Mask, MaskLike, as_mask
from regard.plot.figure import add_title, create_panels, draw_cell_borders, draw_cells, fit_to_content, panel_size
from regard.plot.style import (
    HIDDEN_COLOR,
    LINE_COLOR,
    PARTIAL_COLOR,
    TEXT_SIZE_PT,
    VISIBLE_COLOR,
    apply_style,
    require_matplotlib,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_MASK_CELLS = 128  # per side; masks up to this size are drawn position by position

_LEVEL_COLORS = np.array(
    [[int(c[n : n + 2], 16) for n in (1, 3, 5)] for c in (HIDDEN_COLOR, PARTIAL_COLOR, VISIBLE_COLOR)], np.uint8
)


@check_types
def mask(
    mask: MaskLike,
    n_q: int,
    n_k: int | None = None,
    *,
    batch_size: int = 1,
    num_heads: int = 1,
    query_offset: QueryOffset | None = None,
    title: str | None = None,
) -> "Figure":
    """Plot which keys each query may attend to, with queries from top to bottom and keys from left to right.

    Up to 128 x 128 positions are drawn one by one. In a larger mask a cell is a square region: dark if all of its pairs
    are visible, lighter if some are, empty if none are. Regions are computed from bounds of the mask's formula, without
    visiting the positions; a region that the bounds do not decide is drawn as partial. A mask that depends on the batch
    element or the head has a panel for each.

    Args:
        mask: a mask as in `regard.attention`.
        n_q: number of queries.
        n_k: number of keys; `n_q` by default.
        batch_size: number of batch elements. Default: 1.
        num_heads: number of heads. Default: 1.
        query_offset: position of the first query among the keys, as in `regard.attention`.
        title: title of the figure; the formula of the mask by default.

    >>> from regard.mask import causal, sliding_window
    >>> figure = mask(causal() & sliding_window(256), 100_000)
    >>> figure.get_suptitle()
    'j <= p and p - 256 < j and j < p + 256'
    """
    require_matplotlib()
    n_k = n_q if n_k is None else n_k
    for name, count, minimum in (
        ("n_q", n_q, 0),
        ("n_k", n_k, 0),
        ("batch_size", batch_size, 1),
        ("num_heads", num_heads, 1),
    ):
        checks.integer(count, name, at_least=minimum, at_most=checks.MAX_DIM_SIZE)
    if min(n_q, n_k) < 1:
        raise ArgumentError(f"n_q and n_k must be at least 1; got n_q={n_q}, n_k={n_k}.")
    parsed = as_mask(mask)
    size = _region_size(max(n_q, n_k))
    tiles = parsed.tile_coverage(
        n_q, n_k, tile_size=size, batch_size=batch_size, num_heads=num_heads, query_offset=query_offset
    )
    if size == 1:
        visible = parsed.to_dense(n_q, n_k, batch_size=batch_size, num_heads=num_heads, query_offset=query_offset)
        levels = 2 * visible[: tiles.batch_size, : tiles.num_heads].numpy().astype(np.int64)
    else:
        levels = _visibility_levels(tiles)
    return _mask_figure(parsed, levels, size, (n_q, n_k), title)


def _region_size(length: int) -> int:
    """Return the side of a region: a power of two, because bounds over aligned regions are exact."""
    return 1 << (-(-length // MAX_MASK_CELLS) - 1).bit_length()


def _visibility_levels(tiles: TileCoverage) -> NDArray[np.int64]:
    """Return 0 (hidden), 1 (partial) or 2 (visible) for each panel and cell."""
    levels = np.zeros((tiles.batch_size, tiles.num_heads, *tiles.grid_shape), np.int64)
    tile_list = tiles.to_tile_list()
    levels[tile_list.b, tile_list.h, tile_list.row, tile_list.column] = np.where(tile_list.is_full, 2, 1)
    return levels


def _mask_figure(
    mask: Mask, levels: NDArray[np.int64], size: int, lengths: tuple[int, int], title: str | None
) -> "Figure":
    batch_size, num_heads, rows, columns = levels.shape
    num_panels = batch_size * num_heads
    is_grid = min(batch_size, num_heads) > 1
    panel_rows, panel_columns = (batch_size, num_heads) if is_grid else (-(-num_panels // 4), min(4, num_panels))
    side = 0.16 if max(rows, columns) <= 32 else 0.035
    figure, panels = create_panels(panel_rows, panel_columns, *panel_size(rows, columns, side, panel_columns))
    all_axes = [axes for row in panels for axes in row]
    for axes, (b, h) in zip(all_axes, np.ndindex(batch_size, num_heads), strict=False):
        draw_cells(axes, _LEVEL_COLORS[levels[b, h]], (size, size), lengths)
        if size == 1:
            draw_cell_borders(axes, rows, columns)
        names = [f"batch element {b}"] * (batch_size > 1) + [f"head {h}"] * (num_heads > 1)
        axes.set_title(", ".join(names))
        axes.set_xlabel("key")
        axes.set_ylabel("query")
    for axes in all_axes[num_panels:]:
        axes.set_visible(False)
    add_title(figure, str(mask) if title is None else title)
    _legend(figure, levels, (min(size, lengths[0]), min(size, lengths[1])))
    return fit_to_content(apply_style(figure))


def _legend(figure: "Figure", levels: NDArray[np.int64], region: tuple[int, int]) -> None:
    from matplotlib.patches import Patch

    counts = np.bincount(levels.ravel(), minlength=3)
    entries = [(VISIBLE_COLOR, f"visible ({counts[2]:,})"), (HIDDEN_COLOR, f"hidden ({counts[0]:,})")]
    if region != (1, 1):
        entries.insert(1, (PARTIAL_COLOR, f"partial ({counts[1]:,})"))
    figure.legend(
        handles=[Patch(facecolor=color, edgecolor=LINE_COLOR, linewidth=0.5, label=label) for color, label in entries],
        title=None if region == (1, 1) else f"regions of {region[0]:,} x {region[1]:,} positions",
        title_fontsize=TEXT_SIZE_PT,
        fontsize=TEXT_SIZE_PT,
        ncols=len(entries),
        columnspacing=1.2,
        handlelength=1.2,
        loc="outside lower center",
        frameon=False,
    )
