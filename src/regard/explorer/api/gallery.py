"""The endpoint of the gallery: every mechanism of the catalog, with a picture of its weights."""

from dataclasses import asdict

import numpy as np

from regard.cache import memoize
from regard.explorer.api.endpoint import endpoint
from regard.explorer.api.packing import Payload
from regard.explorer.api.params import Params
from regard.explorer.explorer import Explorer
from regard.mechanisms.registry import catalog
from regard.mechanisms.weight_matrices import color_levels, weight_matrix


@endpoint
def gallery(explorer: Explorer, params: Params) -> Payload:
    """Return the entries of the catalog, and the color levels of their weights, (mechanisms, 32, 32)."""
    return _gallery()


@memoize()
def _gallery() -> Payload:
    entries = [{**asdict(m), "properties": [name for name, holds in m.properties.items() if holds]} for m in catalog()]
    levels = np.stack([color_levels(weight_matrix(m.name)) for m in catalog()])
    return Payload({"mechanisms": entries, "properties": list(catalog()[0].properties)}, {"levels": levels})
