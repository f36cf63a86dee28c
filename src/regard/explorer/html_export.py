"""Export the page and its responses as one HTML file, which needs neither a network nor Python."""

import json
import zlib
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from html import escape
from typing import Any

import numpy as np

from regard.errors import ArgumentError
from regard.explorer import bundle
from regard.explorer.api.costs import COST_PAGE_MODEL_SIZES, COST_SEQ_LENS
from regard.explorer.api.packing import Payload, pack
from regard.explorer.api.params import MAX_LIST_LENGTH, Params
from regard.explorer.cost_models import COST_MODELS
from regard.explorer.explorer import Explorer
from regard.explorer.map_pyramid import TILE_SIZE
from regard.explorer.session import Session
from regard.walkthrough.examples import WALKTHROUGH_EXAMPLES

DEFAULT_EXPORT_BYTES, MAX_EXPORT_BYTES = 12 * 2**20, 200 * 2**20  # of stored responses
MAX_EXPORTED_HEADS = 64  # heads exported by default
MAX_ARITHMETIC_PAIRS = 2**18  # a head with more pairs has no stored vectors
MAX_STORED_CELLS = 2**12  # a head with more pairs has no stored cells
THUMBNAIL_SIZE = 64

ApiRequest = tuple[str, dict[str, Any]]  # an endpoint and its parameters
Dispatch = Callable[[Explorer, str, Any], Payload]  # `api.registry.dispatch`, which imports this module


def build_html_file(
    explorer: Explorer,
    dispatch: Dispatch,
    session_id: int,
    heads: Sequence[tuple[int, int]],
    max_bytes: int,
    cells: Sequence[Any],
) -> tuple[str, list[str]]:
    """Return the HTML text and a list of omitted parts.

    `heads` are pairs (layer, head), the most important first. Thumbnails of every head are always included. The maps
    of `heads` follow, coarse levels of all heads before finer ones, and then the vectors from which the page computes
    single weights, until `max_bytes` bytes are used. `cells` are (layer, head, query, key) whose steps are included.
    """
    store = _ResponseStore(explorer, dispatch, max_bytes)
    session = explorer.sessions[session_id]
    store.store([("state{}", _offline_state(explorer, dispatch, session_id))])
    for request in _base_requests(session, session_id):
        store.add(*request)
    for layer, head, query, key in cells:
        store.add("cell_steps", {"session": session_id, "layer": layer, "head": head, "query": query, "key": key})
    _add_map_tiles(store, session, session_id, heads)
    for run in dispatch(explorer, "experiments", {}).values["completed_runs"]:
        store.add_all(f"the experiment {run['name']}", [("experiment", run)])
    for layer, head in heads:
        requests = _arithmetic_requests(store, session, {"session": session_id, "layer": layer, "head": head})
        if not store.add_all(f"arithmetic of layer {layer}, head {head} and later heads", requests):
            break
    return _offline_html(session.title, store.responses), store.omitted


def _add_map_tiles(
    store: "_ResponseStore", session: Session, session_id: int, heads: Sequence[tuple[int, int]]
) -> None:
    """Add the levels of all heads, from the coarsest to the finest, until one does not fit.

    The page shows the thumbnail of a head without any level.
    """
    finest_levels: dict[tuple[int, int], int] = {}
    num_levels = {(layer, head): session.map_pyramid(layer, head).num_levels for layer, head in heads}
    for level in reversed(range(max(num_levels.values(), default=0))):
        for layer, head in heads:
            if level >= num_levels[layer, head]:
                continue
            head_params = {"session": session_id, "layer": layer, "head": head}
            tiles = _tile_requests(head_params, session.map_pyramid(layer, head).head_weights.shape, level)
            size = f"cells of {2**level} x {2**level} weights" if level else "single weights"
            later_heads = " and later heads" if (layer, head) != heads[-1] else ""
            if not store.add_all(f"{size} of layer {layer}, head {head}{later_heads}", tiles):
                return _add_map_info(store, session_id, finest_levels)
            finest_levels[layer, head] = level
    return _add_map_info(store, session_id, finest_levels)


