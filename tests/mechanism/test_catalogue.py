"""The catalogue: no empty cell, examples that run, witnesses that exist, a page that is made from it."""

import ast
from dataclasses import fields
from pathlib import Path

import pytest

import regard
from regard.errors import SpecError
from regard.mechanism.catalogue import Mechanism, markdown

ROOT = Path(__file__).parents[2]
CATALOGUE = regard.mechanisms()
every_one = pytest.mark.parametrize("mechanism", CATALOGUE, ids=lambda m: m.name)


@every_one
def test_no_cell_is_empty(mechanism: Mechanism) -> None:
    for field in fields(Mechanism):
        value = getattr(mechanism, field.name)
        assert isinstance(value, bool) or field.name == "note" or value.strip()


@every_one
def test_an_example_runs_as_it_stands(mechanism: Mechanism) -> None:
    names: dict[str, object] = {}
    exec(compile(mechanism.example, mechanism.name, "exec"), names)
    assert len(names) > 2  # something was computed, and is there to be looked at


@every_one
def test_a_witness_is_a_test_that_exists(mechanism: Mechanism) -> None:
    place, name = mechanism.witness.split("::")
    tree = ast.parse((ROOT / place).read_text(encoding="utf8"))
    assert name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


@every_one
def test_a_paper_has_authors_a_title_and_a_year(mechanism: Mechanism) -> None:
    for paper in mechanism.paper.split(";"):
        assert paper.count(",") >= 2 and any(year in paper for year in map(str, range(2014, 2027)))


def test_names_are_told_apart() -> None:
    names = [m.name.lower() for m in CATALOGUE]
    assert len(set(names)) == len(names)


def test_families_stand_together() -> None:
    families = [m.family for m in CATALOGUE]
    assert families == [m.family for _, members in CATALOGUE.families() for m in members]


def test_every_file_of_mechanisms_is_in_it() -> None:
    """A mechanism that nobody lists nobody finds."""
    told = " ".join(m.example for m in CATALOGUE)
    files = {path.stem for path in (ROOT / "src" / "regard" / "mechanism").glob("*.py")}
    assert {name for name in files if f"mechanism.{name}" not in told} == {"__init__", "catalogue", "compare", "heads"}


def test_every_weighing_and_mask_is_in_it() -> None:
    told = " ".join(m.example for m in CATALOGUE)
    weighings = {
        "argmax",
        "entmax",
        "gumbel",
        "kernel",
        "relu",
        "sigmoid",
        "sink",
        "sinkhorn",
        "softmax",
        "sparsemax",
        "top",
    }
    masks = {"bigbird", "blocks", "causal", "dilated", "documents", "fixed", "longformer", "strided", "window"}
    assert {name for name in weighings if f"weigh.{name}(" not in told} == set()
    assert {name for name in masks if f"mask.{name}(" not in told} == set()


def test_one_is_found_by_its_name_or_a_part_of_it() -> None:
    assert CATALOGUE.named("sparsemax").name == CATALOGUE.named("SPARSEM").name == "sparsemax"
    with pytest.raises(SpecError, match=r"one mechanism; got 'max'. Choose one of: .*sparsemax"):
        CATALOGUE.named("max")
    with pytest.raises(SpecError, match="got 'no such'"):
        CATALOGUE.named("no such")


def test_it_prints_itself() -> None:
    lines = str(CATALOGUE).splitlines()
    assert lines[0] == "scores"
    assert any(line.startswith("  sparsemax ") and "exact" in line and "n^2 d" in line for line in lines)
    entry = str(CATALOGUE.named("sparsemax"))
    assert entry.startswith("sparsemax\nformula ") and "\n    o = regard.attention(" in entry


def test_the_page_is_made_from_it() -> None:
    page = (ROOT / "docs" / "mechanisms.md").read_text(encoding="utf8")
    assert page == markdown(CATALOGUE), "run: regard mechanisms --markdown > docs/mechanisms.md"
