"""The how-to pages name every function of their modules, and their pictures are made by their code."""

import re
import runpy
from importlib import import_module
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
FIGURES = DOCS / "how-to" / "figures"
PAGE_BY_MODULE = {
    "regard.cost": "how-to/cost.md",
    "regard.models": "layers.md",
    "regard.nn": "layers.md",
    "regard.plot": "how-to/figures.md",
}


@pytest.mark.parametrize("name", PAGE_BY_MODULE)
def test_a_page_uses_every_name_of_its_module(name: str) -> None:
    words = set(re.findall(r"\w+", (DOCS / PAGE_BY_MODULE[name]).read_text(encoding="utf8")))
    assert [entry for entry in import_module(name).__all__ if entry not in words] == []


def test_the_pictures_of_the_page_of_figures_are_small_and_made_by_its_code() -> None:
    pictures = runpy.run_path(str(FIGURES / "make.py"))["PICTURES"]
    assert sorted(path.name for path in FIGURES.glob("*.png")) == sorted(pictures)
    code = (DOCS / "how-to" / "figures.md").read_text(encoding="utf8")
    for name in pictures:
        assert f'savefig("{name}"' in code
        assert (FIGURES / name).stat().st_size < 150_000
