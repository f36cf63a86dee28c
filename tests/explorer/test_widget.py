"""The notebook widget, driven by messages as the page sends them."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import regard.explorer
from regard.explorer.api.packing import unpack
from tests.explorer.recordings import make_recording

anywidget = pytest.importorskip("anywidget")


class WidgetClient:
    """Sends messages to a widget and collects its responses."""

    def __init__(self, widget: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.widget, self.sent = widget, []
        monkeypatch.setattr(widget, "send", lambda content, buffers=None: self.sent.append((content, buffers)))

    def send(self, message: Any) -> Any:
        self.widget._handle_custom_msg(message, [])
        return self.sent[-1] if self.sent else None


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> WidgetClient:
    return WidgetClient(
        regard.explorer.explore(make_recording(6, 6), tokens=list("abcdef"), title="six letters"), monkeypatch
    )


def test_the_response_has_the_id_of_the_request_and_a_packed_buffer(client: WidgetClient) -> None:
    params = {"session": 0, "layer": 0, "heads": [1], "queries": [2]}
    content, buffers = client.send({"id": 17, "name": "query_weights", "params": params})
    assert content == {"id": 17}
    expected = client.widget.explorer.sessions[0].recording[0].weights[0, 1, 2]
    assert np.allclose(unpack(buffers[0]).arrays["mean"][0], expected, atol=1e-6)


def test_an_error_has_the_id_of_the_request_and_a_message(client: WidgetClient) -> None:
    content, buffers = client.send({"id": 3, "name": "query_weights", "params": {"layer": 0, "queries": [99]}})
    assert content == {"id": 3, "error": "queries must be an integer from 0 to 5; got 99."}
    assert not buffers


def test_the_state_has_the_tokens_and_the_title(client: WidgetClient) -> None:
    _, buffers = client.send({"id": 1, "name": "state", "params": {}})
    session = unpack(buffers[0]).values["sessions"][0]
    assert (session["title"], session["texts"][0]["tokens"]) == ("six letters", list("abcdef"))


def test_invalid_messages_are_ignored(client: WidgetClient) -> None:
    for message in (None, "state", {}, {"id": 1, "name": 5}):
        # called directly, because the widget hides errors of its handlers
        client.widget._handle_message(client.widget, message, [])
    assert client.sent == []


def test_the_widget_contains_its_script_and_style(client: WidgetClient) -> None:
    script, style = re.sub(r"/\*.*?\*/", "", str(client.widget._esm), flags=re.DOTALL), str(client.widget._css)
    assert script.rstrip().endswith("export default page.default;")
    assert "widgetSource" in script
    assert not any(f'from "{prefix}' in script or f'import("{prefix}' in script for prefix in ("http", "./", "/"))
    assert "url(http" not in style


def test_a_widget_is_exported_to_a_file(client: WidgetClient, tmp_path: Path) -> None:
    path = tmp_path / "six.html"
    assert client.widget.export(path, heads=[(0, 1)]) == []
    text = path.read_text(encoding="utf8")
    assert "<title>six letters</title>" in text
    assert "regard-responses" in text


@pytest.fixture(scope="module")
def output_lines() -> list[str]:
    """The output of a process that imports the library and calls `explore` without anywidget."""
    code = (
        "import sys, regard, regard.explorer\n"
        "print([name for name in ('starlette', 'uvicorn', 'anywidget', 'transformers') if name in sys.modules])\n"
        "sys.modules['anywidget'] = None\n"
        "try: regard.explorer.explore(regard.Recording())\n"
        "except regard.errors.MissingDependencyError as error: print(error)\n"
    )
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.splitlines()


def test_importing_regard_imports_neither_the_server_nor_the_widget(output_lines: list[str]) -> None:
    assert output_lines[0] == "[]"


def test_explore_without_anywidget_raises(output_lines: list[str]) -> None:
    assert output_lines[1:] == [
        "regard.explore needs anywidget, which is not installed. Use pip install 'regard[explorer]'."
    ]
