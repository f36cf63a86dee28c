"""The server over HTTP: access control, served files, invalid requests, and concurrency."""

import asyncio
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from http.client import HTTPException
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import regard
from regard.errors import ArgumentError
from regard.explorer.api.registry import ENDPOINTS
from regard.explorer.explorer import Explorer
from regard.explorer.server.app import MAX_BODY_BYTES, create_app, serve
from regard.models.bundled import language_model
from tests.explorer.server_process import ServerProcess, run_server

MARKUP = "<script>alert(1)</script> & \"quoted\" <img src=x onerror='alert(2)'>"


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with run_server() as process:
        yield process


@pytest.fixture(scope="module")
def other_server() -> Iterator[ServerProcess]:
    """A second server, for tests that need two or stop one."""
    with run_server() as process:
        yield process


def error_message(data: bytes) -> str:
    return str(json.loads(data)["error"])


def find_session(server: ServerProcess, session_id: int) -> Any:
    return next(session for session in server.request("state").values["sessions"] if session["id"] == session_id)


def test_the_address_is_local_and_has_a_random_key(server: ServerProcess, other_server: ServerProcess) -> None:
    assert server.address.startswith("http://127.0.0.1:")
    assert len(server.path.strip("/")) >= 16
    assert other_server.path != server.path


def test_the_server_listens_on_the_loopback_interface_only(server: ServerProcess) -> None:
    addresses = {info[4][0] for info in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)}
    for address in addresses - {"127.0.0.1"}:
        if str(address).startswith("127."):
            continue
        with pytest.raises(OSError), socket.create_connection((str(address), server.port), timeout=2):
            pass
    table = Path("/proc/net/tcp")
    if not table.exists():
        return  # only Linux has this table
    sockets = [line.split() for line in table.read_text().splitlines()[1:]]
    listening = [fields[1] for fields in sockets if fields[1].endswith(f":{server.port:04X}") and fields[3] == "0A"]
    assert listening == [f"0100007F:{server.port:04X}"]


def test_addresses_without_the_key_are_not_found(server: ServerProcess) -> None:
    for path in ("/", "/frontend/index.html", "/api/state", "/wrong-key-of-any-kind/"):
        status, _, data = server.get(path)
        assert status == 404
        assert "open the address that regard explore printed" in error_message(data)
    for path in ("/api/state", "/wrong-key-of-any-kind/api/state"):
        assert server.raw("POST", path, b"{}")[0] == 404


def test_the_page_and_its_files_have_restrictive_headers(server: ServerProcess) -> None:
    status, headers, data = server.get(server.path)
    assert status == 200
    assert b"<!doctype html>" in data.lower()
    assert headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert "server" not in headers
    status, headers, _ = server.get(f"{server.path}frontend/app/main.js")
    assert (status, headers["content-type"]) == (200, "text/javascript; charset=utf-8")


@pytest.mark.parametrize(
    "path",
    [
        "frontend/../server.py",
        "frontend/..%2fserver.py",
        "frontend/%2e%2e/server.py",
        "frontend/..\\server.py",
        "frontend//etc/passwd",
        "frontend/%2fetc%2fpasswd",
        "frontend/../../../../../../../../etc/passwd",
        "frontend/.",
        "frontend/",
        "../../etc/passwd",
        "frontend/app/main.js%00.txt",
        "frontend/lib/../app/../../bundle.py",
        "frontend/app",
    ],
)
def test_only_files_of_the_page_are_served(server: ServerProcess, path: str) -> None:
    status, _, data = server.get(server.path + path)
    assert status == 404
    assert b"root:" not in data
    assert b"import" not in data


def test_only_models_of_the_explorer_can_be_run(server: ServerProcess) -> None:
    for name in ("/etc", "../..", "gpt2", "https://example.org/model"):
        message = server.request_error("run_model", text="a", model=name)
        assert message == (
            f"a model must be one of language, dates; got {name!r}. To use another model, start the explorer with it."
        )


@pytest.mark.parametrize(
    "host", ["example.org", "example.org:80", "127.0.0.1", "127.0.0.1.example.org:1", "", "0.0.0.0"]
)
def test_a_request_with_another_host_is_rejected(server: ServerProcess, host: str) -> None:
    for method, path in (("GET", server.path), ("POST", f"{server.path}api/state"), ("GET", "/")):
        status, _, data = server.raw(method, path, b"{}", {"Host": host})
        assert status == (400 if host == "" and status == 400 else 403)
        assert status == 400 or f"got {host!r}" in error_message(data)


