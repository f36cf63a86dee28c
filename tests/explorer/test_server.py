"""The server, in a process of its own, over HTTP: who may ask, what can be read, and that nobody waits for another."""

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

import numpy as np
import pytest
import torch

import regard
from regard.errors import SpecError
from regard.explorer.explorer import Explorer
from regard.explorer.questions import QUESTIONS
from regard.explorer.server import BODY, application, serve
from regard.models.shipped import language_model
from tests.explorer.served import Served, serving

MARKUP = "<script>alert(1)</script> & \"quoted\" <img src=x onerror='alert(2)'>"


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with serving() as made:
        yield made


@pytest.fixture(scope="module")
def other() -> Iterator[Served]:
    """A second one, for who needs two or ends one."""
    with serving() as made:
        yield made


def error(data: bytes) -> str:
    return str(json.loads(data)["error"])


def test_the_address_is_of_this_machine_and_has_a_key_that_nobody_can_guess(server: Served, other: Served) -> None:
    assert server.address.startswith("http://127.0.0.1:")
    assert len(server.path.strip("/")) >= 16
    assert other.path != server.path


def test_nobody_listens_on_an_address_that_others_can_reach(server: Served) -> None:
    addresses = {info[4][0] for info in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)}
    for address in addresses - {"127.0.0.1"}:
        if str(address).startswith("127."):
            continue
        with pytest.raises(OSError), socket.create_connection((str(address), server.port), timeout=2):
            pass
    table = Path("/proc/net/tcp")
    if not table.exists():
        return  # only Linux has such a list
    listening = [line.split() for line in table.read_text().splitlines()[1:]]
    ours = [line[1] for line in listening if line[1].endswith(f":{server.port:04X}") and line[3] == "0A"]
    assert ours == [f"0100007F:{server.port:04X}"]


def test_without_the_key_there_is_nothing(server: Served) -> None:
    for path in ("/", "/static/index.html", "/ask/state", "/wrong-key-of-any-kind/"):
        status, _, data = server.get(path)
        assert status == 404
        assert "open the address that regard look printed" in error(data)
    for path in ("/ask/state", "/wrong-key-of-any-kind/ask/state"):
        assert server.raw("POST", path, b"{}")[0] == 404


def test_the_page_and_its_files_are_served_with_headers_that_let_nothing_in(server: Served) -> None:
    status, headers, data = server.get(server.path)
    assert status == 200
    assert b"<!doctype html>" in data.lower()
    assert headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert "server" not in headers
    status, headers, _ = server.get(f"{server.path}static/main.js")
    assert (status, headers["content-type"]) == (200, "text/javascript; charset=utf-8")


@pytest.mark.parametrize(
    "path",
    [
        "static/../server.py",
        "static/..%2fserver.py",
        "static/%2e%2e/server.py",
        "static/..\\server.py",
        "static//etc/passwd",
        "static/%2fetc%2fpasswd",
        "static/../../../../../../../../etc/passwd",
        "static/.",
        "static/",
        "../../etc/passwd",
        "static/main.js%00.txt",
    ],
)
def test_no_file_but_those_of_the_page_can_be_read(server: Served, path: str) -> None:
    status, _, data = server.get(server.path + path)
    assert status == 404
    assert b"root:" not in data
    assert b"import" not in data


def test_a_model_or_tape_that_was_not_given_at_the_start_cannot_be_named(server: Served) -> None:
    for name in ("/etc", "../..", "gpt2", "https://example.org/model"):
        said = server.refusal("run", text="a", model=name)
        assert said == (
            f"a model must be one of language, dates; got {name!r}. Others are named when the explorer is started."
        )


@pytest.mark.parametrize(
    "host", ["example.org", "example.org:80", "127.0.0.1", "127.0.0.1.example.org:1", "", "0.0.0.0"]
)
def test_a_request_that_names_another_host_is_refused(server: Served, host: str) -> None:
    for method, path in (("GET", server.path), ("POST", f"{server.path}ask/state"), ("GET", "/")):
        status, _, data = server.raw(method, path, b"{}", {"Host": host})
        assert status == (400 if host == "" and status == 400 else 403)
        assert status == 400 or f"got {host!r}" in error(data)


