"""The endpoint that writes the page with its data into one file."""

from regard.explorer import html_export
from regard.explorer.api.endpoint import dispatch, slow_endpoint
from regard.explorer.api.packing import Payload
from regard.explorer.api.params import Params
from regard.explorer.explorer import Explorer


@slow_endpoint
def export(explorer: Explorer, params: Params) -> Payload:
    """Return the HTML file of a session."""
    return html_export.export(explorer, params, dispatch)