def test_local_host_names_with_the_port_are_accepted(server: ServerProcess) -> None:
    for name in ("localhost", "LOCALHOST", "127.0.0.1", "[::1]"):
        assert server.raw("GET", server.path, headers={"Host": f"{name}:{server.port}"})[0] == 200


def test_a_request_from_another_origin_is_rejected(server: ServerProcess) -> None:
    for origin in ("http://example.org", "null", "http://127.0.0.1:1", f"https://127.0.0.1:{server.port}"):
        status, data = server.post("state", {}, Origin=origin)
        assert status == 403
        assert error_message(data) == f"requests must come from this page; got one from {origin!r}."
    assert server.post("state", {}, Origin=f"http://127.0.0.1:{server.port}")[0] == 200


def test_cross_origin_reads_are_not_allowed(server: ServerProcess) -> None:
    status, headers, _ = server.raw("OPTIONS", f"{server.path}api/state", headers={"Origin": "http://example.org"})
    assert status in (403, 405)
    assert not any(name.lower().startswith("access-control") for name in headers)


def test_markup_in_a_text_is_returned_as_data(server: ServerProcess) -> None:
    session_id = server.request("run_model", text=MARKUP, model="language").values["id"]
    session = find_session(server, session_id)
    assert "".join(session["texts"][0]["tokens"]) == MARKUP
    status, headers, _ = server.raw("POST", f"{server.path}api/state", b"{}")
    assert (status, headers["content-type"]) == (200, "application/octet-stream")


def test_an_error_that_quotes_markup_is_json(server: ServerProcess) -> None:
    status, headers, data = server.raw(
        "POST", f"{server.path}api/run_model", json.dumps({"text": "<b>", "model": "<b>"}).encode()
    )
    assert (status, headers["content-type"]) == (400, "application/json")
    assert "<b>" in error_message(data)


def test_a_text_that_is_too_long_raises(server: ServerProcess) -> None:
    message = server.request_error("run_model", text="a" * 1_000_001, model="language")
    assert message == "text must have at most 1,000,000 characters; got 1,000,001. Use a part of it."
    message = server.request_error("run_model", text="x y " * 20_000, model="language")
    assert message.startswith("a text for language must have at most 32,768 tokens; got ")
    assert server.request_error("run_model", text="", model="language").startswith(
        "a text must have at least one token"
    )


def test_a_body_that_is_too_long_is_rejected(server: ServerProcess) -> None:
    body = b'{"text": "' + b"a" * (MAX_BODY_BYTES + 1) + b'"}'
    status, _, data = server.raw("POST", f"{server.path}api/run_model", body)
    assert status == 400
    assert error_message(data) == f"a request must have at most {MAX_BODY_BYTES:,} bytes; got more. Use a shorter text."
    assert server.request("state").values["sessions"]


@pytest.mark.parametrize(
    "body, message",
    [
        (b"\x80\x04K\x01.", "a request must be JSON"),  # a pickle
        (b"{", "a request must be JSON"),
        (b"[" * 100_000, "a request must be JSON"),
        (b'{"layer": ' + b"9" * 5000 + b"}", "a request must be JSON"),
        (b"[1, 2]", "the parameters of state must be an object; got list."),
        (b'"text"', "the parameters of state must be an object; got str."),
    ],
)
def test_invalid_bodies_are_rejected(server: ServerProcess, body: bytes, message: str) -> None:
    status, _, data = server.raw("POST", f"{server.path}api/state", body)
    assert status == 400
    assert error_message(data).startswith(message)


def test_an_unknown_endpoint_is_rejected(server: ServerProcess) -> None:
    assert server.request_error("nonsense").startswith("an endpoint must be one of cell_steps, compare, ")


def test_weights_over_http_equal_those_of_the_recording(server: ServerProcess) -> None:
    text = server.request("state").values["sessions"][0]["text"]
    model, tokens = language_model()
    with torch.no_grad(), regard.record(model) as recording:
        model(torch.tensor([tokens.encode(text)]))
    tile = server.request("tile", session=0, layer=1, head=5, level=0, row=0, column=0).arrays["mean"]
    # both are float32, and torch may choose another matrix product for this length
    assert np.allclose(tile, recording[1].weights[0, 5].numpy(), atol=2e-5)


