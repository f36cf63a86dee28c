"""The compiled core's own tests, which are C++: built with the core's flags and run for every build of it."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2] / "native" / "tests"


@pytest.mark.skipif(not shutil.which("make") or not shutil.which("g++"), reason="there is no make or no C++ compiler")
def test_the_core_passes_its_own_tests(tmp_path: Path) -> None:
    surroundings = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    command = ["make", "--jobs", "2", "--directory", str(TESTS), f"BUILD={tmp_path}", "run"]

    done = subprocess.run(command, env=surroundings, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    for program in ("parts for portable", "kernels", "threads"):
        assert f"{program}: fine" in done.stdout
