"""The tables from articles to code have a row for every heading, links to public names, and lines that run."""

import json
import re
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

from tools.docs.reference import PUBLIC_MODULES

from .test_documents import ROOT, python_blocks

PAGE = (ROOT / "docs/articles/from-article-to-code.md").read_text(encoding="utf8")
ARTICLES = json.loads((ROOT / "tests/articles/headings.json").read_text(encoding="utf8"))
LINK = re.compile(r"\[`([\w.]+)`\]\(\.\./\.\./src/regard/([\w/.]+)(?:#([\w.]+))?\)")
CODE = re.compile(r"`(.+)`")


@dataclass(frozen=True)
class Row:
    heading: str
    concept: str
    api: str
    code: str
    verdict: str


def tables() -> Iterator[tuple[str, list[Row]]]:
    for section in PAGE.split("\n## ")[1:]:
        title, _, text = section.partition("\n")
        lines = [line for line in text.splitlines() if line.startswith("| ")]
        yield title, [Row(*line.removeprefix("| ").removesuffix(" |").split(" | ")) for line in lines[1:]]


ROWS = [row for _, rows in tables() for row in rows]


def test_the_tables_have_every_heading_of_every_article_in_order() -> None:
    assert [{"title": title, "headings": [row.heading for row in rows]} for title, rows in tables()] == ARTICLES


def test_no_cell_is_empty() -> None:
    assert len(ROWS) > 120
    assert [row for row in ROWS if not all(cell.strip() for cell in vars(row).values())] == []


@pytest.fixture(scope="module")
def namespace() -> dict[str, Any]:
    torch.manual_seed(0)
    names: dict[str, Any] = {}
    for block in python_blocks(PAGE):
        exec(block.code, names)
    return names


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.heading)
def test_the_line_of_a_row_runs_and_uses_a_name_of_its_row(row: Row, namespace: dict[str, Any]) -> None:
    code = CODE.fullmatch(row.code)
    assert code is not None
    result = eval(code[1], namespace)
    assert result is not None and result is not False
    names = [name.rpartition(".")[2] for name, _, _ in LINK.findall(row.api)]
    assert names and any(re.search(rf"\b{name}\b", code[1]) for name in names)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.heading)
def test_the_names_of_a_row_lead_to_their_definitions(row: Row) -> None:
    for name, source, anchor in LINK.findall(row.api):
        module_name = ".".join(("regard", *Path(source).with_suffix("").parts)).removesuffix(".__init__")
        value: Any = import_module(module_name)
        for part in name.split(".") if value.__name__ == "regard" else [name.rpartition(".")[2]]:
            value = getattr(value, part)
        assert module_name in PUBLIC_MODULES or not anchor
        assert not anchor or anchor in (f"regard.{name}", "regard.attention.attention")


def test_the_verdict_of_a_row_is_correct_as_written_or_has_a_reason() -> None:
    unexplained = [
        row.heading for row in ROWS if not row.verdict.startswith("correct as written") and "](" not in row.verdict
    ]
    assert unexplained == []


def test_the_table_of_alignments_has_the_numbers_of_the_training_runs() -> None:
    page = (ROOT / "docs/articles/worked-examples.md").read_text(encoding="utf8")
    scores = json.loads((ROOT / "docs/articles/alignments.json").read_text(encoding="utf8"))["scores"]
    names = ("Bahdanau", "Luong, dot", "Luong, general", "scaled dot")
    for name, (parameters, runs) in zip(names, (score.values() for score in scores.values()), strict=True):
        losses = [run["curve"][2] for run in runs]
        exact = [100 * run["exact_match"]["8"] for run in runs]
        weights = [run["alignment_weight"] for run in runs]
        cells = _spread(losses, 2), _spread(exact, 1, "%"), _spread(weights, 2)
        assert f"| {name} | {parameters:,} | {' | '.join(cells)} |" in page


def _spread(values: list[float], digits: int, unit: str = "") -> str:
    median, smallest, largest = (f"{f(values):.{digits}f}" for f in (statistics.median, min, max))
    return f"{median}{unit} ({smallest} to {largest})"


ERRORS = (ROOT / "docs/articles/errors.md").read_text(encoding="utf8")
ENTRIES = {entry.partition("\n")[0]: entry.partition("\n## ")[0] for entry in ERRORS.split("\n### ")[1:]}


@pytest.mark.parametrize("heading", ENTRIES)
def test_an_error_has_a_claim_the_right_statement_and_a_check(heading: str) -> None:
    entry = ENTRIES[heading]
    assert entry.index("**Claim**") < entry.index("**Right**") < entry.index("```python")
    assert any(word in block.code for block in python_blocks(entry) for word in ("assert", ">>> "))


@pytest.mark.parametrize("title", [article["title"] for article in ARTICLES])
def test_the_table_of_an_article_links_to_every_error_that_names_it(title: str) -> None:
    rows = dict(tables())[title]
    linked = {anchor for row in rows for anchor in re.findall(r"errors\.md#([\w-]+)", row.verdict)}
    named = {re.sub(r"\W+", "-", heading.lower()) for heading, entry in ENTRIES.items() if f"*{title}" in entry}
    assert named - linked == set()
