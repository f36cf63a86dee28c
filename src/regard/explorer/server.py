"""The page and its questions over HTTP, for this machine alone.

The address has a key that nobody can guess, so that other pages and other users cannot ask. Requests must name this
machine as their host, and if they have an origin, it must be this page. Files are a fixed list. Questions are answered
in threads: neither a slow reader nor a long question keeps others waiting. A page that lost the server finds it again
by `/proof/...`, which shows that the server has the key before the page sends it.
"""

import asyncio
import json
import sys
import threading
import traceback

import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from regard.errors import RegardError, SpecError
from regard.explorer import pages, unknown_address
from regard.explorer.explorer import Explorer
from regard.explorer.listener import Listener, listen
from regard.explorer.open_page import open_page
from regard.explorer.opened import opened
from regard.explorer.packing import packed
from regard.explorer.page_key import key_of_port, new_key, proof
from regard.explorer.questions import LONG, ask
from regard.explorer.request_timeout import protocol_with_timeout
from regard.explorer.threads import Threads
from regard.inside.tape import Tape

BODY = 8 * 2**20  # bytes of a question
PATIENCE = 30.0  # seconds in which a question must have arrived
HEADER_TIMEOUT_S = 15.0  # in which the header of a request must have arrived
HEADER_BYTES = 16 * 2**10
KINDS = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
    ".png": "image/png",
}
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
        "font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def serve(
    what: str | Tape | Explorer | None = None,
    *,
    model: str = "language",
    port: int | Listener = 0,
    open_browser: bool = True,
) -> None:
    """Shows the page until Ctrl-C. Prints its address alone on a line.

    `what` is a text that `model` reads, a recording, or None for an example; `model` is one that `of_name`
    supports. `port` 0 takes a free one; any other port has the same address at each start. A `Listener`
    serves too. See `opened`.
    """
    listener = port if isinstance(port, Listener) else listen(port)  # before a model is loaded
    try:
        explorer = what if isinstance(what, Explorer) else opened(what, model=model)
        _run(explorer, listener, open_browser)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
    finally:
        listener.socket.close()


def _run(explorer: Explorer, listener: Listener, open_browser: bool) -> None:
    number = listener.port
    key = key_of_port(number) if listener.is_chosen else new_key()
    address, is_opened = f"http://127.0.0.1:{number}/{key}/", threading.Event()
    config = uvicorn.Config(
        application(explorer, key, number, is_opened),
        http=protocol_with_timeout(HEADER_TIMEOUT_S),
        h11_max_incomplete_event_size=HEADER_BYTES,
        ws="none",
        log_level="error",
        access_log=False,
        server_header=False,
        lifespan="off",
        timeout_graceful_shutdown=1,
        timeout_keep_alive=30,
    )
    print(address, flush=True)
    opening = open_page(address, is_opened) if open_browser else None
    try:
        uvicorn.Server(config).run(sockets=[listener.socket])
    finally:
        is_opened.set()  # the file that led to the address is removed
        if opening is not None:
            opening.join(timeout=5)


def application(explorer: Explorer, key: str, port: int, is_opened: threading.Event | None = None) -> Starlette:
    """The application that answers, under an address that begins with the key; `is_opened` is set by the first page."""
    static = pages.served()  # no other file can be asked for
    pool = Threads()
    refuse = _Doors(port)

    async def page(request: Request) -> Response:
        if is_opened is not None:
            is_opened.set()
        return refuse(request) or _file(static, "index.html")

    async def file(request: Request) -> Response:
        return refuse(request) or _file(static, request.path_params["name"])

    async def question(request: Request) -> Response:
        return refuse(request) or await _answered(explorer, pool, request)

    async def proven(request: Request) -> Response:
        values = {"proof": proof(key, port, request.path_params["nonce"]), "session": explorer.session}
        return refuse(request) or JSONResponse(values, headers=HEADERS)

    async def nothing(request: Request) -> Response:
        return refuse(request) or _unknown(request)

    return Starlette(
        routes=[
            Route(f"/{key}/", page, methods=["GET"]),
            Route(f"/{key}/static/{{name}}", file, methods=["GET"]),
            Route(f"/{key}/ask/{{name}}", question, methods=["POST"]),
            Route("/proof/{nonce}", proven, methods=["GET"]),
            Route("/{rest:path}", nothing, methods=["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"]),
        ]
    )


def _unknown(request: Request) -> Response:
    """A page for people, and JSON for programs."""
    if request.method == "GET" and "text/html" in request.headers.get("accept", ""):
        headers = {**HEADERS, "Content-Security-Policy": unknown_address.POLICY}
        return Response(unknown_address.HTML, 404, headers=headers, media_type="text/html")
    return _error(404, unknown_address.SENTENCE)


class _Doors:
    """Who may come in: requests that name this machine, from this page or from no page."""

    def __init__(self, port: int) -> None:
        self.hosts = {f"{name}:{port}" for name in ("127.0.0.1", "localhost", "[::1]")}
        self.origins = {f"http://{host}" for host in self.hosts}

    def __call__(self, request: Request) -> Response | None:
        host, origin = request.headers.get("host", ""), request.headers.get("origin")
        if host.lower() not in self.hosts:
            return _error(403, f"the host must be one of {', '.join(sorted(self.hosts))}; got {host[:80]!r}.")
        if origin is not None and origin.lower() not in self.origins:
            return _error(403, f"questions must come from this page; got one from {origin[:80]!r}.")
        return None


async def _answered(explorer: Explorer, pool: Threads, request: Request) -> Response:
    name = request.path_params["name"]
    if request.headers.get("x-session", explorer.session) != explorer.session:
        return _error(409, "the explorer was started again; numbers of texts from before mean other texts.")
    try:
        params = json.loads(await asyncio.wait_for(_body(request), PATIENCE) or b"{}")
        data = await pool.run(name in LONG, lambda: packed(ask(explorer, name, params)))
    except RegardError as error:
        return _error(400, str(error))
    except (ValueError, RecursionError) as error:
        return _error(400, f"a question must be JSON; got something else: {error}.")
    except TimeoutError:
        return _error(408, f"a question must arrive within {PATIENCE:g} seconds.")
    except ClientDisconnect:
        return _error(400, "the connection was closed.")
    except MemoryError:
        return _error(500, "the memory of this machine was not enough for that. Take a shorter text.")
    except Exception as error:  # a fault in the code: who looks at the page should hear of it, and the terminal more
        traceback.print_exc()
        return _error(500, f"{name} could not be answered, by a fault of regard's own: {error}.")
    return Response(data, media_type="application/octet-stream", headers=HEADERS)


async def _body(request: Request) -> bytes:
    """The whole body, as long as it is not too long; the rest of one that is too long is not read."""
    data = bytearray()
    async for part in request.stream():
        data += part
        if len(data) > BODY:
            raise SpecError(f"a question must have at most {BODY:,} bytes; got more. Take a shorter text.")
    return bytes(data)


def _file(static: dict[str, bytes], name: str) -> Response:
    kind = KINDS.get(name[name.rfind(".") :])
    if name not in static or kind is None:
        return _error(404, f"there is no file {name[:80]!r} here.")
    return Response(static[name], media_type=kind, headers=HEADERS)


def _error(status: int, sentence: str) -> Response:
    return JSONResponse({"error": sentence}, status_code=status, headers=HEADERS)
