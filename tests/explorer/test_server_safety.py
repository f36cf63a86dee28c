"""Protection against other users and slow clients, and addresses that survive a restart."""

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

from regard.errors import ArgumentError, LoadError
from regard.explorer.server.app import serve
from regard.explorer.server.listener import listen
from regard.explorer.server.open_browser import RedirectFile
from regard.explorer.server.page_key import load_or_create_key, proof
from tests.explorer.server_process import ServerProcess, free_port, run_server

TIMEOUT_S = 1.0
BROWSER_SCRIPT = """#!{python}
import pathlib, sys, time
pathlib.Path({log!r}).write_text(sys.argv[1])
time.sleep(60)
"""


@pytest.fixture(scope="module")
def browser_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file with the address that the server opened in its browser, a script beside it."""
    return tmp_path_factory.mktemp("browser") / "opened"


@pytest.fixture(scope="module")
def server(browser_log: Path) -> Iterator[ServerProcess]:
    script = browser_log.with_name("browser")
    script.write_text(BROWSER_SCRIPT.format(python=sys.executable, log=str(browser_log)))
    script.chmod(0o700)
    environment = {"BROWSER": f"{script} %s &"}
    with run_server(header_timeout=TIMEOUT_S, opens_browser=True, environment=environment) as process:
        yield process


def seconds_until_closed(server: ServerProcess, sent: bytes, drips: bytes = b"") -> float:
    """Return the seconds until the server closes a connection that sends `sent` and then `drips` repeatedly."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        start = time.perf_counter()
        connection.sendall(sent)
        connection.settimeout(0.2)
        while time.perf_counter() - start < 20:
            try:
                if not connection.recv(65536):
                    break
            except TimeoutError:
                if drips:
                    connection.sendall(drips)
            except OSError:
                break
        return time.perf_counter() - start


