"""A failed build of the compiled core prints the error; `explain`, a warning and `regard doctor` repeat it."""

import json
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
# Each call that could run on the native backend would warn, but only the first one does.
CALLS = """
import torch, regard
x = torch.randn(1, 2, 20, 8)
regard.attention(x.double(), x.double(), x.double())
regard.attention(x, x, x, backend="tiled")
print("native is not involved", flush=True)
regard.attention(x, x, x)
regard.attention(x, x, x, mask=regard.mask.causal())
regard.attention_with_weights(x, x, x)
print(torch.__version__)
"""
IN_A_TERMINAL = "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))"


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
    # a new session has no terminal, so the build cannot write to that of the tests
    return subprocess.run(
        command, cwd=checkout, env=environment, capture_output=True, text=True, check=False, start_new_session=True
    )


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


def pip_install(checkout: Path, compiler: str) -> tuple[str, Path]:
    """Install the checkout with pip in a terminal; return what the terminal shows, and the folder of the package."""
    target = checkout / "installed"
    pip = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--no-build-isolation", "--target"]
    environment = {**os.environ, "CC": compiler, "CXX": compiler, "PYTHONPATH": "", "PIP_CONFIG_FILE": os.devnull}
    result = subprocess.run(
        [sys.executable, "-c", IN_A_TERMINAL, *pip, str(target), "."],
        cwd=checkout,
        env={name: value for name, value in environment.items() if name not in ("PIP_VERBOSE", "PIP_QUIET")},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        start_new_session=True,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout, target


def run_installed(target: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(target)}
    environment.pop("PYTHONWARNINGS", None)
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=target, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.long  # pip builds and installs the package
def test_pip_the_first_call_and_doctor_show_the_first_error(checkout: Path) -> None:
    shown, target = pip_install(checkout, broken_compiler(checkout))
    assert "Successfully installed regard" in shown
    assert f"regard: the compiled core was NOT built; the build failed with: {ERROR}" in shown
    assert "set CC and CXX and install again" in shown
    assert "In file included from here" not in shown  # pip hides the output of the compiler

    calls = run_installed(target, "-c", CALLS)
    assert calls.returncode == 0, calls.stderr
    (warning,) = [line for line in calls.stderr.splitlines() if "Warning" in line]
    assert warning.startswith("<string>:7: RuntimeWarning: regard runs without its compiled core")
    assert f"the build failed with: {ERROR}. Install a C++ compiler" in warning

    as_json = run_installed(target, "-m", "regard.cli", "doctor", "--json")
    assert as_json.returncode == 1, as_json.stderr
    report = json.loads(as_json.stdout)
    assert report["core"]["error"] == f"the build failed with: {ERROR}" and not report["core"]["is_built"]
    as_text = run_installed(target, "-m", "regard.cli", "doctor")
    assert as_text.returncode == 1 and "RuntimeWarning" not in as_text.stderr
    assert f"problem The compiled core is not used: the build failed with: {ERROR}." in " ".join(as_text.stdout.split())


@pytest.mark.long
def test_a_package_that_was_not_to_have_a_core_does_not_warn_and_is_healthy(checkout: Path) -> None:
    source = checkout / "src"
    (source / "regard" / "_core.abi3.so").unlink()

    calls = run_installed(source, "-W", "error:regard runs without:RuntimeWarning", "-c", CALLS)
    assert calls.returncode == 0, calls.stderr
    assert "RuntimeWarning" not in calls.stderr
    doctor = run_installed(source, "-m", "regard.cli", "doctor", "--json")
    assert doctor.returncode == 0, doctor.stderr
    report = json.loads(doctor.stdout)
    assert report["core"]["error"] == "" and not report["core"]["is_built"]
    assert any("installed without building its core" in warning for warning in report["warnings"])


@pytest.mark.long  # starts two processes; the tests above cover the messages
def test_a_core_that_cannot_be_loaded_is_reported(checkout: Path) -> None:
    source = checkout / "src"  # its core is an empty file

    calls = run_installed(source, "-c", CALLS)
    assert calls.returncode == 0, calls.stderr
    (warning,) = [line for line in calls.stderr.splitlines() if "Warning" in line]
    assert "slower: it cannot be loaded: " in warning and "_core.abi3.so: file too short" in warning
    doctor = run_installed(source, "-m", "regard.cli", "doctor", "--json")
    assert doctor.returncode == 1, doctor.stderr
    assert json.loads(doctor.stdout)["core"]["error"].startswith("it cannot be loaded: ")
