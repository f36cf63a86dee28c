"""The endpoints by name, and the dispatch of requests. Error messages are shown to the user."""

from collections.abc import Callable
from typing import Any

from regard.errors import ArgumentError, RegardError
from regard.explorer import html_export
from regard.explorer.api import (
    arithmetic,
    compare,
    costs,
    experiments,
    generation,
    overview,
    stage_templates,
    walkthrough_api,
    weights,
)
from regard.explorer.api.packing import Payload
from regard.explorer.api.params import Params
from regard.explorer.explorer import Explorer

Endpoint = Callable[[Explorer, Params], Payload]

ENDPOINTS: dict[str, Endpoint] = {
    "state": overview.state,
    "run_model": overview.run_model,
    "progress": overview.progress,
    "heads": overview.heads,
    "thumbnails": overview.thumbnails,
    "map_info": weights.map_info,
    "tile": weights.tile,
    "query_weights": weights.query_weights,
    "key_weights": weights.key_weights,
    "top_weights": weights.top_weights,
    "cell_steps": arithmetic.cell_steps,
    "head_vectors": arithmetic.head_vectors,
    "generate": generation.generate,
    "compare": compare.compare,
    "difference_tile": compare.difference_tile,
    "difference_map": compare.difference_map,
    "export": lambda explorer, params: html_export.export(explorer, params, dispatch),
    "steps": walkthrough_api.steps,
    "walkthrough_examples": walkthrough_api.walkthrough_examples,
    "stage_templates": stage_templates.stage_templates,
    "experiments": experiments.experiments,
    "experiment": experiments.experiment,
    "cost": costs.cost,
    "cost_options": costs.cost_options,
    "timing": costs.timing,
}
# these may take many seconds
SLOW_ENDPOINTS = {"run_model", "experiment", "heads", "thumbnails", "generate", "timing", "export", "compare"}


def dispatch(explorer: Explorer, name: str, params: Any = None) -> Payload:
    """Return the response to a request; raise a `RegardError`, whose message the page shows."""
    if name not in ENDPOINTS:
        raise ArgumentError(f"an endpoint must be one of {', '.join(ENDPOINTS)}; got {name[:40]!r}.")
    checked = Params(name, {} if params is None else params)
    try:
        return ENDPOINTS[name](explorer, checked)
    except RegardError:
        raise
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:  # the page needs a message
        raise ArgumentError(f"{name} failed: {error}") from error
    finally:
        if checked.raw("progress_id") and name != "progress":
            explorer.clear_progress(checked)
