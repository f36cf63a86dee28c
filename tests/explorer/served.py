"""A real server in a process of its own, and plain HTTP to it."""

import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from regard.explorer.packing import Answer, unpacked

BEGIN = """
import json, sys
from regard.explorer import explorer, server
options = json.loads(sys.argv[1])
explorer.SHOWN = options.get("keeps") or explorer.SHOWN
server.HEADER_TIMEOUT_S = options.get("header_timeout") or server.HEADER_TIMEOUT_S
server.serve(*options["what"], port=options.get("port", 0), open_browser=bool(options.get("opens_browser")))
"""


@dataclass
class Served:
    """A server: its process and the address it printed."""

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
        """Status, headers and body of any request; the path is sent as it is."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.putrequest(method, path, skip_host=bool(headers and "Host" in headers))
            data = b"" if body is None else body
            for name, value in {"Content-Length": str(len(data)), **(headers or {})}.items():
                connection.putheader(name, value)
            connection.endheaders(data)
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
        return self.raw("GET", path, headers=headers)

    def post(self, name: str, params: Any, **headers: str) -> tuple[int, bytes]:
        status, _, data = self.raw("POST", f"{self.path}ask/{name}", json.dumps(params).encode(), headers)
        return status, data

    def ask(self, name: str, **params: Any) -> Answer:
        status, data = self.post(name, params)
        assert status == 200, data
        return unpacked(data)

    def refusal(self, name: str, **params: Any) -> str:
        status, data = self.post(name, params)
        assert status == 400, (status, data[:200])
        return str(json.loads(data)["error"])

    def stop(self) -> float:
        """Ctrl-C; the seconds until the process has ended."""
        began = time.perf_counter()
        self.process.send_signal(signal.SIGINT)
        self.process.wait(timeout=30)
        return time.perf_counter() - began


@contextmanager
def serving(*given: str, environment: dict[str, str] | None = None, **options: Any) -> Iterator[Served]:
    """A server of a text, None for the example; it has ended afterwards.

    Options: `keeps` (texts), `port`, `header_timeout` (seconds), `opens_browser`.
    """
    process = subprocess.Popen(
        [sys.executable, "-c", BEGIN, json.dumps({"what": given or (None,), **options})],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1", **(environment or {})},
    )
    try:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert address.startswith("http://"), process.stderr.read() if process.stderr else ""
        server = Served(process, address)
        _wait(server)
        yield server
    finally:
        process.kill()
        process.wait()


def _wait(server: Served) -> None:
    for _ in range(300):
        try:
            server.get("/")
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise AssertionError("the server does not answer")
