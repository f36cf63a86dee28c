"""The mutation tests: the runner on a toy project, and whether the committed mutants fit the code."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools.mutants import load_mutants

ROOT = Path(__file__).parents[2]
RUNNER = ROOT / "tools" / "mutants.py"

# The toy project has the name of the installed package, and attributes that the installed package does not have.
CODE = "VALUE = 2\nOTHER = 2\n\n\ndef double(x):\n    return VALUE * x\n"
TESTS = """
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
TEST = "tests/test_toy.py::test_double"


def create_project(root: Path, *mutants: dict[str, object]) -> Path:
    for name, text in {"src/regard/__init__.py": CODE, "tests/test_toy.py": TESTS}.items():
        (root / name).parent.mkdir(parents=True)
        (root / name).write_text(text, encoding="utf8")
    (root / "pyproject.toml").write_text(
        "[tool.pytest.ini_options]\naddopts = ['-m', 'not long']\nmarkers = ['long']\n", encoding="utf8"
    )
    (root / "tools" / "mutants").mkdir(parents=True)
    defaults = {
        "name": "a",
        "file": "src/regard/__init__.py",
        "old": "VALUE = 2",
        "new": "VALUE = 3",
        "tests": [TEST],
    }
    # JSON strings and lists of strings are valid TOML.
    entries = [[f"{key} = {json.dumps(value)}" for key, value in (defaults | entry).items()] for entry in mutants]
    text = "\n".join("\n".join(["[[mutant]]", *entry]) for entry in entries)
    (root / "tools" / "mutants" / "toy.toml").write_text(text, encoding="utf8")
    return root


def run_mutants(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(RUNNER), "--root", str(root), *arguments]
    environment = {
        **os.environ,
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }  # pytest starts faster
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def test_a_mutant_that_fails_its_tests_is_killed_and_the_tree_is_unchanged(tmp_path: Path) -> None:
    root = create_project(tmp_path, {}, {"name": "b", "tests": [TEST, "tests/test_toy.py::test_long"]})
    result = run_mutants(root)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "killed   a" in result.stdout
    assert "killed   b" in result.stdout
    assert "2 killed, 0 survived" in result.stdout
    assert (root / "src" / "regard" / "__init__.py").read_text(encoding="utf8") == CODE
    assert sorted(path.name for path in root.iterdir()) == ["pyproject.toml", "src", "tests", "tools"]


def test_a_mutant_that_passes_one_of_its_tests_survives(tmp_path: Path) -> None:
    root = create_project(tmp_path, {}, {"name": "b", "tests": [TEST, "tests/test_toy.py::test_nothing"]})
    result = run_mutants(root)
    assert result.returncode == 1
    assert "SURVIVED b\n    tests/test_toy.py::test_nothing still passes" in result.stdout
    assert "1 killed, 1 survived" in result.stdout


@pytest.mark.parametrize(
    "change, reason",
    [
        ({"new": "VALUE ="}, "did not run"),
        ({"new": "raise OSError"}, "did not run"),
        ({"tests": ["tests/test_toy.py::test_fixture"]}, "did not run (pytest returned 1)"),
        ({"new": "__import__('time').sleep(60)"}, "did not end within 5 s"),
    ],
)
def test_a_mutant_whose_test_cannot_run_is_not_killed(tmp_path: Path, change: dict[str, object], reason: str) -> None:
    result = run_mutants(create_project(tmp_path, change), "--seconds", "5")
    assert result.returncode == 1
    assert reason in result.stdout
    assert "0 killed, 1 survived" in result.stdout


@pytest.mark.parametrize(
    "change, reason",
    [
        ({"old": "VALUE"}, "the old text must occur exactly once in src/regard/__init__.py; got 2 times"),
        ({"old": "GONE"}, "exactly once in src/regard/__init__.py; got 0 times"),
        ({"new": "VALUE = 2"}, "the new text must differ"),
        ({"file": "src/gone.py"}, "the file must exist under src or csrc; got src/gone.py"),
        ({"file": "tests/test_toy.py"}, "the file must exist under src or csrc; got tests/test_toy.py"),
        ({"tests": []}, "at least one test must be named"),
        ({"extra": "x"}, "a mutant must have file, name, new, old, tests; got extra, file"),
        (
            {"tests": ["tests/test_toy.py::test_always_wrong"]},
            "every named test must pass on the unchanged code",
        ),
        ({"tests": ["tests/test_toy.py::test_gone"]}, "every named test must pass on the unchanged code"),
    ],
)
def test_an_invalid_list_is_an_error(tmp_path: Path, change: dict[str, object], reason: str) -> None:
    result = run_mutants(create_project(tmp_path, change))
    assert result.returncode == 2
    assert reason in result.stderr


def test_two_mutants_with_one_name_are_an_error(tmp_path: Path) -> None:
    result = run_mutants(create_project(tmp_path, {}, {}))
    assert result.returncode == 2
    assert "a: names must be unique; got this name 2 times" in result.stderr


def test_mutants_are_selected_by_parts_of_their_names(tmp_path: Path) -> None:
    result = run_mutants(create_project(tmp_path, {"name": "left"}, {"name": "right"}), "igh")
    assert "1 killed, 0 survived" in result.stdout
    assert "right" in result.stdout
    assert "left" not in result.stdout


def test_the_committed_mutants_fit_the_code_and_name_existing_tests() -> None:
    mutants = load_mutants(ROOT / "tools" / "mutants", ROOT)
    assert mutants
    assert [test for mutant in mutants for test in mutant.tests if not _exists(test)] == []


def _exists(test: str) -> bool:
    file, *names = test.split("[")[0].split("::")
    if not (ROOT / file).is_file() or not names:
        return False
    tree = ast.parse((ROOT / file).read_text(encoding="utf8"))
    defined = {node.name for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    return defined.issuperset(names)
