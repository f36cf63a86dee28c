"""The documentation site builds without a warning, works from the file system, and documents every public name."""

import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.chromium import needs_chromium, offline_page
from tools.docs import command_line, docstring_examples, reference, repository, tutorials

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    build = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert build.returncode == 0, build.stderr
    return folder


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    with offline_page(browser) as page:
        yield page


@pytest.mark.parametrize("name", reference.PUBLIC_MODULES)
def test_every_public_name_has_a_summary_on_the_page_of_its_module(name: str) -> None:
    module = import_module(name)
    text = reference.pages()[reference.page_path(name)]
    entries = re.findall(r'^::: (\S+)(?:\n +options:\n +heading: "(.*)")?$', text, re.MULTILINE)
    documented = {heading or path for path, heading in entries}
    names = {n for n in module.__all__ if not inspect.ismodule(getattr(module, n))}
    assert documented == {f"{name}.{n}" for n in names}
    assert [n for n in module.__all__ if not reference.summary(module, n)] == []


def test_every_command_is_on_the_page_of_the_command_line() -> None:
    (text,) = command_line.pages().values()
    for command in ("explore", "steps", "explain", "cost", "heads", "mechanisms", "theory", "train", "doctor"):
        assert f"## `regard {command}`" in text
    assert "`--browser/--no-browser`" in text
    assert "regard train NAME [OPTIONS]" in text


def test_examples_of_a_docstring_become_blocks() -> None:
    text = "Return one.\n\n    >>> 1 + 1\n    2\n\nMore.\n>>> print('a')\na\n"
    expected = "Return one.\n\n    ```pycon\n    >>> 1 + 1\n    2\n    ```\n\nMore.\n```pycon\n>>> print('a')\na\n```\n"
    assert docstring_examples.fence_examples(text) == expected


def test_links_to_the_repository_lead_to_pages_of_the_site() -> None:
    text = (
        "[a](../setup.py) [b](theory/heat.md#top) [c](https://example.org) [d](gone.md)\n```\n[e](../setup.py)\n```\n"
    )
    source = ROOT / "docs" / "performance.md"
    rewritten = repository.rewrite_links(text, source, "performance.md", lambda path: f"r/{path.stem}.md")
    assert rewritten == text.replace("../setup.py", "r/setup.md", 1).replace("theory/heat.md", "r/heat.md")


@pytest.mark.long
def test_every_public_name_has_an_anchor(site: Path) -> None:
    modules = {name: import_module(name) for name in reference.PUBLIC_MODULES}
    for name, module in modules.items():
        html = (site / "reference" / f"{name}.html").read_text(encoding="utf8")
        anchors = set(re.findall(r'id="([^"]+)"', html))
        for entry in module.__all__:
            path = f"{name}.{entry}"
            assert inspect.ismodule(getattr(module, entry)) or {path, f"{path}.{entry}"} & anchors, path


@pytest.mark.long
def test_links_to_notebooks_lead_to_their_pages(site: Path) -> None:
    html = (site / "tutorials" / "index.html").read_text(encoding="utf8")
    assert ".ipynb" not in html
    for name in tutorials.names():
        assert (site / "tutorials" / f"{name}.html").is_file() and (site / "tutorials" / f"{name}.ipynb").is_file()


@pytest.mark.long
@needs_chromium
def test_search_works_from_the_file_system(site: Path, page: Any) -> None:
    page.goto(f"file://{site}/index.html")
    page.locator("input.md-search__input").fill("sliding window")
    page.wait_for_selector(".md-search-result__item")
    assert page.locator(".md-search-result__item").count() > 3


@pytest.mark.long
@needs_chromium
def test_the_guide_is_found_by_a_question_and_computes_in_the_browser(site: Path, page: Any) -> None:
    page.goto(f"file://{site}/index.html")
    page.locator("input.md-search__input").fill("what is causal masking, with numbers")
    page.wait_for_selector(".md-search-result__item")
    links = page.locator("a.md-search-result__link").evaluate_all("links => links.slice(0, 3).map(a => a.href)")
    assert any("#causal-masking-with-numbers" in link for link in links), links
    page.goto(f"file://{site}/guide/attention-step-by-step.html#causal-masking-with-numbers")
    page.wait_for_selector("[data-widget=model][data-ready]")
    assert page.locator(".guide-widget").count() == page.locator(".guide-widget[data-ready]").count() == 8
    assert "0.6175" in page.locator("[data-widget=causal]").inner_text()


@pytest.mark.long
@needs_chromium
def test_no_page_needs_the_network_or_scrolls_sideways(site: Path, page: Any) -> None:
    page.set_viewport_size({"width": 400, "height": 800})
    pages = sorted(path for path in site.rglob("*.html") if "repository" not in path.parts and path.name != "404.html")
    assert len(pages) > 60
    wide = []
    for path in pages:
        page.goto(f"file://{path}")
        if page.evaluate("document.documentElement.scrollWidth") > 400:
            wide.append(path.relative_to(site).as_posix())
    assert wide == []


@pytest.mark.long
@needs_chromium
def test_formulas_are_rendered(site: Path, page: Any) -> None:
    shown = 0
    for path in sorted(site.rglob("*.html")):
        if "arithmatex" in path.read_text(encoding="utf8"):
            page.goto(f"file://{path}")
            page.wait_for_function(
                "document.querySelectorAll('.arithmatex').length <= document.querySelectorAll('.katex').length"
            )
            assert page.locator(".katex-error").count() == 0, path
            shown += 1
    assert shown > 0


@pytest.mark.long
def test_every_math_block_becomes_a_formula(site: Path) -> None:
    for path in sorted((ROOT / "docs" / "theory").glob("*.md")):
        html = (site / "theory" / f"{path.stem.replace('README', 'index')}.html").read_text(encoding="utf8")
        assert html.count('<div class="arithmatex">') == path.read_text(encoding="utf8").count("```math"), path


@pytest.mark.long
@needs_chromium
def test_no_line_begins_with_the_punctuation_after_a_formula(site: Path, page: Any) -> None:
    page.set_viewport_size({"width": 400, "height": 800})
    page.goto(f"file://{site}/theory/shaped.html")
    page.wait_for_selector(".short-formula")
    texts = page.locator(".short-formula").evaluate_all(
        "units => units.map(unit => [unit.lastChild.data, unit.nextSibling?.data ?? ''])"
    )
    assert {inside for inside, _ in texts} >= {"", ".", ","}
    assert [after for _, after in texts if after.startswith((".", ",", ")"))] == []