@pytest.mark.parametrize(
    "sent, drips",
    [
        (b"", b""),
        (b"GET / HTTP/1.1\r\nHost: 127", b""),
        (b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ", b"x"),
        (
            b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\n",
            b"x",
        ),  # the response comes before the body
        (b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\nGET / HT", b"x"),  # a second request without an end
    ],
)
def test_an_incomplete_request_is_closed(server: ServerProcess, sent: bytes, drips: bytes) -> None:
    assert seconds_until_closed(server, sent, drips) < 15  # the timeout is one second; uvicorn alone has none
    assert server.get("/")[0] == 404


def test_the_header_timeout_does_not_limit_the_response(server: ServerProcess) -> None:
    session_id = server.request("run_model", text=" a whale" * 600).values["id"]
    assert len(server.request("heads", session=session_id).values["rows"]) == 32


def command_lines() -> list[str]:
    """Return the command lines of all processes, which every user can read."""
    lines = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            lines.append((process / "cmdline").read_bytes().decode(errors="replace"))
        except OSError:
            continue
    return lines


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="only Linux has /proc")
def test_the_key_is_on_no_command_line_and_in_a_private_file(server: ServerProcess, browser_log: Path) -> None:
    """The other tests do not open the page, which removes the file."""
    for _ in range(200):
        if browser_log.exists() and browser_log.read_text():
            break
        time.sleep(0.1)
    file = Path(browser_log.read_text().removeprefix("file://"))
    key = server.path.strip("/")
    lines = command_lines()
    assert any(str(file) in line for line in lines), "the browser must run"
    assert not any(key in line for line in lines)
    assert server.address in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert server.get(server.path)[0] == 200
    for _ in range(100):
        if not file.parent.exists():
            break
        time.sleep(0.1)
    assert not file.parent.exists(), "the file must be removed when the page is open"


def test_the_redirect_file_is_removed_after_use() -> None:
    with RedirectFile("http://127.0.0.1:1/a&b/") as file:
        assert "url=http://127.0.0.1:1/a&amp;b/" in file.path.read_text()
    assert not file.path.parent.exists()


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "regard"


def test_a_port_has_the_same_key_at_each_start_in_a_private_file(state: Path) -> None:
    key = load_or_create_key(8123)
    assert len(key) >= 20
    assert load_or_create_key(8123) == key
    assert load_or_create_key(8124) != key
    file = state / "explorer-key-8123"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(state.stat().st_mode) == 0o700
    assert sorted(path.name for path in state.iterdir()) == ["explorer-key-8123", "explorer-key-8124"]


def test_an_invalid_or_readable_key_is_replaced(state: Path) -> None:
    key, file = load_or_create_key(8123), state / "explorer-key-8123"
    file.chmod(0o644)
    new_key = load_or_create_key(8123)
    assert new_key != key
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    file.write_text("../../etc/passwd and more")
    assert load_or_create_key(8123) != new_key
    file.unlink()
    file.symlink_to(state / "elsewhere")
    with pytest.raises(LoadError, match=r"the key of port 8123 is stored in .*explorer-key-8123, .* omit --port"):
        load_or_create_key(8123)


def test_a_folder_that_cannot_be_written_raises(state: Path) -> None:
    state.parent.joinpath("regard").write_text("a file instead of the folder")
    with pytest.raises(LoadError, match=r"set XDG_STATE_HOME to another folder, or omit --port"):
        load_or_create_key(8123)


@pytest.mark.long
def test_the_address_of_a_chosen_port_survives_a_restart(tmp_path: Path) -> None:
    port, environment = free_port(), {"XDG_STATE_HOME": str(tmp_path)}
    addresses, server_ids = [], []
    for _ in range(2):
        with run_server(port=port, environment=environment) as server:
            addresses.append(server.address)
            server_ids.append(server.request("state").values["server_id"])
            status, _, data = server.get("/proof/nonce-1")
            assert status == 200
            expected = {"proof": proof(server.path.strip("/"), port, "nonce-1"), "server_id": server_ids[-1]}
            assert json.loads(data) == expected
            assert server.path.strip("/") not in data.decode()
    assert addresses[0] == addresses[1] == f"http://127.0.0.1:{port}/{stored_key(tmp_path, port)}/"
    assert server_ids[0] != server_ids[1]


def stored_key(folder: Path, port: int) -> str:
    return (folder / "regard" / f"explorer-key-{port}").read_text().strip()


def test_a_request_with_the_server_id_of_an_earlier_start_is_rejected(server: ServerProcess) -> None:
    status, data = server.post("state", {}, **{"X-Server-Id": "earlier"})
    assert status == 409
    assert json.loads(data)["error"] == "the explorer was restarted, and earlier session ids are no longer valid."
    server_id = server.request("state").values["server_id"]
    assert server.post("state", {}, **{"X-Server-Id": server_id})[0] == 200


def test_the_proof_depends_on_the_key_the_port_and_the_nonce() -> None:
    proofs = {proof(key, port, nonce) for key in "ab" for port in (1, 2) for nonce in "xy"}
    assert len(proofs) == 8


def test_an_address_of_an_earlier_start_gives_a_page_in_a_browser_and_json_elsewhere(server: ServerProcess) -> None:
    accept = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
    status, headers, data = server.get("/an-earlier-key/", **accept)
    assert (status, headers["content-type"]) == (404, "text/html; charset=utf-8")
    assert b"restarted after" in data
    assert b"regard explore --port" in data
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "unsafe" not in headers["content-security-policy"]
    assert server.path.strip("/").encode() not in data
    status, headers, _ = server.get("/an-earlier-key/")
    assert (status, headers["content-type"]) == (404, "application/json")


def test_a_port_in_use_raises_before_a_model_is_loaded() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        message = f"port must be free and from 0 to 65535; got {port}: "
        with pytest.raises(ArgumentError, match=message):
            serve("a", model="/there/is/no/such/model", port=port, open_browser=False)
        command = [sys.executable, "-m", "regard.cli", "explore", "a", "--model", "/there/is/no/such/model"]
        result = subprocess.run(
            [*command, "--port", str(port), "--no-browser"], capture_output=True, text=True, env=os.environ
        )
    assert result.returncode == 2
    assert message in result.stderr


def test_port_zero_uses_a_free_port() -> None:
    listener = listen(0)
    try:
        assert listener.port > 0
        assert not listener.has_fixed_port
    finally:
        listener.socket.close()
