"""The Python blocks of the README and of the documents in docs run in order and print their expected output.

The blocks of one document share one namespace.
"""

import doctest
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parents[2]
DOCUMENTS = [
    ROOT / "README.md",
    *sorted(path for path in (ROOT / "docs").rglob("*.md") if "decisions" not in path.parts),
]
OPENING = re.compile(r"(?P<indent> *)(?P<fence>```+|~~~+) *(?P<label>[^`]*?) *")
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@dataclass(frozen=True)
class Block:
    """A fenced block: the label after the fence, the code, and the line number of the fence."""

    label: str
    code: str
    line: int


def blocks(text: str) -> Iterator[Block]:
    lines = iter(enumerate(text.splitlines(), 1))
    for number, line in lines:
        opening = OPENING.fullmatch(line)
        if opening is None:
            continue
        code = []
        for _, inner in lines:
            if inner.strip() == opening["fence"]:
                break
            code.append(inner.removeprefix(opening["indent"]))
        yield Block(opening["label"], "\n".join(code) + "\n", number)


def python_blocks(text: str) -> list[Block]:
    return [block for block in blocks(text) if block.label.lower().startswith(("py", "{py"))]


def run(text: str, name: str) -> None:
    """Run all blocks; raise the error of a block, or an AssertionError that shows how its output differs."""
    torch.manual_seed(0)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for block in python_blocks(text):
        if block.code.startswith(">>> "):
            _run_session(block, namespace, name)
        else:
            # Blank lines in front, so that an error shows the line of the document.
            exec(compile("\n" * block.line + block.code, name, "exec"), namespace)


def _run_session(block: Block, namespace: dict[str, Any], name: str) -> None:
    session = doctest.DocTestParser().get_doctest(block.code, namespace, name, name, block.line)
    report: list[str] = []
    runner = doctest.DocTestRunner(optionflags=FLAGS)
    runner.run(session, out=report.append, clear_globs=False)
    namespace.update(session.globs)
    assert runner.failures == 0, "".join(report)


@pytest.mark.parametrize(
    "document",
    [pytest.param(path, marks=pytest.mark.long) if path.parent.name == "theory" else path for path in DOCUMENTS],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_the_code_of_a_document_runs(document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # files that a block writes must not end up in the repository
    run(document.read_text(encoding="utf8"), str(document))


def test_every_python_block_has_the_label_python() -> None:
    labels = {
        f"{document.name}:{block.line}: {block.label}"
        for document in DOCUMENTS
        for block in python_blocks(document.read_text(encoding="utf8"))
        if block.label != "python"
    }
    assert labels == set(), "the label of a Python block must be python, so that it runs"


def test_the_readme_shows_code() -> None:
    assert python_blocks((ROOT / "README.md").read_text(encoding="utf8"))


def test_blocks_share_names_and_sessions_are_compared() -> None:
    run(
        "```python\na = 1\n```\ntext\n```python\n>>> a + 1\n2\n>>> b = a\n```\n~~~python\nassert b == 1\n~~~",
        "x.md",
    )


@pytest.mark.parametrize(
    "text, expected",
    [
        ("```python\n>>> 1 + 1\n3\n```", "Expected:"),
        ("```python\n>>> 1 + 1\n```", "Expected nothing"),
        ("1. item\n   ```python\n   assert False, 'wrong'\n   ```", "wrong"),
    ],
)
def test_a_wrong_block_fails(text: str, expected: str) -> None:
    with pytest.raises(AssertionError, match=expected):
        run(text, "x.md")


def test_an_error_names_the_line_of_the_document() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        run("# Title\n\n```python\na = 1\na / 0\n```\n", "x.md")
    assert caught.traceback[-1].lineno + 1 == 5
