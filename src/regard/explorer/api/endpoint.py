"""`@endpoint` declares a function that handles requests of the page, and `dispatch` calls it by name.

Error messages are shown to the user.
"""

from collections.abc import Callable
from typing import Any

from regard.errors import ArgumentError, RegardError
from regard.explorer.api.packing import Payload
from regard.explorer.api.params import Params
from regard.explorer.explorer import Explorer

Endpoint = Callable[[Explorer, Params], Payload]

ENDPOINTS: dict[str, Endpoint] = {}
SLOW_ENDPOINTS: set[str] = set()


def endpoint(function: Endpoint) -> Endpoint:
    """Declare an endpoint with the name of the function."""
    ENDPOINTS[function.__name__] = function
    return function


def slow_endpoint(function: Endpoint) -> Endpoint:
    """Declare an endpoint that may take many seconds. It does not keep the quick ones waiting."""
    SLOW_ENDPOINTS.add(function.__name__)
    return endpoint(function)


def dispatch(explorer: Explorer, name: str, params: Any = None) -> Payload:
    """Return the response to a request; raise a `RegardError`, whose message the page shows."""
    if name not in ENDPOINTS:
        raise ArgumentError(f"an endpoint must be one of {', '.join(sorted(ENDPOINTS))}; got {name[:40]!r}.")
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
