"""The pictures of the documentation are small, made by their scripts, and have the one text size."""

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from matplotlib.text import Text

from regard.plot import style
from regard.plot.style import TEXT_SIZE_PT

ROOT = Path(__file__).parents[2]
TRAINING = ROOT / "docs" / "training"
FOLDER = ROOT / "docs" / "pictures"
MAKE = runpy.run_path(str(FOLDER / "make.py"))


def test_all_pictures_are_made_by_the_script():
    assert {path.name for path in FOLDER.glob("*.png")} == set(MAKE["PICTURES"])


@pytest.mark.parametrize("name", MAKE["PICTURES"])
def test_pictures_are_small(name):
    assert (FOLDER / name).stat().st_size < 300_000


def test_the_script_makes_the_pictures(tmp_path, monkeypatch):
    monkeypatch.setattr(style, "PAGE_DPI", 20)  # the full resolution takes a second
    MAKE["main"](tmp_path)

    assert {path.name for path in tmp_path.iterdir()} == set(MAKE["PICTURES"])


@pytest.mark.parametrize("name", ["bottleneck", "captions", "digits", "speech"])
def test_pictures_of_training_are_drawn_from_json_with_the_one_text_size(name, monkeypatch):
    monkeypatch.syspath_prepend(str(TRAINING))
    picture = runpy.run_path(str(TRAINING / f"make_{name}.py"))["picture"]
    kind = "alignment" if name == "bottleneck" else "attention"
    run, attention = (json.loads((TRAINING / f"{file}.json").read_text()) for file in (name, f"{name}-{kind}"))

    figure = picture(run, attention)

    texts = [text for text in figure.findobj(Text) if text.get_text().strip() and text.get_visible()]
    assert {text.get_fontsize() for text in texts} == {TEXT_SIZE_PT}


def test_the_title_of_the_digits_has_the_number_of_correct_images(monkeypatch):
    monkeypatch.syspath_prepend(str(TRAINING))
    picture = runpy.run_path(str(TRAINING / "make_digits.py"))["picture"]
    run, images = (json.loads((TRAINING / name).read_text()) for name in ("digits.json", "digits-attention.json"))
    run["results"]["num_wrong"] += 1

    figure = picture(run, images)

    correct = round(run["results"]["num_tested"] - run["results"]["num_wrong"])
    assert figure.get_suptitle().startswith(f"{correct} of {run['results']['num_tested']:.0f} held-out digits")


def test_the_first_look_example_runs():
    program = ROOT / "examples" / "first_look.py"

    process = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, check=False, encoding="utf8"
    )

    assert process.returncode == 0, process.stderr
    for part in ("backend  ", "█", "query 1500: 0.997 on key 477", "induction mass"):
        assert part in process.stdout
