"""The C++ tests of the compiled core, built with its flags and run for each of its builds."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2] / "csrc" / "tests"


@pytest.mark.long  # compiles the core for a minute
@pytest.mark.skipif(not shutil.which("make") or not shutil.which("g++"), reason="make or a C++ compiler is missing")
def test_core_passes_its_own_tests(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    command = ["make", "--jobs", "2", "--directory", str(TESTS), f"BUILD={tmp_path}", "run"]

    process = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    assert process.returncode == 0, process.stderr
    for program in ("units for portable", "kernels", "threads of thread pool"):
        assert f"{program}: ok" in process.stdout