def _add_map_info(store: "_ResponseStore", session_id: int, finest_levels: dict[tuple[int, int], int]) -> None:
    """Add the sizes of each map, with the finest level in the file."""
    for (layer, head), level in finest_levels.items():
        store.add("map_info", {"session": session_id, "layer": layer, "head": head}, finest_level=level)


class _ResponseStore:
    """Encoded responses by request, of at most `max_bytes` bytes in `add_all`."""

    def __init__(self, explorer: Explorer, dispatch: Dispatch, max_bytes: int) -> None:
        self.explorer, self.dispatch, self.remaining_bytes = explorer, dispatch, max_bytes
        self.responses: dict[str, str] = {}
        self.omitted: list[str] = []

    def add(self, name: str, params: dict[str, Any], **extra_values: Any) -> None:
        """Store the response to one request, with extra values, even if it does not fit."""
        response = self.dispatch(self.explorer, name, params)
        payload = Payload({**response.values, **extra_values}, response.arrays)
        self.store([(request_key(name, params), _encode_payload(payload))])

    def add_all(self, description: str, requests: Sequence[ApiRequest] | Iterator[ApiRequest]) -> bool:
        """Store the responses to all requests if they fit, else none; return whether they fit."""
        encoded, remaining = [], self.remaining_bytes
        for name, params in requests:
            response = self._encoded_response(name, params)
            remaining -= len(response)
            if remaining < 0:
                self.omitted.append(f"{description}: too large for the file")
                return False
            encoded.append((request_key(name, params), response))
        self.store(encoded)
        return True

    def _encoded_response(self, name: str, params: dict[str, Any]) -> str:
        response = self.dispatch(self.explorer, name, params)
        if name == "tile" and params["level"] == 0:  # the mean and the maximum of a single weight are equal
            return _encode_payload(Payload(response.values, {"mean": response.arrays["mean"]}))
        return _encode_payload(response)

    def store(self, encoded_responses: list[tuple[str, str]]) -> None:
        for key, response in encoded_responses:
            if key not in self.responses:
                self.responses[key] = response
                self.remaining_bytes -= len(response)


