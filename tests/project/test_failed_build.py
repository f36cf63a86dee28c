"""A failed build of the compiled core prints the error, and `explain` repeats it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ERROR = "csrc/isa/avx2.cpp:1:2: error: unknown instruction"
EXPLAIN = """
import regard
plan = regard.explain((1, 2, 20, 8), (1, 2, 20, 8), (1, 2, 20, 8))
print(plan.backend, *plan.unsupported_reasons["native"], sep=chr(10))
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of the files of the build, with the core of an earlier build."""
    ignored = shutil.ignore_patterns("__pycache__", "*.so", "core_not_built.txt")
    for name in ("csrc", "src/regard"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=ignored)
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "src" / "regard" / "_core.abi3.so").touch()
    return tmp_path


def build(checkout: Path, compiler: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "setup.py", "build_ext", "--inplace"]
    environment = {**os.environ, "CC": compiler, "CXX": compiler, "PYTHONPATH": ""}
    return subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, check=False)


def broken_compiler(folder: Path) -> str:
    path = folder / "broken-compiler"
    path.write_text(f"#!/bin/sh\necho 'In file included from here:' >&2\necho '{ERROR}' >&2\nexit 1\n", encoding="utf8")
    path.chmod(0o755)
    return str(path)


def explain(checkout: Path) -> list[str]:
    environment = {**os.environ, "PYTHONPATH": str(checkout / "src")}
    command = [sys.executable, "-c", EXPLAIN]
    result = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, check=True)
    return result.stdout.splitlines()


def test_a_failed_build_prints_the_first_error_and_the_plan_repeats_it(checkout: Path) -> None:
    result = build(checkout, broken_compiler(checkout))

    assert result.returncode == 0, result.stderr
    assert f"the compiled core was NOT built; the build failed with: {ERROR}" in result.stderr
    assert explain(checkout) == ["tiled", f"the compiled core is missing: the build failed with: {ERROR}"]


@pytest.mark.parametrize(
    ("compiler", "reason"),
    [
        ("false", "false ended with status 1 and no message"),
        ("no-such-compiler", "no-such-compiler: No such file or directory"),
    ],
)
def test_a_missing_or_silent_compiler_is_named(checkout: Path, compiler: str, reason: str) -> None:
    result = build(checkout, compiler)

    assert result.returncode == 0, result.stderr
    assert f"the compiled core was NOT built; the build failed with: {reason}" in result.stderr
    notice = (checkout / "src" / "regard" / "core_not_built.txt").read_text(encoding="utf8")
    assert notice == f"the build failed with: {reason}\n"
    assert not list((checkout / "src" / "regard").glob("_core*.so"))
