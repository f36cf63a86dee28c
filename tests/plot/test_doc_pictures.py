"""The pictures of the documentation are small and made by their script."""

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "pictures"
MAKE = runpy.run_path(str(FOLDER / "make.py"))


def test_all_pictures_are_made_by_the_script():
    assert {path.name for path in FOLDER.glob("*.png")} == set(MAKE["PICTURES"])


@pytest.mark.parametrize("name", MAKE["PICTURES"])
def test_pictures_are_small(name):
    assert (FOLDER / name).stat().st_size < 300_000


def test_the_script_makes_the_pictures(tmp_path):
    MAKE["main"](tmp_path)

    assert {path.name for path in tmp_path.iterdir()} == set(MAKE["PICTURES"])


def test_the_first_look_example_runs():
    program = ROOT / "examples" / "first_look.py"

    process = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, check=False, encoding="utf8"
    )

    assert process.returncode == 0, process.stderr
    for part in ("backend  ", "█", "query 1500: 0.997 on key 477", "induction mass"):
        assert part in process.stdout