def request_key(name: str, params: dict[str, Any]) -> str:
    """Return the key of a request, as in the page: parameters sorted, without spaces and nulls.

    >>> request_key("tile", {"row": 0, "level": 1, "hidden_keys": None})
    'tile{"level":1,"row":0}'
    """
    key_params = {key: value for key, value in params.items() if value is not None and key != "progress_id"}
    return name + json.dumps(key_params, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _encode_payload(payload: Payload) -> str:
    return b64encode(zlib.compress(pack(payload))).decode()


def _offline_state(explorer: Explorer, dispatch: Dispatch, session_id: int) -> str:
    """Return the encoded state of a file: one session, and no models."""
    values = dispatch(explorer, "state", {}).values
    sessions = [{**session, "can_generate": False} for session in values["sessions"] if session["id"] == session_id]
    return _encode_payload(Payload({**values, "sessions": sessions, "models": [], "examples": []}))


def _base_requests(session: Session, session_id: int) -> Iterator[ApiRequest]:
    yield "heads", {"session": session_id}
    for layer in session.layers:
        yield "thumbnails", {"session": session_id, "layer": layer.index, "size": THUMBNAIL_SIZE}
    yield "walkthrough_examples", {}
    yield "stage_templates", {}
    for example in WALKTHROUGH_EXAMPLES.values():
        matrices = _matrices_to_lists({name: getattr(example, name) for name in ("x", "w_q", "w_k", "w_v")})
        yield "steps", {**matrices, "tokens": list(example.tokens), "mask": "none", "normalizer": "softmax"}
    yield "experiments", {}
    yield "gallery", {}
    yield "cost_options", {}
    for size in COST_PAGE_MODEL_SIZES:
        sizes = {name: value for name, value in size.items() if name != "title"}
        yield "cost", {"mechanisms": [model.name for model in COST_MODELS], "seq_lens": COST_SEQ_LENS, **sizes}


def _matrices_to_lists(matrices: dict[str, Sequence[Sequence[float]]]) -> dict[str, list[list[float]]]:
    return {name: [list(row) for row in matrix] for name, matrix in matrices.items()}


def _tile_requests(head_params: dict[str, Any], shape: tuple[int, int], level: int) -> Iterator[ApiRequest]:
    rows, columns = (-(-n // (TILE_SIZE * 2**level)) for n in shape)
    for row in range(rows):
        for column in range(columns):
            yield "tile", {**head_params, "level": level, "row": row, "column": column}


def _arithmetic_requests(
    store: "_ResponseStore", session: Session, head_params: dict[str, Any]
) -> Iterator[ApiRequest]:
    """Yield the request of the vectors of a head; if the page cannot compute weights from them, of single cells."""
    n_q, n_k = session.map_pyramid(head_params["layer"], head_params["head"]).head_weights.shape
    if n_q * n_k > MAX_ARITHMETIC_PAIRS:
        return
    if store.dispatch(store.explorer, "head_vectors", head_params).values["is_supported"]:
        yield "head_vectors", head_params
    elif n_q * n_k <= MAX_STORED_CELLS:
        yield from (
            ("cell_steps", {**head_params, "query": query, "key": key}) for query in range(n_q) for key in range(n_k)
        )


def _offline_html(title: str, responses: dict[str, str]) -> str:
    policy = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
    packed_responses = json.dumps({"responses": responses})  # base64 and numbers need no escaping in HTML
    script = bundle.bundle_script("app/page-entry.js").replace("</script", "<\\/script").replace("<!--", "<\\!--")
    style = bundle.read_frontend_file("styles/style.css").decode().replace("</style", "<\\/style")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(title)}</title>\n<style>\n{style}\n</style>\n</head>\n"
        '<body class="regard-page">\n<div id="regard"></div>\n'
        f'<script type="application/json" id="regard-responses">{packed_responses}</script>\n'
        f'<script type="module">\n{script}\n</script>\n</body>\n</html>\n'
    )


def export(explorer: Explorer, params: Params, dispatch: Dispatch) -> Payload:
    """Return the exported file as bytes, for the page to download, and the list of omitted parts."""
    session = explorer.find_session(params)
    session_id = params.integer("session", 0, 10**9, 0)
    max_bytes = params.integer("max_bytes", 2**16, MAX_EXPORT_BYTES, DEFAULT_EXPORT_BYTES)
    heads = [(a, b) for a, b in parse_int_lists(params.raw("heads"), "heads", 2)] or default_exported_heads(session)
    explorer.progress_callback(params)("writing the file", None)
    text, omitted = build_html_file(
        explorer, dispatch, session_id, heads, max_bytes, parse_int_lists(params.raw("cells"), "cells", 4)
    )
    values = {"heads": heads, "omitted": omitted}
    return Payload(values, {"html": np.frombuffer(text.encode(), dtype=np.uint8)})


def default_exported_heads(session: Session) -> list[tuple[int, int]]:
    """Return the first heads (layer, head) of a session, at most MAX_EXPORTED_HEADS."""
    return [(layer.index, head) for layer in session.layers for head in layer.head_indices][:MAX_EXPORTED_HEADS]


def parse_int_lists(value: Any, name: str, length: int) -> list[list[int]]:
    """Return a checked list of lists of `length` nonnegative integers; an empty list for None."""
    rows = [] if value is None else value
    is_short_list = isinstance(rows, list) and len(rows) <= MAX_LIST_LENGTH
    if not is_short_list or any(
        not isinstance(row, list) or len(row) != length or any(type(n) is not int or n < 0 for n in row) for row in rows
    ):
        raise ArgumentError(f"{name} must be a list of lists of {length} integers; got {str(value)[:60]}.")
    return rows
