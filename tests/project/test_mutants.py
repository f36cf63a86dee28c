"""The runner of the breaks, on a toy project of its own; and whether the committed list fits the code."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tools.mutants import read_list

ROOT = Path(__file__).parents[2]
RUNNER = ROOT / "tools" / "mutants.py"

# The toy carries the name of the installed package, and a value that the installed one does not have.
CODE = "VALUE = 2\nOTHER = 2\n\n\ndef double(x):\n    return VALUE * x\n"
LAWS = """
import pytest, regard

def test_double():
    assert regard.double(3) == 6

def test_other():
    assert regard.OTHER == 2

def test_nothing():
    pass

def test_always_wrong():
    assert False

@pytest.mark.long
def test_long():
    assert regard.double(1) == 2

@pytest.fixture
def six():
    assert regard.double(3) == 6

def test_fixture(six):
    pass
"""
LAW = "tests/test_laws.py::test_double"


def project(root: Path, *breaks: dict[str, object]) -> Path:
    for name, text in {"src/regard/__init__.py": CODE, "tests/test_laws.py": LAWS}.items():
        (root / name).parent.mkdir(parents=True)
        (root / name).write_text(text, encoding="utf8")
    (root / "pyproject.toml").write_text(
        "[tool.pytest.ini_options]\naddopts = ['-m', 'not long']\nmarkers = ['long']\n", encoding="utf8"
    )
    (root / "tools").mkdir()
    usual = {
        "name": "a",
        "file": "src/regard/__init__.py",
        "old": "VALUE = 2",
        "new": "VALUE = 3",
        "laws": [LAW],
    }
    # A JSON string or list of strings is a TOML one as well.
    entries = [[f"{key} = {json.dumps(value)}" for key, value in (usual | each).items()] for each in breaks]
    listed = "\n".join("\n".join(["[[break]]", *entry]) for entry in entries)
    (root / "tools" / "mutants.toml").write_text(listed, encoding="utf8")
    return root


def mutants(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(RUNNER), "--root", str(root), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_break_that_fails_its_law_is_killed_and_the_tree_stays_as_it_was(tmp_path: Path) -> None:
    root = project(tmp_path, {}, {"name": "b", "laws": [LAW, "tests/test_laws.py::test_long"]})
    done = mutants(root)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "killed   a" in done.stdout
    assert "killed   b" in done.stdout
    assert "2 passed, 0 failed" in done.stdout
    assert (root / "src" / "regard" / "__init__.py").read_text(encoding="utf8") == CODE
    assert sorted(path.name for path in root.iterdir()) == ["pyproject.toml", "src", "tests", "tools"]


def test_a_break_that_one_of_its_laws_does_not_notice_survives(tmp_path: Path) -> None:
    root = project(tmp_path, {}, {"name": "b", "laws": [LAW, "tests/test_laws.py::test_nothing"]})
    done = mutants(root)
    assert done.returncode == 1
    assert "SURVIVED b\n    tests/test_laws.py::test_nothing still passes" in done.stdout
    assert "1 passed, 1 failed" in done.stdout


@pytest.mark.parametrize(
    "change, reason",
    [
        ({"new": "VALUE ="}, "gave no verdict"),
        ({"new": "raise OSError"}, "gave no verdict"),
        ({"laws": ["tests/test_laws.py::test_fixture"]}, "gave no verdict (pytest returned 1)"),
        ({"new": "while True: pass"}, "no verdict within 10 s"),
    ],
)
def test_a_break_that_keeps_its_law_from_running_is_not_killed(
    tmp_path: Path, change: dict[str, object], reason: str
) -> None:
    done = mutants(project(tmp_path, change), "--seconds", "10")
    assert done.returncode == 1
    assert reason in done.stdout
    assert "0 passed, 1 failed" in done.stdout


@pytest.mark.parametrize(
    "change, reason",
    [
        ({"old": "VALUE"}, "the old text must occur exactly once in src/regard/__init__.py; got 2 times"),
        ({"old": "GONE"}, "exactly once in src/regard/__init__.py; got 0 times"),
        ({"new": "VALUE = 2"}, "the new text must differ"),
        ({"file": "src/gone.py"}, "the file must be one under src or native; got src/gone.py"),
        ({"file": "tests/test_laws.py"}, "the file must be one under src or native; got tests/test_laws.py"),
        ({"laws": []}, "at least one law must be named"),
        ({"extra": "x"}, "a break must have file, laws, name, new, old; got extra, file"),
        (
            {"laws": ["tests/test_laws.py::test_always_wrong"]},
            "every named law must pass on the code as it is",
        ),
        ({"laws": ["tests/test_laws.py::test_gone"]}, "every named law must pass on the code as it is"),
    ],
)
def test_a_list_that_proves_nothing_is_refused(tmp_path: Path, change: dict[str, object], reason: str) -> None:
    done = mutants(project(tmp_path, change))
    assert done.returncode == 2
    assert reason in done.stderr


def test_two_breaks_of_one_name_are_refused(tmp_path: Path) -> None:
    done = mutants(project(tmp_path, {}, {}))
    assert done.returncode == 2
    assert "a: names must differ; got this one 2 times" in done.stderr


def test_breaks_are_chosen_by_words_of_their_names(tmp_path: Path) -> None:
    done = mutants(project(tmp_path, {"name": "left"}, {"name": "right"}), "igh")
    assert "1 passed, 0 failed" in done.stdout
    assert "right" in done.stdout
    assert "left" not in done.stdout


def test_the_committed_breaks_still_fit_the_code_and_name_laws_that_exist() -> None:
    breaks = read_list(ROOT / "tools" / "mutants.toml", ROOT)
    assert breaks
    assert [law for each in breaks for law in each.laws if not _exists(law)] == []


def _exists(law: str) -> bool:
    file, *names = law.split("[")[0].split("::")
    if not (ROOT / file).is_file() or not names:
        return False
    tree = ast.parse((ROOT / file).read_text(encoding="utf8"))
    defined = {node.name for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    return defined.issuperset(names)
