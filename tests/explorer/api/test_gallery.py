"""The endpoint of the gallery: the entries of the catalog, and the levels of their weights."""

import numpy as np

from regard.explorer.api.packing import pack, unpack
from regard.explorer.api.registry import dispatch
from regard.explorer.explorer import Explorer
from regard.mechanisms import catalog
from regard.mechanisms.weight_matrices import weight_matrix


def test_the_gallery_has_every_entry_with_its_properties_and_picture() -> None:
    response = unpack(pack(dispatch(Explorer(), "gallery")))
    entries, levels = response.values["mechanisms"], response.arrays["levels"]
    assert [entry["name"] for entry in entries] == [m.name for m in catalog()]
    assert levels.shape == (len(entries), 32, 32) and levels.dtype == np.uint8
    for m, entry, picture in zip(catalog(), entries, levels, strict=True):
        assert (entry["idea"], entry["example"], entry["exact"]) == (m.idea, m.example, m.exact)
        assert entry["properties"] == [name for name in response.values["properties"] if m.properties[name]]
        weights = weight_matrix(m.name).numpy()
        np.testing.assert_array_equal(picture == 0, weights == 0)
        np.testing.assert_array_equal(picture > 127, weights < 0)
