"""Pictures of masks, of attention weights, of heads, of comparisons and of curves: arrays in, a matplotlib figure out.

Nothing is measured here: a map of a long sequence is drawn from what `measure.pool` found. matplotlib is asked for
when something is drawn, and comes with `pip install 'regard[draw]'`; `svg_weights`, `svg_lines`, `text_weights` and
`text_charts` need nothing.

>>> from regard import mask
>>> figure = weights([[1.0, 0.0], [0.25, 0.75]], tokens=["to", "be"])
>>> figure.axes[0].get_xlabel()
'key'
"""

from regard.draw.charts import Image, Motion, Panel, Series, charts
from regard.draw.comparison import comparison
from regard.draw.growth import growth
from regard.draw.heads import heads, multiples
from regard.draw.lines import lines, overlay
from regard.draw.maps import weights
from regard.draw.masks import mask
from regard.draw.plain import svg_lines, svg_weights, text_weights
from regard.draw.text_charts import text_charts

__all__ = [
    "Image",
    "Motion",
    "Panel",
    "Series",
    "charts",
    "comparison",
    "growth",
    "heads",
    "lines",
    "mask",
    "multiples",
    "overlay",
    "svg_lines",
    "svg_weights",
    "text_charts",
    "text_weights",
    "weights",
]
