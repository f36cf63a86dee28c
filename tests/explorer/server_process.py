"""A server in a separate process, and an HTTP client for it."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from regard.explorer.api.packing import Payload, unpack

SERVER_SCRIPT = """
import json, sys
from regard.explorer import explorer
from regard.explorer.server import app
options = json.loads(sys.argv[1])
explorer.MAX_SESSIONS = options.get("max_sessions") or explorer.MAX_SESSIONS
app.HEADER_TIMEOUT_S = options.get("header_timeout") or app.HEADER_TIMEOUT_S
app.serve(*options["source"], port=options.get("port", 0), open_browser=bool(options.get("opens_browser")))
"""


@dataclass
class ServerProcess:
    """A running server: its process and the address it printed."""

    process: subprocess.Popen[str]
    address: str

    @property
    def port(self) -> int:
        port = urlsplit(self.address).port
        assert port is not None
        return port

    @property
    def path(self) -> str:
        return urlsplit(self.address).path

    def raw(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        """Send any request, with the path as it is, and return the status, headers and body of the response."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.putrequest(method, path, skip_host=bool(headers and "Host" in headers))
            data = b"" if body is None else body
            for name, value in {"Content-Length": str(len(data)), **(headers or {})}.items():
                connection.putheader(name, value)
            connection.endheaders(data)
            response = connection.getresponse()
            return response.status, dict(response.getheaders()), response.read()
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
        return self.raw("GET", path, headers=headers)

    def post(self, name: str, params: Any, **headers: str) -> tuple[int, bytes]:
        status, _, data = self.raw("POST", f"{self.path}api/{name}", json.dumps(params).encode(), headers)
        return status, data

    def request(self, name: str, **params: Any) -> Payload:
        """Send a request to an endpoint and return the response."""
        status, data = self.post(name, params)
        assert status == 200, data
        return unpack(data)

    def request_error(self, name: str, **params: Any) -> str:
        """Send a request that must fail and return the error message."""
        status, data = self.post(name, params)
        assert status == 400, (status, data[:200])
        return str(json.loads(data)["error"])

    def stop(self) -> float:
        """Send Ctrl-C and return the seconds until the process has ended."""
        start = time.perf_counter()
        self.process.send_signal(signal.SIGINT)
        self.process.wait(timeout=30)
        return time.perf_counter() - start


@contextmanager
def run_server(*source: str, environment: dict[str, str] | None = None, **options: Any) -> Iterator[ServerProcess]:
    """Run a server of a text, or of the example if there is none, and kill it afterwards.

    Options: `max_sessions`, `port`, `header_timeout` (seconds), `opens_browser`.
    """
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER_SCRIPT, json.dumps({"source": source or (None,), **options})],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1", **(environment or {})},
    )
    try:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert address.startswith("http://"), process.stderr.read() if process.stderr else ""
        server = ServerProcess(process, address)
        _wait_until_ready(server)
        yield server
    finally:
        process.kill()
        process.wait()


def free_port() -> int:
    """Return a port that no process uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_until_ready(server: ServerProcess) -> None:
    for _ in range(300):
        try:
            server.get("/")
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise AssertionError("the server does not respond")