def test_ten_concurrent_clients_get_their_own_responses(server: ServerProcess) -> None:
    texts = [f" The number {n} is {n * n}." for n in range(10)]

    def client(text: str) -> bool:
        session_id = server.request("run_model", text=text).values["id"]
        row = server.request("query_weights", session=session_id, layer=0, heads=[0], queries=[1]).arrays["mean"]
        return find_session(server, session_id)["text"] == text and abs(float(row.sum()) - 1) < 1e-4

    with ThreadPoolExecutor(10) as pool:
        assert all(pool.map(client, texts))


def test_slow_clients_and_long_requests_do_not_delay_others(server: ServerProcess) -> None:
    slow_connections = []
    for _ in range(20):  # each sends half a request
        connection = socket.create_connection(("127.0.0.1", server.port))
        head = f"POST {server.path}api/state HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nContent-Length: 100\r\n\r\n"
        connection.sendall(head.encode() + b'{"te')
        slow_connections.append(connection)
    long_requests = [
        threading.Thread(target=server.request, args=("run_model",), kwargs={"text": " a whale" * 2000})
        for _ in range(4)
    ]
    for thread in long_requests:
        thread.start()
    time.sleep(0.2)  # until all requests have arrived
    waits = []
    for _ in range(10):
        start = time.perf_counter()
        server.request("tile", session=0, layer=1, head=5, level=0, row=0, column=0)
        waits.append(time.perf_counter() - start)
        if len(waits) == 1:  # the model runs them one at a time, so one may be done by now
            assert sum(thread.is_alive() for thread in long_requests) >= 3
    assert sorted(waits)[5] < 1.0
    for thread in long_requests:
        thread.join()
    for connection in slow_connections:
        connection.close()


def test_a_long_request_reports_its_progress(server: ServerProcess) -> None:
    thread = threading.Thread(
        target=server.request, args=("generate",), kwargs={"session": 0, "max_new_tokens": 80, "progress_id": "g"}
    )
    thread.start()
    texts = set()
    while thread.is_alive():
        texts.add(server.request("progress", id="g").values["text"])
        time.sleep(0.01)
    assert any(text.startswith("token ") and text.endswith(" of 80") for text in texts)
    assert server.request("progress", id="g").values == {"text": "", "fraction": None}


def test_a_bug_gives_a_message_in_the_page_and_a_traceback_in_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken_endpoint(explorer: object, params: object) -> None:
        raise RuntimeError("something broke")

    monkeypatch.setitem(ENDPOINTS, "state", broken_endpoint)
    sent: list[dict[str, object]] = []

    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": b"{}"}

    async def send(message: dict[str, object]) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/key/api/state", "query_string": b"", "http_version": "1.1"}
    scope |= {"headers": [(b"host", b"localhost:5")], "root_path": "", "scheme": "http"}
    response = create_app(Explorer(), "key", 5)(scope, receive, send)  # type: ignore[arg-type]  # plain dicts
    with ThreadPoolExecutor() as pool:  # the browser of another test may run an event loop in this thread
        pool.submit(asyncio.run, response).result()
    assert sent[0]["status"] == 500
    assert error_message(sent[1]["body"]) == (  # type: ignore[arg-type]  # the same
        "state failed because of a bug in regard: something broke."
    )
    assert "Traceback" in capsys.readouterr().err


@cache
def import_seconds() -> float:
    """The seconds that a process takes to import the library, as a measure of the load of the machine."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import regard"], check=True)
    return time.perf_counter() - start


def test_control_c_stops_the_server_quickly(other_server: ServerProcess) -> None:
    assert other_server.stop() < 1.0 + import_seconds()  # 0.6 s on an idle machine
    assert other_server.process.returncode == 0
    assert other_server.process.stderr is not None
    assert "Traceback" not in other_server.process.stderr.read()


@pytest.mark.long
def test_control_c_stops_the_server_during_a_long_request() -> None:
    with run_server() as server:
        server.request("run_model", text=" a whale" * 2000)
        client = threading.Thread(target=lambda: _request_export(server))
        client.start()
        time.sleep(0.5)
        assert client.is_alive()
        assert server.stop() < 2.0 + import_seconds()  # the server waits one second for its clients
        assert server.process.returncode == 0
        client.join()


def _request_export(server: ServerProcess) -> None:
    with suppress(OSError, HTTPException, AssertionError):
        server.request("export", session=1, max_bytes=100_000_000)


def test_a_port_in_use_raises() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(ArgumentError, match=f"port must be free and from 0 to 65535; got {port}: "):
            serve("a", port=port, open_browser=False)
