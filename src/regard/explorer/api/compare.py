"""Endpoints that compare two sessions: differences of heads, and difference maps."""

import torch

from regard.errors import ArgumentError
from regard.explorer.api.endpoint import endpoint, slow_endpoint
from regard.explorer.api.packing import Payload, to_float32_array
from regard.explorer.api.params import Params
from regard.explorer.explorer import Explorer
from regard.explorer.map_pyramid import MapPyramid
from regard.explorer.session import Session


@slow_endpoint
def compare(explorer: Explorer, params: Params) -> Payload:
    """Return whether two sessions have equal shapes, and a table of the differences of their heads."""
    one, other = explorer.find_session(params), explorer.find_session(params, "other_session")
    explorer.progress_callback(params)("comparing heads", None)
    try:
        table = one.recording.compare(other.recording).head_differences
    except ArgumentError as error:
        return Payload({"has_equal_shapes": False, "reason": str(error), "heads": [], "columns": []})
    reason = _shape_mismatch_reason(one, other)
    values = {"has_equal_shapes": not reason, "reason": reason}
    return Payload({**values, "heads": list(table), "columns": table.columns})


def _shape_mismatch_reason(session: Session, other_session: Session) -> str:
    """The reason why maps of the common layers cannot be subtracted weight by weight; empty if they can."""
    shapes, other_shapes = (
        {layer.index: (layer.merged_call.q.shape[2], layer.merged_call.k.shape[2]) for layer in compared.layers}
        for compared in (session, other_session)
    )
    for index in sorted(shapes.keys() & other_shapes.keys()):
        (a, b), (c, d) = shapes[index], other_shapes[index]
        if (a, b) != (c, d):
            return (
                f"the texts have {a} x {b} and {c} x {d} pairs, so single weights do not correspond; the maps are "
                "compared on grids of equal size, by the fraction of all weight in each cell."
            )
    return ""


@endpoint
def difference_tile(explorer: Explorer, params: Params) -> Payload:
    """Return a tile of one map minus the other map: differences of the means and of the maxima of cells."""
    one, other = (_head_map(explorer, params, name) for name in ("session", "other_session"))
    if one.head_weights.shape != other.head_weights.shape:
        (a, b), (c, d) = one.head_weights.shape, other.head_weights.shape
        raise ArgumentError(
            f"maps must have the same size to be subtracted; got {a} x {b} and {c} x {d}. Use difference_map."
        )
    level, row, column = (params.integer(name, 0, 10**9) for name in ("level", "row", "column"))
    left, right = one.tile(level, row, column), other.tile(level, row, column)
    return Payload(
        {}, {"mean": to_float32_array(left.mean - right.mean), "max": to_float32_array(left.max - right.max)}
    )


@endpoint
def difference_map(explorer: Explorer, params: Params) -> Payload:
    """Return the difference of two maps of any sizes on one grid; a cell has its fraction of all weight."""
    grid_size = params.integer("grid_size", 8, 64, 64)
    names = ("session", "other_session")
    one, other = (_weight_fractions(_head_map(explorer, params, name), grid_size) for name in names)
    return Payload({"grid_size": grid_size}, {"mean": to_float32_array(one - other)})


def _weight_fractions(pyramid: MapPyramid, grid_size: int) -> torch.Tensor:
    """Return the fraction of all weight in each cell of the grid; the map of a short text is stretched."""
    mean = pyramid.thumbnail(256).mean[None, None].double()
    resized = torch.nn.functional.interpolate(mean, size=(grid_size, grid_size), mode="area")[0, 0]
    return resized / resized.sum().clamp(min=1e-30)


def _head_map(explorer: Explorer, params: Params, session_key: str) -> MapPyramid:
    layer, head = params.integer("layer", 0, 10**6), params.integer("head", 0, 10**6)
    if session_key == "other_session":  # heads of two models may have different indices
        layer, head = params.integer("other_layer", 0, 10**6, layer), params.integer("other_head", 0, 10**6, head)
    return explorer.find_session(params, session_key).map_pyramid(
        layer, head, params.integers("hidden_keys", 0, 10**9, ())
    )
