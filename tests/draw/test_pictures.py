"""The pictures of the documents: small, and made by the script beside them."""

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "pictures"
MAKE = runpy.run_path(str(FOLDER / "make.py"))


def test_every_picture_is_made_by_the_script_and_every_one_it_makes_is_there():
    assert {path.name for path in FOLDER.glob("*.png")} == set(MAKE["PICTURES"])


@pytest.mark.parametrize("name", MAKE["PICTURES"])
def test_a_picture_is_small(name):
    assert (FOLDER / name).stat().st_size < 300_000


def test_the_script_makes_the_pictures(tmp_path):
    MAKE["main"](tmp_path)

    assert {path.name for path in tmp_path.iterdir()} == set(MAKE["PICTURES"])


def test_the_first_look_shows_the_library_at_work():
    program = ROOT / "examples" / "first_look.py"

    shown = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, check=False, encoding="utf8")

    assert shown.returncode == 0, shown.stderr
    for part in ("engine   ", "█", "query 1500: 0.997 on key 477", "mass on what followed"):
        assert part in shown.stdout
