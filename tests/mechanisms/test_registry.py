"""The catalog: no empty fields, runnable examples, existing reference tests, and the generated page."""

import ast
from dataclasses import fields
from pathlib import Path

import pytest

import regard
from regard.catalog_entry import Mechanism
from regard.errors import ArgumentError
from regard.mechanisms.gallery_page import to_markdown
from regard.theory.analysis.flop_scaling import multi_call_mechanisms, single_call_mechanisms

ROOT = Path(__file__).parents[2]
CATALOG = regard.mechanisms.catalog()
every_one = pytest.mark.parametrize("mechanism", CATALOG, ids=lambda m: m.name)


@every_one
def test_no_field_is_empty(mechanism: Mechanism) -> None:
    for field in fields(Mechanism):
        value = getattr(mechanism, field.name)
        assert isinstance(value, bool) or field.name == "note" or value.strip()


@every_one
def test_the_example_runs(mechanism: Mechanism) -> None:
    names: dict[str, object] = {}
    exec(compile(mechanism.example, mechanism.name, "exec"), names)
    assert len(names) > 2  # the example defined more than __builtins__ and an import


@every_one
def test_the_reference_test_exists(mechanism: Mechanism) -> None:
    path, name = mechanism.reference_test.split("::")
    tree = ast.parse((ROOT / path).read_text(encoding="utf8"))
    assert name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


@every_one
def test_the_paper_has_authors_title_and_year(mechanism: Mechanism) -> None:
    for paper in mechanism.paper.split(";"):
        assert paper.count(",") >= 2 and any(year in paper for year in map(str, range(2014, 2027)))


def test_names_are_unique() -> None:
    names = [m.name.lower() for m in CATALOG]
    assert len(set(names)) == len(names)


def test_families_are_contiguous() -> None:
    families = [m.family for m in CATALOG]
    assert families == [m.family for _, members in CATALOG.by_family() for m in members]


def test_every_module_is_in_the_catalog() -> None:
    """Users discover mechanisms through the catalog."""
    imported = {name for mechanism in CATALOG for name in imported_mechanisms(mechanism)}
    used = {getattr(regard.mechanisms, name).__module__.rpartition(".")[2] for name in imported}
    modules = {path.stem for path in (ROOT / "src" / "regard" / "mechanisms").glob("*.py")}
    assert modules - used == {"__init__", "registry", "comparison", "head_layout", "gallery_page", "weight_matrices"}


@every_one
def test_functions_of_the_example_are_public(mechanism: Mechanism) -> None:
    assert "from regard.mechanisms." not in mechanism.example
    assert set(imported_mechanisms(mechanism)) <= set(regard.mechanisms.__all__)


def imported_mechanisms(mechanism: Mechanism) -> list[str]:
    imports = [node for node in ast.walk(ast.parse(mechanism.example)) if isinstance(node, ast.ImportFrom)]
    return [alias.name for node in imports if node.module == "regard.mechanisms" for alias in node.names]


def test_every_normalizer_and_mask_is_in_the_catalog() -> None:
    examples = " ".join(m.example + m.note for m in CATALOG)
    normalizers = {
        "entmax",
        "gumbel",
        "hardmax",
        "kernel",
        "relu",
        "sigmoid",
        "sink",
        "sinkhorn",
        "softmax",
        "sparsemax",
        "topk",
    }
    masks = {"bigbird", "causal", "chunked", "dilated", "document", "fixed", "longformer", "sliding_window", "strided"}
    assert {name for name in normalizers if f"normalizer.{name}(" not in examples} == set()
    assert {name for name in masks if f"mask.{name}" not in examples} == set()


def test_find_accepts_a_unique_part_of_the_name() -> None:
    assert CATALOG.find("sparsemax").name == CATALOG.find("SPARSEM").name == "sparsemax"
    with pytest.raises(ArgumentError, match=r"exactly one mechanism; got 'max'\. Choose one of: .*sparsemax"):
        CATALOG.find("max")
    with pytest.raises(ArgumentError, match="got 'no such'"):
        CATALOG.find("no such")


def test_it_prints_itself() -> None:
    lines = str(CATALOG).splitlines()
    assert lines[0] == "scores"
    assert any(line.startswith("  sparsemax ") and "exact" in line and "n^2 d" in line for line in lines)
    entry = str(CATALOG.find("sparsemax"))
    assert entry.startswith("sparsemax\nidea ") and "\n    o = attention(" in entry


def test_the_page_is_generated_from_the_catalog() -> None:
    page = (ROOT / "docs" / "gallery" / "index.md").read_text(encoding="utf8")
    assert page == to_markdown(CATALOG), "run: regard mechanisms --markdown > docs/gallery/index.md"


@every_one
def test_idea_and_code_are_short(mechanism: Mechanism) -> None:
    assert len(mechanism.idea.split()) < 20 and mechanism.idea.endswith(".")
    lines = [line for line in mechanism.example.splitlines() if line.strip()]
    assert len(lines) <= 5 and max(map(len, lines)) < 110


def test_linear_time_agrees_with_the_counted_formulas() -> None:
    for name, counted in (single_call_mechanisms() | multi_call_mechanisms()).items():
        growth = counted.work_formula(2**20) / counted.work_formula(2**18)
        assert CATALOG.find(name).is_linear_time == (growth < 4.01), name


def test_linear_time_of_mechanisms_without_counted_formulas() -> None:
    names = "block-sparse by scores", "Luong, global", "Luong, local-m", "GATv2"
    assert [CATALOG.find(name).is_linear_time for name in names] == [False, False, True, True]
