"""The widget of a notebook, driven by messages as a page sends them."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import regard.explorer
from regard.explorer.packing import unpacked
from tests.explorer.recordings import a_tape

anywidget = pytest.importorskip("anywidget")


class Line:
    """The other end of a widget: what it sends."""

    def __init__(self, widget: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.widget, self.sent = widget, []
        monkeypatch.setattr(widget, "send", lambda content, buffers=None: self.sent.append((content, buffers)))

    def ask(self, message: Any) -> Any:
        self.widget._handle_custom_msg(message, [])
        return self.sent[-1] if self.sent else None


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch) -> Line:
    return Line(regard.explorer.look(a_tape(6, 6), tokens=list("abcdef"), title="six letters"), monkeypatch)


def test_a_question_is_answered_with_its_number_and_the_packed_answer(line: Line) -> None:
    params = {"shown": 0, "layer": 0, "heads": [1], "queries": [2]}
    content, buffers = line.ask({"id": 17, "name": "row", "params": params})
    assert content == {"id": 17}
    right = line.widget.explorer.shown[0].tape[0].weights[0, 1, 2]
    assert np.allclose(unpacked(buffers[0]).arrays["mean"][0], right, atol=1e-6)


def test_a_refusal_is_a_sentence_under_the_same_number(line: Line) -> None:
    content, buffers = line.ask({"id": 3, "name": "row", "params": {"layer": 0, "queries": [99]}})
    assert content == {"id": 3, "error": "queries must be a whole number from 0 to 5; got 99."}
    assert not buffers


def test_the_state_has_the_tokens_and_the_title(line: Line) -> None:
    _, buffers = line.ask({"id": 1, "name": "state", "params": {}})
    shown = unpacked(buffers[0]).values["shown"][0]
    assert (shown["title"], shown["texts"][0]["tokens"]) == ("six letters", list("abcdef"))


def test_what_is_no_question_is_not_answered(line: Line) -> None:
    for message in (None, "state", {}, {"id": 1, "name": 5}):
        line.widget._answer(line.widget, message, [])  # itself, since the widget hides errors of those it calls
    assert line.sent == []


def test_the_script_and_the_style_are_in_the_widget_and_nothing_is_remote(line: Line) -> None:
    script, style = re.sub(r"/\*.*?\*/", "", str(line.widget._esm), flags=re.DOTALL), str(line.widget._css)
    assert script.rstrip().endswith("export default page.default;")
    assert "widgetSource" in script
    assert not any(f'from "{way}' in script or f'import("{way}' in script for way in ("http", "./", "/"))
    assert "url(http" not in style


def test_a_widget_is_written_into_a_file(line: Line, tmp_path: Path) -> None:
    path = tmp_path / "six.html"
    assert line.widget.export(path, heads=[(0, 1)]) == []
    text = path.read_text(encoding="utf8")
    assert "<title>six letters</title>" in text
    assert "regard-answers" in text


@pytest.fixture(scope="module")
def alone() -> list[str]:
    """What a process prints that imports the library, and looks at a recording where anywidget is not installed."""
    code = (
        "import sys, regard, regard.explorer\n"
        "print([name for name in ('starlette', 'uvicorn', 'anywidget', 'transformers') if name in sys.modules])\n"
        "sys.modules['anywidget'] = None\n"
        "try: regard.explorer.look(regard.Tape())\n"
        "except regard.errors.MissingError as error: print(error)\n"
    )
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.splitlines()


def test_importing_the_library_imports_neither_a_server_nor_a_widget(alone: list[str]) -> None:
    assert alone[0] == "[]"


def test_without_anywidget_it_says_what_to_install(alone: list[str]) -> None:
    assert alone[1:] == [
        "regard.look shows a widget by the package anywidget, which is not installed. Use pip install regard[explorer]."
    ]
