"""What other users of the machine, slow clients and a restart must not be able to do; and addresses that stay."""

import json
import os
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from regard.errors import LoadError, SpecError
from regard.explorer.listener import listen
from regard.explorer.open_page import RedirectFile
from regard.explorer.page_key import key_of_port, proof
from regard.explorer.server import serve
from tests.explorer.served import Served, serving

TIMEOUT_S = 1.0
BROWSER = """#!{python}
import pathlib, sys, time
pathlib.Path({log!r}).write_text(sys.argv[1])
time.sleep(60)
"""


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with serving(header_timeout=TIMEOUT_S) as running:
        yield running


def closed_within(server: Served, sent: bytes, drips: bytes = b"") -> float:
    """The seconds after which the server closes a connection that sends this, and then a byte at a time."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        began = time.perf_counter()
        connection.sendall(sent)
        connection.settimeout(0.2)
        while time.perf_counter() - began < 20:
            try:
                if not connection.recv(65536):
                    break
            except TimeoutError:
                if drips:
                    connection.sendall(drips)
            except OSError:
                break
        return time.perf_counter() - began


@pytest.mark.parametrize(
    "sent, drips",
    [
        (b"", b""),
        (b"GET / HTTP/1.1\r\nHost: 127", b""),
        (b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ", b"x"),
        (b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\n", b"x"),  # answered before its body came
        (b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\nGET / HT", b"x"),  # a second request that never ends
    ],
)
def test_a_request_that_never_ends_is_closed(server: Served, sent: bytes, drips: bytes) -> None:
    assert closed_within(server, sent, drips) < 15  # its limit is one second; uvicorn alone never closes it
    assert server.get("/")[0] == 404


def test_a_whole_request_may_take_longer_to_answer_than_its_header_to_arrive(server: Served) -> None:
    number = server.ask("run", text=" a whale" * 600).values["id"]
    assert len(server.ask("heads", shown=number).values["rows"]) == 32


def command_lines() -> list[str]:
    """The command lines of all processes, which every user can read."""
    lines = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            lines.append((process / "cmdline").read_bytes().decode(errors="replace"))
        except OSError:
            continue
    return lines


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="only Linux has /proc")
def test_no_command_line_has_the_key_and_the_file_that_leads_to_it_is_private(tmp_path: Path) -> None:
    log, script = tmp_path / "opened", tmp_path / "browser"
    script.write_text(BROWSER.format(python=sys.executable, log=str(log)))
    script.chmod(0o700)
    with serving(opens_browser=True, environment={"BROWSER": f"{script} %s &"}) as server:
        for _ in range(200):
            if log.exists() and log.read_text():
                break
            time.sleep(0.1)
        file = Path(log.read_text().removeprefix("file://"))
        key = server.path.strip("/")
        lines = command_lines()
        assert any(str(file) in line for line in lines), "the browser runs"
        assert not any(key in line for line in lines)
        assert server.address in file.read_text()
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
        assert server.get(server.path)[0] == 200
        for _ in range(100):
            if not file.parent.exists():
                break
            time.sleep(0.1)
        assert not file.parent.exists(), "it goes when the page was opened"


def test_the_file_that_leads_to_the_page_goes_when_it_was_used() -> None:
    with RedirectFile("http://127.0.0.1:1/a&b/") as file:
        assert "url=http://127.0.0.1:1/a&amp;b/" in file.path.read_text()
    assert not file.path.parent.exists()


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "regard"


def test_a_chosen_port_has_the_same_key_at_each_start_in_a_private_file(state: Path) -> None:
    key = key_of_port(8123)
    assert len(key) >= 20
    assert key_of_port(8123) == key
    assert key_of_port(8124) != key
    file = state / "explorer-key-8123"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(state.stat().st_mode) == 0o700
    assert sorted(each.name for each in state.iterdir()) == ["explorer-key-8123", "explorer-key-8124"]


def test_a_key_that_others_could_read_or_that_is_none_is_replaced(state: Path) -> None:
    key, file = key_of_port(8123), state / "explorer-key-8123"
    file.chmod(0o644)
    replaced = key_of_port(8123)
    assert replaced != key
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    file.write_text("../../etc/passwd and more")
    assert key_of_port(8123) != replaced
    file.unlink()
    file.symlink_to(state / "elsewhere")
    with pytest.raises(
        LoadError, match=r"the key of port 8123 must be kept in .*explorer-key-8123, .* leave out --por"
    ):
        key_of_port(8123)


def test_a_folder_that_cannot_be_written_is_said_with_the_remedy(state: Path) -> None:
    state.parent.joinpath("regard").write_text("a file in the place of the folder")
    with pytest.raises(LoadError, match=r"set XDG_STATE_HOME to another one, or leave out --port"):
        key_of_port(8123)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_the_address_survives_a_restart_where_the_port_was_chosen(tmp_path: Path) -> None:
    port, environment = free_port(), {"XDG_STATE_HOME": str(tmp_path)}
    addresses, sessions = [], []
    for _ in range(2):
        with serving(port=port, environment=environment) as server:
            addresses.append(server.address)
            sessions.append(server.ask("state").values["session"])
            status, _, data = server.get("/proof/nonce-1")
            assert status == 200
            answer = {"proof": proof(server.path.strip("/"), port, "nonce-1"), "session": sessions[-1]}
            assert json.loads(data) == answer
            assert server.path.strip("/") not in data.decode()
    assert addresses[0] == addresses[1] == f"http://127.0.0.1:{port}/{key_file(tmp_path, port)}/"
    assert sessions[0] != sessions[1]


def key_file(folder: Path, port: int) -> str:
    return (folder / "regard" / f"explorer-key-{port}").read_text().strip()


def test_a_question_with_the_session_of_another_start_is_refused(server: Served) -> None:
    status, data = server.post("state", {}, **{"X-Session": "of-yesterday"})
    assert status == 409
    assert json.loads(data)["error"] == (
        "the explorer was started again; numbers of texts from before mean other texts."
    )
    session = server.ask("state").values["session"]
    assert server.post("state", {}, **{"X-Session": session})[0] == 200


def test_the_proof_depends_on_the_key_the_port_and_the_nonce() -> None:
    proofs = {proof(key, port, nonce) for key in "ab" for port in (1, 2) for nonce in "xy"}
    assert len(proofs) == 8


def test_an_address_of_an_earlier_start_gets_a_page_in_a_browser_and_json_elsewhere(server: Served) -> None:
    browser = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
    status, headers, data = server.get("/a-key-of-yesterday/", **browser)
    assert (status, headers["content-type"]) == (404, "text/html; charset=utf-8")
    assert b"started again" in data
    assert b"regard look --port" in data
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "unsafe" not in headers["content-security-policy"]
    assert server.path.strip("/").encode() not in data
    status, headers, _ = server.get("/a-key-of-yesterday/")
    assert (status, headers["content-type"]) == (404, "application/json")


def test_a_port_in_use_is_said_before_a_model_is_loaded() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        message = f"port must be free and from 0 to 65535; got {port}: "
        with pytest.raises(SpecError, match=message):
            serve("a", model="/there/is/no/such/model", port=port, open_browser=False)
        command = [sys.executable, "-m", "regard.cli", "look", "a", "--model", "/there/is/no/such/model"]
        done = subprocess.run(
            [*command, "--port", str(port), "--no-browser"], capture_output=True, text=True, env=os.environ
        )
    assert done.returncode == 2
    assert message in done.stderr


def test_a_free_port_is_taken_where_none_was_chosen() -> None:
    listener = listen(0)
    try:
        assert listener.port > 0
        assert not listener.is_chosen
    finally:
        listener.socket.close()