def test_the_names_of_this_machine_are_accepted_with_the_port(server: Served) -> None:
    for name in ("localhost", "LOCALHOST", "127.0.0.1", "[::1]"):
        assert server.raw("GET", server.path, headers={"Host": f"{name}:{server.port}"})[0] == 200


def test_a_question_from_another_page_is_refused(server: Served) -> None:
    for origin in ("http://example.org", "null", "http://127.0.0.1:1", f"https://127.0.0.1:{server.port}"):
        status, data = server.post("state", {}, Origin=origin)
        assert status == 403
        assert error(data) == f"questions must come from this page; got one from {origin!r}."
    assert server.post("state", {}, Origin=f"http://127.0.0.1:{server.port}")[0] == 200


def test_no_other_page_is_allowed_to_read_answers(server: Served) -> None:
    status, headers, _ = server.raw("OPTIONS", f"{server.path}ask/state", headers={"Origin": "http://example.org"})
    assert status in (403, 405)
    assert not any(name.lower().startswith("access-control") for name in headers)


def test_markup_as_text_comes_back_as_data(server: Served) -> None:
    number = server.ask("run", text=MARKUP, model="language").values["id"]
    shown = next(each for each in server.ask("state").values["shown"] if each["id"] == number)
    assert "".join(shown["texts"][0]["tokens"]) == MARKUP
    status, headers, _ = server.raw("POST", f"{server.path}ask/state", b"{}")
    assert (status, headers["content-type"]) == (200, "application/octet-stream")


def test_an_error_that_quotes_markup_is_json_and_not_a_page(server: Served) -> None:
    status, headers, data = server.raw(
        "POST", f"{server.path}ask/run", json.dumps({"text": "<b>", "model": "<b>"}).encode()
    )
    assert (status, headers["content-type"]) == (400, "application/json")
    assert "<b>" in error(data)


def test_a_text_that_is_too_long_is_refused_with_its_length(server: Served) -> None:
    said = server.refusal("run", text="a" * 1_000_001, model="language")
    assert said == "text must have at most 1,000,000 characters; got 1,000,001. Take a part of it."
    said = server.refusal("run", text="x y " * 20_000, model="language")
    assert said.startswith("a text for language must have at most 32,768 tokens; got ")
    assert server.refusal("run", text="", model="language").startswith("a text must have at least one token")


def test_a_body_that_is_too_long_is_refused_before_it_is_read_to_the_end(server: Served) -> None:
    body = b'{"text": "' + b"a" * (BODY + 1) + b'"}'
    status, _, data = server.raw("POST", f"{server.path}ask/run", body)
    assert status == 400
    assert error(data) == f"a question must have at most {BODY:,} bytes; got more. Take a shorter text."
    assert server.ask("state").values["shown"]


@pytest.mark.parametrize(
    "body, said",
    [
        (b"\x80\x04K\x01.", "a question must be JSON"),  # a pickle
        (b"{", "a question must be JSON"),
        (b"[" * 100_000, "a question must be JSON"),
        (b'{"layer": ' + b"9" * 5000 + b"}", "a question must be JSON"),
        (b"[1, 2]", "the parameters of state must be an object; got list."),
        (b'"text"', "the parameters of state must be an object; got str."),
    ],
)
def test_what_is_not_a_question_is_refused_in_words(server: Served, body: bytes, said: str) -> None:
    status, _, data = server.raw("POST", f"{server.path}ask/state", body)
    assert status == 400
    assert error(data).startswith(said)


def test_a_question_that_does_not_exist_is_refused_with_those_that_do(server: Served) -> None:
    assert server.refusal("nonsense").startswith("a question must be one of state, run, ")


def test_numbers_over_http_are_those_of_the_tape(server: Served) -> None:
    text = server.ask("state").values["shown"][0]["text"]
    model, tokens = language_model()
    with torch.no_grad(), regard.record(model) as tape:
        model(torch.tensor([tokens.encode(text)]))
    found = server.ask("tile", shown=0, layer=1, head=5, level=0, row=0, column=0).arrays["mean"]
    # both are float32, of lengths at which torch may choose another product
    assert np.allclose(found, tape[1].weights[0, 5].numpy(), atol=2e-5)


