"""`regard doctor`: its text at 80 and 120 columns, its JSON, its exit code."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

import regard
from regard.backends.native.backend import builds
from regard.cli.commands import doctor as module
from regard.cli.installation import Core, Extra, Installation, Package, TimedCall
from tests.cli.command import run_command

HEALTHY_CORE = Core(
    True, "", "", "site-packages/_core.abi3.so", "AVX-512", ("AVX-512", "AVX2", "portable"), "GNU OpenMP"
)
HEALTHY = Installation(
    regard_version="0.1.0",
    regard_path="site-packages/regard",
    python=Package("python", "3.11.7", ">=3.11", True),
    tested_python=("3.11",),
    required=(Package("torch", "2.13.0+cpu", ">=2.9,<2.16", True), Package("numpy", "1.25.0", ">=1.26", False)),
    system="Linux 6.1 x86_64",
    processor="A Processor",
    num_cpus=8,
    core=HEALTHY_CORE,
    torch_threads=4,
    extras=(
        Extra("plot", (Package("matplotlib", "3.11.2", ">=3.8", True),), "pip install 'regard[plot]'"),
        Extra("hf", (Package("transformers", None, ">=5.5", None),), "pip install 'regard[hf]'"),
    ),
    timed_call=TimedCall((1, 8, 1024, 64), 21, 5.0, 10.0, 1e-6),
)
FAILED_CORE = Core(False, "the build failed with: x.cpp:1:2: error: no", "Install a compiler.", None, None, (), None)
FAILED = replace(HEALTHY, core=FAILED_CORE)


def run_doctor(
    monkeypatch: pytest.MonkeyPatch, installation: Installation, columns: int, *arguments: str
) -> tuple[int, str]:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr(module, "inspect_installation", lambda: installation)
    code, stdout, _ = run_command("doctor", *arguments)
    return code, stdout


@pytest.mark.parametrize("columns", [80, 120])
def test_the_text_has_all_facts_and_fits_the_terminal(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    code, stdout = run_doctor(monkeypatch, HEALTHY, columns)

    assert code == 0
    assert max(len(line) for line in stdout.splitlines()) <= columns
    words = " ".join(stdout.split())
    for fact in (
        "regard 0.1.0, site-packages/regard",
        "python 3.11.7 (>=3.11)",
        "torch 2.13.0+cpu (>=2.9,<2.16)",
        "numpy 1.25.0, outside of >=1.26",
        "state built",
        "instruction set AVX-512; also available: AVX2, portable",
        "threads GNU OpenMP",
        "torch 4 of 8 processors",
        "plot matplotlib 3.11.2",
        "hf missing: transformers. Use pip install 'regard[hf]'",
        "regard 5.00 ms",
        "torch 10.00 ms",
        "regard is 2.00 times as fast as torch",
        "warning numpy must be >=1.26; got 1.25.0. Use pip install 'numpy>=1.26'.",
        "regard is healthy.",
    ):
        assert fact in words


def test_a_failed_core_is_a_problem_and_the_exit_code_is_1(monkeypatch: pytest.MonkeyPatch) -> None:
    code, stdout = run_doctor(monkeypatch, FAILED, 80)

    assert code == 1
    assert max(len(line) for line in stdout.splitlines()) <= 80
    words = " ".join(stdout.split())
    assert "state not used reason the build failed with: x.cpp:1:2: error: no" in words
    problem = "The compiled core is not used: the build failed with: x.cpp:1:2: error: no. Install a compiler."
    assert f"problem {problem}" in words
    assert "healthy" not in words


def test_json_has_the_same_facts_and_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    code, stdout = run_doctor(monkeypatch, HEALTHY, 80, "--json")
    report = json.loads(stdout)
    assert code == 0 and report["problems"] == [] and len(report["warnings"]) == 1
    assert report["core"]["available_instruction_sets"] == ["AVX-512", "AVX2", "portable"]
    assert report["timed_call"] == {
        "shape": [1, 8, 1024, 64],
        "rounds": 21,
        "regard_ms": 5.0,
        "torch_ms": 10.0,
        "max_difference": 1e-6,
        "speedup": 2.0,
    }

    code, stdout = run_doctor(monkeypatch, FAILED, 80, "--json")
    assert code == 1 and len(json.loads(stdout)["problems"]) == 1


def test_the_command_checks_this_installation() -> None:
    command = [sys.executable, "-m", "regard.cli", "doctor", "--json"]
    process = subprocess.run(command, capture_output=True, text=True, env=dict(os.environ), check=False)
    report = json.loads(process.stdout)
    assert process.returncode == (1 if report["problems"] else 0), process.stderr
    assert report["core"]["is_built"] is bool(builds())
    versions = {package["name"]: package["version"] for package in report["required"]}
    assert versions["torch"] == torch.__version__ and report["regard_version"] == "0.1.0"
    assert report["regard_path"] == os.path.dirname(regard.__file__)
