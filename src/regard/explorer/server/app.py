"""The page and its API over HTTP, for this machine only.

The address contains a random key, so that other pages and other users cannot send requests. Requests must name this
machine as their host; if they have an origin, it must be this page. Files are a fixed list. Requests are handled in
threads, so that neither a slow client nor a long request delays others. A page that lost its connection finds the
server by `/proof/...`, which proves that the server has the key before the page sends it.
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

from regard.errors import ArgumentError, RegardError
from regard.explorer import bundle
from regard.explorer.api.packing import pack
from regard.explorer.api.registry import SLOW_ENDPOINTS, dispatch
from regard.explorer.explorer import Explorer
from regard.explorer.server import not_found_page
from regard.explorer.server.listener import Listener, listen
from regard.explorer.server.open_browser import open_in_browser
from regard.explorer.server.page_key import load_or_create_key, new_key, proof
from regard.explorer.server.request_timeout import protocol_with_timeout
from regard.explorer.server.thread_pool import ThreadPool
from regard.explorer.session_factory import create_explorer
from regard.recording.recording import Recording

MAX_BODY_BYTES = 8 * 2**20
BODY_TIMEOUT_S = 30.0
HEADER_TIMEOUT_S = 15.0
MAX_HEADER_BYTES = 16 * 2**10
CONTENT_TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
    ".png": "image/png",
}
RESPONSE_HEADERS = {
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
    source: str | Recording | Explorer | None = None,
    *,
    model: str = "language",
    port: int | Listener = 0,
    open_browser: bool = True,
) -> None:
    """Serve the page until Ctrl-C, and print its address on a separate line.

    `source` is a text that `model` runs on, a recording, an explorer, or None for an example; `load_text_model` lists
    the models. `port` 0 uses a free port; any other port keeps its address across restarts. `port` may also be an
    open `Listener`. `open_browser` opens the page in a browser.
    """
    listener = port if isinstance(port, Listener) else listen(port)  # fails before a model is loaded
    try:
        explorer = source if isinstance(source, Explorer) else create_explorer(source, model=model)
        _run(explorer, listener, open_browser)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
    finally:
        listener.socket.close()


def _run(explorer: Explorer, listener: Listener, open_browser: bool) -> None:
    port = listener.port
    key = load_or_create_key(port) if listener.has_fixed_port else new_key()
    address, opened_event = f"http://127.0.0.1:{port}/{key}/", threading.Event()
    config = uvicorn.Config(
        create_app(explorer, key, port, opened_event),
        http=protocol_with_timeout(HEADER_TIMEOUT_S),
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
        ws="none",
        log_level="error",
        access_log=False,
        server_header=False,
        lifespan="off",
        timeout_graceful_shutdown=1,
        timeout_keep_alive=30,
    )
    print(address, flush=True)
    browser_thread = open_in_browser(address, opened_event) if open_browser else None
    try:
        uvicorn.Server(config).run(sockets=[listener.socket])
    finally:
        opened_event.set()  # lets the thread remove its redirect file
        if browser_thread is not None:
            browser_thread.join(timeout=5)


def create_app(explorer: Explorer, key: str, port: int, opened_event: threading.Event | None = None) -> Starlette:
    """Return the application, whose addresses begin with the key; loading the page sets `opened_event`."""
    frontend = bundle.served_files()  # no other files are served
    pool = ThreadPool()
    reject = OriginGuard(port)

    async def page(request: Request) -> Response:
        if opened_event is not None:
            opened_event.set()
        return reject(request) or _file_response(frontend, "index.html")

    async def file(request: Request) -> Response:
        return reject(request) or _file_response(frontend, request.path_params["path"])

    async def api(request: Request) -> Response:
        return reject(request) or await _handle_request(explorer, pool, request)

    async def prove(request: Request) -> Response:
        values = {"proof": proof(key, port, request.path_params["nonce"]), "server_id": explorer.server_id}
        return reject(request) or JSONResponse(values, headers=RESPONSE_HEADERS)

    async def not_found(request: Request) -> Response:
        return reject(request) or _not_found(request)

    return Starlette(
        routes=[
            Route(f"/{key}/", page, methods=["GET"]),
            Route(f"/{key}/frontend/{{path:path}}", file, methods=["GET"]),
            Route(f"/{key}/api/{{name}}", api, methods=["POST"]),
            Route("/proof/{nonce}", prove, methods=["GET"]),
            Route("/{rest:path}", not_found, methods=["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"]),
        ]
    )


def _not_found(request: Request) -> Response:
    """Return the 404 response: a page for browsers, and JSON for programs."""
    if request.method == "GET" and "text/html" in request.headers.get("accept", ""):
        headers = {**RESPONSE_HEADERS, "Content-Security-Policy": not_found_page.NOT_FOUND_CSP}
        return Response(not_found_page.NOT_FOUND_HTML, 404, headers=headers, media_type="text/html")
    return _error_response(404, not_found_page.NOT_FOUND_MESSAGE)


class OriginGuard:
    """Rejects requests whose host is not this machine or whose origin is another page."""

    def __init__(self, port: int) -> None:
        self.hosts = {f"{name}:{port}" for name in ("127.0.0.1", "localhost", "[::1]")}
        self.origins = {f"http://{host}" for host in self.hosts}

    def __call__(self, request: Request) -> Response | None:
        host, origin = request.headers.get("host", ""), request.headers.get("origin")
        if host.lower() not in self.hosts:
            return _error_response(403, f"the host must be one of {', '.join(sorted(self.hosts))}; got {host[:80]!r}.")
        if origin is not None and origin.lower() not in self.origins:
            return _error_response(403, f"requests must come from this page; got one from {origin[:80]!r}.")
        return None


async def _handle_request(explorer: Explorer, pool: ThreadPool, request: Request) -> Response:
    name = request.path_params["name"]
    if request.headers.get("x-server-id", explorer.server_id) != explorer.server_id:
        return _error_response(409, "the explorer was restarted, and earlier session ids are no longer valid.")
    try:
        params = json.loads(await asyncio.wait_for(_read_body(request), BODY_TIMEOUT_S) or b"{}")
        data = await pool.run(name in SLOW_ENDPOINTS, lambda: pack(dispatch(explorer, name, params)))
    except RegardError as error:
        return _error_response(400, str(error))
    except (ValueError, RecursionError) as error:
        return _error_response(400, f"a request must be JSON; got something else: {error}.")
    except TimeoutError:
        return _error_response(408, f"a request must arrive within {BODY_TIMEOUT_S:g} seconds.")
    except ClientDisconnect:
        return _error_response(400, "the connection was closed.")
    except MemoryError:
        return _error_response(500, "this machine does not have enough memory for the request. Use a shorter text.")
    except Exception as error:  # a bug: the page shows a message, and the terminal shows the traceback
        traceback.print_exc()
        return _error_response(500, f"{name} failed because of a bug in regard: {error}.")
    return Response(data, media_type="application/octet-stream", headers=RESPONSE_HEADERS)


async def _read_body(request: Request) -> bytes:
    """Return the body of a request; stop reading and raise `ArgumentError` if it is too long."""
    data = bytearray()
    async for part in request.stream():
        data += part
        if len(data) > MAX_BODY_BYTES:
            raise ArgumentError(f"a request must have at most {MAX_BODY_BYTES:,} bytes; got more. Use a shorter text.")
    return bytes(data)


def _file_response(frontend: dict[str, bytes], path: str) -> Response:
    content_type = CONTENT_TYPES.get(path[path.rfind(".") :])
    if path not in frontend or content_type is None:
        return _error_response(404, f"the file {path[:80]!r} does not exist.")
    return Response(frontend[path], media_type=content_type, headers=RESPONSE_HEADERS)


def _error_response(status: int, message: str) -> Response:
    return JSONResponse({"error": message}, status_code=status, headers=RESPONSE_HEADERS)