def test_ten_clients_ask_at_once_and_each_gets_its_own_answer(server: Served) -> None:
    texts = [f" The number {n} is {n * n}." for n in range(10)]

    def client(text: str) -> bool:
        number = server.ask("run", text=text).values["id"]
        row = server.ask("row", shown=number, layer=0, heads=[0], queries=[1]).arrays["mean"]
        shown = next(each for each in server.ask("state").values["shown"] if each["id"] == number)
        return shown["text"] == text and abs(float(row.sum()) - 1) < 1e-4

    with ThreadPoolExecutor(10) as pool:
        assert all(pool.map(client, texts))


def test_slow_clients_and_long_questions_do_not_keep_others_waiting(server: Served) -> None:
    slow = []
    for _ in range(20):  # each sends half a question and then nothing
        connection = socket.create_connection(("127.0.0.1", server.port))
        head = f"POST {server.path}ask/state HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nContent-Length: 100\r\n\r\n"
        connection.sendall(head.encode() + b'{"te')
        slow.append(connection)
    long = [threading.Thread(target=server.ask, args=("run",), kwargs={"text": " a whale" * 2000}) for _ in range(4)]
    for thread in long:
        thread.start()
    time.sleep(0.2)  # until they are all there
    waits = []
    for _ in range(10):
        began = time.perf_counter()
        server.ask("tile", shown=0, layer=1, head=5, level=0, row=0, column=0)
        waits.append(time.perf_counter() - began)
        if len(waits) == 1:  # the long ones take their turns, so that one of them may be over by now
            assert sum(thread.is_alive() for thread in long) >= 3
    assert sorted(waits)[5] < 1.0
    for thread in long:
        thread.join()
    for connection in slow:
        connection.close()


def test_a_long_question_tells_how_far_it_is(server: Served) -> None:
    work = threading.Thread(target=server.ask, args=("generate",), kwargs={"shown": 0, "count": 200, "progress": "g"})
    work.start()
    told = set()
    while work.is_alive():
        told.add(server.ask("progress", id="g").values["text"])
        time.sleep(0.01)
    assert any(text.startswith("token ") and text.endswith(" of 200") for text in told)
    assert server.ask("progress", id="g").values == {"text": "", "share": None}


def test_a_fault_in_the_code_is_told_to_the_page_and_to_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(explorer: object, asked: object) -> None:
        raise RuntimeError("a screw is loose")

    monkeypatch.setitem(QUESTIONS, "state", broken)
    sent: list[dict[str, object]] = []

    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": b"{}"}

    async def send(message: dict[str, object]) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/key/ask/state", "query_string": b"", "http_version": "1.1"}
    scope |= {"headers": [(b"host", b"localhost:5")], "root_path": "", "scheme": "http"}
    answered = application(Explorer(), "key", 5)(scope, receive, send)  # type: ignore[arg-type]  # plain dicts
    with ThreadPoolExecutor() as pool:  # in this thread a browser that another test drives may have a loop of its own
        pool.submit(asyncio.run, answered).result()
    assert sent[0]["status"] == 500
    assert error(sent[1]["body"]) == (  # type: ignore[arg-type]  # the same
        "state could not be answered, by a fault of regard's own: a screw is loose."
    )
    assert "Traceback" in capsys.readouterr().err


@cache
def a_start() -> float:
    """The seconds that Python takes to import the library and end: how busy the machine is."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import regard"], check=True)
    return time.perf_counter() - began


def test_control_c_ends_it_cleanly_and_soon(other: Served) -> None:
    assert other.stop() < 1.0 + a_start()  # on a machine with nothing else to do 0.6 of less than 3
    assert other.process.returncode == 0
    assert other.process.stderr is not None
    assert "Traceback" not in other.process.stderr.read()


def test_control_c_ends_it_in_the_midst_of_a_long_question_with_a_client_that_waits() -> None:
    with serving() as made:
        made.ask("run", text=" a whale" * 2000)
        asking = threading.Thread(target=lambda: _in_vain(made))
        asking.start()
        time.sleep(0.5)
        assert asking.is_alive()
        assert made.stop() < 2.0 + a_start()  # of which a second is grace for who waits
        assert made.process.returncode == 0
        asking.join()


def _in_vain(server: Served) -> None:
    with suppress(OSError, HTTPException, AssertionError):
        server.ask("export", shown=1, budget=100_000_000)


def test_a_port_that_is_taken_is_refused_with_its_number() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(SpecError, match=f"port must be free and from 0 to 65535; got {port}: "):
            serve("a", port=port, open_browser=False)
