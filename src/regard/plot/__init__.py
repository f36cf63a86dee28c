"""Plots of masks, attention weights, heads, comparisons and curves, as matplotlib figures.

The functions take arrays and compute no attention. For the map of a long sequence pass the result of
`measure.pooled_map`. matplotlib is imported by the first plot; install it with `pip install '.[plot]'` in
the repository. `svg_weights`, `svg_token_lines`, `text_weights` and `text_charts` do not need it.

>>> from regard import mask
>>> figure = weights([[1.0, 0.0], [0.25, 0.75]], tokens=["to", "be"])
>>> figure.axes[0].get_xlabel()
'key'
"""

from regard.plot.chart_panels import ImagePanel, Panel, PointAnimation, Series, charts
from regard.plot.comparison_figure import comparison
from regard.plot.connections import overlay, token_lines
from regard.plot.growth_curves import growth
from regard.plot.head_grids import head_maps, heads
from regard.plot.mask_maps import mask
from regard.plot.svg_and_text import svg_token_lines, svg_weights, text_weights
from regard.plot.terminal_charts import text_charts
from regard.plot.weight_maps import weights

__all__ = [
    "ImagePanel",
    "Panel",
    "PointAnimation",
    "Series",
    "charts",
    "comparison",
    "growth",
    "head_maps",
    "heads",
    "mask",
    "overlay",
    "svg_token_lines",
    "svg_weights",
    "text_charts",
    "text_weights",
    "token_lines",
    "weights",
]


def __dir__() -> list[str]:
    return sorted(__all__)
