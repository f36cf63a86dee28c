"""Endpoints about the weights of heads: maps, rows, columns and the largest weights."""

import numpy as np
import torch

from regard.errors import ArgumentError
from regard.explorer.api.endpoint import endpoint
from regard.explorer.api.packing import Payload, to_float32_array
from regard.explorer.api.params import Params
from regard.explorer.explorer import Explorer
from regard.explorer.map_pyramid import MAX_PAIRS_AT_ONCE, TILE_SIZE
from regard.explorer.session import Session

MAX_RETURNED_WEIGHTS = 65_536  # per response
MAX_SORTED_PAIRS = 2**26  # per request
MIN_SINK_TEXT_QUERIES = 8  # no sink is reported for fewer queries


@endpoint
def map_info(explorer: Explorer, params: Params) -> Payload:
    """Return the levels of a head's map, its largest values, and its attention sink."""
    session, layer, head, hidden = _head_params(explorer, params)
    explorer.progress_callback(params)("computing the map", None)
    pyramid = session.map_pyramid(layer, head, hidden)
    n_q, n_k = pyramid.head_weights.shape
    means = {level: float(cells.mean.max()) for level, cells in pyramid.cells_by_level.items()}
    sizes = {"num_levels": pyramid.num_levels, "tile_size": TILE_SIZE, "num_queries": n_q, "num_keys": n_k}
    largest = float(pyramid.cells_by_level[pyramid.base_level].max.max())
    values = {"base_level": pyramid.base_level, "max_weight": largest, "max_mean_by_level": means}
    return Payload({**sizes, **values, "sink": _sink(session, layer, head)})


def _sink(session: Session, layer: int, head: int) -> dict[str, float] | None:
    """Return the key with the largest mean weight, estimated from up to 64 of the later queries."""
    head_weights = session.head(layer, head)
    n_q = head_weights.shape[0]
    if n_q < MIN_SINK_TEXT_QUERIES:
        return None
    rows = torch.linspace(n_q // 2, n_q - 1, min(64, n_q - n_q // 2)).long()
    mass = head_weights.weights(rows, slice(None)).mean(0)
    return {"key": int(mass.argmax()), "mass": float(mass.max())}


@endpoint
def tile(explorer: Explorer, params: Params) -> Payload:
    """Return one tile of a head's map; level 0 has single weights."""
    session, layer, head, hidden = _head_params(explorer, params)
    level, row, column = (params.integer(name, 0, 10**9) for name in ("level", "row", "column"))
    cells = session.map_pyramid(layer, head, hidden).tile(level, row, column)
    return Payload({}, {"mean": to_float32_array(cells.mean), "max": to_float32_array(cells.max)})


@endpoint
def query_weights(explorer: Explorer, params: Params) -> Payload:
    """Return the weights of the given queries on every key, as mean and sum over the queries: (heads, n_k)."""
    session, layer, heads, hidden = _layer_params(explorer, params)
    n_q = session.layer(layer).merged_call.q.shape[2]
    queries = params.integers("queries", 0, n_q - 1)
    sums = torch.stack([_summed_rows(session, layer, head, hidden, queries) for head in heads])
    return Payload({"heads": heads}, {"sum": to_float32_array(sums), "mean": to_float32_array(sums / len(queries))})


def _summed_rows(session: Session, layer: int, head: int, hidden_keys: list[int], queries: list[int]) -> torch.Tensor:
    head_weights = session.head(layer, head, hidden_keys)
    step = max(1, MAX_PAIRS_AT_ONCE // head_weights.shape[1])
    blocks = (queries[n : n + step] for n in range(0, len(queries), step))
    return torch.stack([head_weights.weights(block, slice(None)).double().sum(0) for block in blocks]).sum(0)


@endpoint
def key_weights(explorer: Explorer, params: Params) -> Payload:
    """Return the weights of every query on the given keys, as mean and sum over the keys: (heads, n_q)."""
    session, layer, heads, hidden = _layer_params(explorer, params)
    call = session.layer(layer).merged_call
    n_q, n_k = call.q.shape[2], call.k.shape[2]
    keys = params.integers("keys", 0, n_k - 1)
    head_sums = []
    for head in heads:
        head_weights = session.head(layer, head, hidden)
        step = max(1, MAX_PAIRS_AT_ONCE // len(keys))
        blocks = (slice(n, n + step) for n in range(0, n_q, step))
        head_sums.append(torch.cat([head_weights.weights(block, keys).double().sum(1) for block in blocks]))
    sums = torch.stack(head_sums)
    return Payload({"heads": heads}, {"sum": to_float32_array(sums), "mean": to_float32_array(sums / len(keys))})


@endpoint
def top_weights(explorer: Explorer, params: Params) -> Payload:
    """Return the largest weights of each query in [query_start, query_end), up to the fraction `mass` of its row."""
    session, layer, heads, hidden = _layer_params(explorer, params)
    call = session.layer(layer).merged_call
    n_q, n_k = call.q.shape[2], call.k.shape[2]
    first = params.integer("query_start", 0, n_q - 1, 0)
    last = params.integer("query_end", first + 1, n_q, n_q)
    mass = params.number("mass", 0.0, 1.0, 0.9)
    if (last - first) * len(heads) * n_k > MAX_SORTED_PAIRS:
        raise ArgumentError(
            f"top_weights over {n_k} keys and {len(heads)} heads takes at most "
            f"{MAX_SORTED_PAIRS // (n_k * len(heads))} queries; got {last - first}. Request fewer."
        )
    parts: list[tuple[torch.Tensor, ...]] = []
    for head in heads:
        weights, order = session.head(layer, head, hidden).weights(slice(first, last), slice(None)).sort(-1, True)
        mass_before = weights.double().cumsum(-1) - weights
        is_top = (mass_before < mass * weights.double().sum(-1, keepdim=True)) & (weights > 0)
        query, rank = is_top.nonzero(as_tuple=True)
        parts.append((query + first, order[query, rank], torch.full_like(query, head), weights[query, rank]))
    query, key, head_index, weight = (torch.cat(x) for x in zip(*parts, strict=True))
    largest = weight.argsort(descending=True)[:MAX_RETURNED_WEIGHTS].sort().values
    indices = (("query", query), ("key", key), ("head", head_index))
    arrays = {name: x[largest].numpy().astype(np.int32) for name, x in indices}
    values = {"num_omitted": len(weight) - len(largest)}
    return Payload(values, {**arrays, "weight": to_float32_array(weight[largest])})


def _head_params(explorer: Explorer, params: Params) -> tuple[Session, int, int, list[int]]:
    """Return the session, layer, head and hidden keys of a request."""
    session = explorer.find_session(params)
    layer, head = params.integer("layer", 0, 10**6), params.integer("head", 0, 10**6)
    return session, layer, head, params.integers("hidden_keys", 0, 10**9, ())


def _layer_params(explorer: Explorer, params: Params) -> tuple[Session, int, list[int], list[int]]:
    session = explorer.find_session(params)
    layer = params.integer("layer", 0, 10**6)
    heads = params.integers("heads", 0, 10**6, session.layer(layer).head_indices)
    return session, layer, heads, params.integers("hidden_keys", 0, 10**9, ())
