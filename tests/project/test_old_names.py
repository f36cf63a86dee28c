"""The search for old names: the tree has none, and every kind of old name is reported."""

from pathlib import Path

import pytest

from tools.old_names import ALLOWED, findings, read_map


def write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf8")


def test_the_tree_has_no_old_names_and_needs_every_exception(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [line for line in ALLOWED.read_text(encoding="utf8").splitlines() if line and not line.startswith("#")]
    assert all(line.partition("  #")[2].strip() for line in lines), "every exception has a reason"
    monkeypatch.setattr("tools.old_names.ALLOWED", tmp_path / "none.txt")
    assert set(findings()) == {line.partition("  #")[0].strip() for line in lines}


def test_a_tree_with_new_names_has_no_findings(tmp_path: Path) -> None:
    write(
        tmp_path, "src/regard/mechanisms/axial.py", "def axial_attention_sum(q, k, v, *, num_axes=2):\n    return q\n"
    )
    write(tmp_path, "src/regard/explorer/frontend/app.css", ".query-color { color: red; }\n")

    assert findings(tmp_path) == []


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        (
            "src/regard/mechanisms/axial.py",
            "def axial(q, k, v):\n    return q\n",
            "function axial in regard.mechanisms.axial (now axial_attention_sum)",
        ),
        (
            "src/regard/backends/flex/backend.py",
            "class Fused:\n    pass\n",
            "class Fused in regard.backends.flex.backend (now FlexBackend)",
        ),
        (
            "src/regard/distributed/paged/cache.py",
            "class PagedCache:\n    def fork(self, sequence, length=None):\n        return length\n",
            "parameter sequence of fork in regard.distributed.paged.cache (now sequence_id)",
        ),
        (
            "src/regard/mask.py",
            "def causal():\n    found = 1\n    return found\n",
            "src/regard/mask.py:2: the name found",
        ),
        ("tests/test_mask.py", "def check(asked):\n    return asked\n", "tests/test_mask.py:1: the name asked"),
        ("csrc/parallel.cpp", "void run() { int kept = 0; }\n", "csrc/parallel.cpp:1: the name kept"),
        ("src/regard/heard.py", "", "file src/regard/heard.py (now src/regard/hooks.py)"),
        (
            "src/regard/explorer/frontend/app.css",
            ".of-query { color: red; }\n",
            "CSS class .of-query (now .query-color)",
        ),
        (
            "src/regard/explorer/frontend/lib/format.js",
            "export function seconds(value) {\n  return value;\n}\n",
            "js seconds in src/regard/explorer/frontend/lib/format.js (now formatDuration)",
        ),
    ],
    ids=[
        "function",
        "class",
        "parameter",
        "local",
        "argument",
        "C++ local",
        "file",
        "CSS class",
        "JavaScript function",
    ],
)
def test_a_planted_old_name_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str, expected: str
) -> None:
    monkeypatch.setattr("tools.old_names.ALLOWED", tmp_path / "none.txt")
    write(tmp_path, name, text)

    assert findings(tmp_path) == [expected]


def test_the_map_has_every_kind_of_name() -> None:
    kinds = {entry.kind for entry in read_map()}
    assert {"module", "class", "function", "method", "attribute", "parameter", "constant", "css", "js", "cpp"} <= kinds
