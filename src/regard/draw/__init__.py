"""Pictures of masks, of attention weights and of comparisons: arrays in, a matplotlib figure out.

Nothing is measured here: a map of a long sequence is drawn from what `measure.pool` found. matplotlib is asked for
when something is drawn, and comes with `pip install 'regard[draw]'`.

>>> from regard import mask
>>> figure = weights([[1.0, 0.0], [0.25, 0.75]], tokens=["to", "be"])
>>> figure.axes[0].get_xlabel()
'key'
"""

from regard.draw.comparison import comparison
from regard.draw.maps import weights
from regard.draw.masks import mask

__all__ = ["comparison", "mask", "weights"]
