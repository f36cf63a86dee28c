"""Endpoints about sessions: the state, running a model, the table of heads, and thumbnails."""

from importlib.metadata import version

import numpy as np

from regard.explorer.api.endpoint import endpoint, slow_endpoint
from regard.explorer.api.packing import Payload, to_float32_array
from regard.explorer.api.params import Params
from regard.explorer.explorer import Explorer
from regard.explorer.text_models.example_texts import EXAMPLE_TEXTS
from regard.explorer.text_models.registry import MAX_TEXT_CHARACTERS, MAX_TEXT_TOKENS, MODEL_TITLES
from regard.recording.metrics.head_table import HEAD_KINDS, MIN_SCORE, find_heads


@endpoint
def state(explorer: Explorer, params: Params) -> Payload:
    """Return all sessions without weights, the models, the limits and the example texts."""
    sessions = [
        {"id": session_id, "can_generate": explorer.generative_model(session) is not None, **session.to_json()}
        for session_id, session in list(explorer.sessions.items())
    ]
    models = [{"name": name, "title": MODEL_TITLES.get(name, name)} for name in explorer.models]
    limits = {"tokens": MAX_TEXT_TOKENS, "characters": MAX_TEXT_CHARACTERS}
    values = {"sessions": sessions, "models": models, "limits": limits, "examples": list(EXAMPLE_TEXTS.values())}
    return Payload({"version": version("regard"), "server_id": explorer.server_id, **values})


@slow_endpoint
def run_model(explorer: Explorer, params: Params) -> Payload:
    """Run a model on a text, add the session, and return its id."""
    text = params.text("text", MAX_TEXT_CHARACTERS)
    model = explorer.model(params.text("model", 400, "language"))
    report = explorer.progress_callback(params)
    report("waiting for another run", None)
    with explorer.model_lock:
        report("running the model", None)
        session = model.record_text(text)
    return Payload({"id": explorer.add(session)})


@endpoint
def progress(explorer: Explorer, params: Params) -> Payload:
    """Return the progress of the request whose `progress_id` is `id`."""
    text, fraction = explorer.progress(params.text("id", 64))
    return Payload({"text": text, "fraction": fraction})


@slow_endpoint
def heads(explorer: Explorer, params: Params) -> Payload:
    """Return the table of all heads, and the heads of each kind."""
    table = explorer.find_session(params).head_table(explorer.progress_callback(params))
    kinds = {kind: description for kind, description in HEAD_KINDS.items() if kind in table.columns}
    by_kind = {
        kind: [[head.layer, head.head, head.score] for head in find_heads(table, kind, MIN_SCORE)] for kind in kinds
    }
    values = {"columns": table.columns, "rows": list(table), "kind_descriptions": kinds, "heads_by_kind": by_kind}
    return Payload(values)


@slow_endpoint
def thumbnails(explorer: Explorer, params: Params) -> Payload:
    """Return a thumbnail of every head of a layer, (heads, rows, columns), with at most `size` rows and columns.

    `sampled_rows` is the number of sampled rows per cell for a long text, and None for exact thumbnails.
    """
    session = explorer.find_session(params)
    layer = params.integer("layer", 0, 10**6)
    size = params.integer("size", 8, 256, 64)
    hidden = params.integers("hidden_keys", 0, 10**9, ())
    report = explorer.progress_callback(params)
    head_indices = session.layer(layer).head_indices
    cells = []
    for n, head in enumerate(head_indices):
        report(f"head {head} of layer {layer}", n / len(head_indices))
        cells.append(session.thumbnail(layer, head, size, hidden))
    arrays = {
        "mean": np.stack([to_float32_array(thumbnail.mean) for thumbnail in cells]),
        "max": np.stack([to_float32_array(thumbnail.max) for thumbnail in cells]),
    }
    return Payload({"heads": head_indices, "size": size, "sampled_rows": session.num_sampled_rows(layer)}, arrays)
