"""A build of the compiled core that fails: it says so, and the installed package repeats why."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ERROR = "native/avx2.cpp:1:2: error: unknown instruction"
EXPLAIN = """
import regard
plan = regard.explain((1, 2, 20, 8), (1, 2, 20, 8), (1, 2, 20, 8))
print(plan.engine, *plan.objections["native"], sep=chr(10))
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of what the build reads, with the core of an earlier build in it."""
    ignored = shutil.ignore_patterns("__pycache__", "*.so", "core_not_built.txt")
    for name in ("native", "src/regard"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=ignored)
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "src" / "regard" / "_core.abi3.so").touch()
    return tmp_path


def build(checkout: Path, compiler: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "setup.py", "build_ext", "--inplace"]
    surroundings = {**os.environ, "CC": compiler, "CXX": compiler, "PYTHONPATH": ""}
    return subprocess.run(command, cwd=checkout, env=surroundings, capture_output=True, text=True, check=False)


def broken_compiler(folder: Path) -> str:
    path = folder / "broken-compiler"
    path.write_text(f"#!/bin/sh\necho 'In file included from here:' >&2\necho '{ERROR}' >&2\nexit 1\n", encoding="utf8")
    path.chmod(0o755)
    return str(path)


def explained(checkout: Path) -> list[str]:
    surroundings = {**os.environ, "PYTHONPATH": str(checkout / "src")}
    command = [sys.executable, "-c", EXPLAIN]
    done = subprocess.run(command, cwd=checkout, env=surroundings, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_a_build_that_fails_prints_the_first_error_and_the_plan_repeats_it(checkout: Path) -> None:
    done = build(checkout, broken_compiler(checkout))

    assert done.returncode == 0, done.stderr
    assert f"the compiled core was NOT built; the build failed with: {ERROR}" in done.stderr
    assert explained(checkout) == ["tiled", f"the compiled core is missing: the build failed with: {ERROR}"]


@pytest.mark.parametrize(
    ("compiler", "reason"),
    [
        ("false", "false ended with status 1 and no message"),
        ("no-such-compiler", "no-such-compiler: No such file or directory"),
    ],
)
def test_a_compiler_without_a_message_or_that_is_missing_is_named(checkout: Path, compiler: str, reason: str) -> None:
    done = build(checkout, compiler)

    assert done.returncode == 0, done.stderr
    assert f"the compiled core was NOT built; the build failed with: {reason}" in done.stderr
    notice = (checkout / "src" / "regard" / "core_not_built.txt").read_text(encoding="utf8")
    assert notice == f"the build failed with: {reason}\n"
    assert not list((checkout / "src" / "regard").glob("_core*.so"))
