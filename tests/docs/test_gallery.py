"""The gallery of mechanisms on the site: complete cards, true pictures, and filters that agree with the catalog."""

import json
import re
import struct
import zlib
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from regard.mechanisms import catalog
from regard.mechanisms.gallery_page import anchor
from regard.mechanisms.weight_matrices import COLOR_LEVELS, color_levels, weight_matrix
from tests.chromium import needs_chromium, offline_page
from tests.docs import guide_page
from tools.docs.gallery import page as gallery
from tools.docs.gallery.pictures import PALETTE, picture_uri
from tools.docs.guide import page as guide

ROOT = Path(__file__).parents[2]
CATALOG = catalog()
CARD = re.compile(r'<article class="mechanism-card" data-properties="(.*?)" markdown>(.*?)</article>', re.DOTALL)


@pytest.fixture(scope="module")
def cards() -> dict[str, tuple[str, str]]:
    """The properties and the text of each card, by the name of the mechanism."""
    text = gallery.insert_cards(gallery.SOURCE.read_text(encoding="utf8"))
    assert "All mechanisms" not in text and "`make docs`" not in text  # these are for the repository
    assert text.index("## Scores") < text.index("## The pictures")
    return {re.search("### (.*)", card)[1]: (properties, card) for properties, card in CARD.findall(text)}


def test_every_card_is_complete(cards: dict[str, tuple[str, str]]) -> None:
    assert list(cards) == [m.name for m in CATALOG]
    for m in CATALOG:
        _, card = cards[m.name]
        assert m.idea in card and m.paper.partition(",")[0] in card and m.exactness in card
        assert f"]({'../..'}/{m.reference_test.partition('::')[0]})" in card
        code = re.search("```python\n(.*?)\n```", card, re.DOTALL)[1]
        assert code.splitlines() == [line for line in m.example.splitlines() if line]
        assert picture_uri(weight_matrix(m.name)) in card
        assert not re.search(r"\$\$[^$]*[<>][^$]*\$\$", card)  # it would be an element


def test_filters_agree_with_the_catalog(cards: dict[str, tuple[str, str]]) -> None:
    for m in CATALOG:
        properties, _ = cards[m.name]
        assert properties.split() == [anchor(name) for name, holds in m.properties.items() if holds]


def test_a_picture_has_the_colors_of_the_weights() -> None:
    weights = torch.tensor([[0.0, 1.0, 4.0], [-1.0, 0.25, 1e-9]])
    indices = color_levels(weights)
    assert indices.tolist() == [[0, COLOR_LEVELS, COLOR_LEVELS], [2 * COLOR_LEVELS, 1 + (COLOR_LEVELS - 1) // 2, 1]]
    data = b64decode(picture_uri(weights).partition(",")[2])
    assert struct.unpack(">2I", data[16:24]) == (3, 2)
    pixels = zlib.decompress(data[data.index(b"IDAT") + 4 : data.index(b"IEND") - 8])
    assert np.frombuffer(pixels, np.uint8).reshape(2, 4)[:, 1:].tolist() == indices.tolist()
    assert len(PALETTE) == 2 * COLOR_LEVELS + 1 and PALETTE.min(axis=1)[[1, COLOR_LEVELS]].tolist() == [220, 6]


def test_the_parts_of_a_long_formula_are_below_each_other() -> None:
    assert gallery.formula(CATALOG.find("Shaw")).count(r" \\ ") == 1
    assert gallery.formula(CATALOG.find("strided")) == CATALOG.find("strided").formula
    assert gallery.formula(CATALOG.find("Routing")).count(r" \\ ") == 2
    for m in CATALOG:
        assert len(gallery.formula(m)) <= gallery.MAX_NARROW_FORMULA or r",\quad" not in gallery.formula(m)


def test_complexities_have_powers_and_indices() -> None:
    assert gallery.complexity_html("n^1.5 d_a") == "n<sup>1.5</sup> d<sub>a</sub>"
    assert gallery.complexity_html("n^(1 + 1/D) d, D axes") == "n<sup>(1 + 1/D)</sup> d, D axes"


@pytest.fixture(scope="module")
def page(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    path = guide_page.build_gallery(tmp_path_factory.mktemp("gallery"))
    with offline_page(browser) as page:
        page.goto(f"file://{path}")
        yield page


def shown(page: Any) -> list[str]:
    titles = page.locator(".mechanism-card:not([hidden]) > h3")
    return [title for title in titles.all_inner_texts() if title]


def having(*properties: str) -> list[str]:
    return [m.name for m in CATALOG if all(m.properties[name] for name in properties)]


@pytest.mark.long
@needs_chromium
def test_filters_combine_and_are_kept_in_the_address(page: Any) -> None:
    assert shown(page) == having()
    page.get_by_role("button", name="linear time").click()
    page.get_by_role("button", name="sparse").press("Enter")
    assert shown(page) == having("linear time", "sparse")
    assert page.url.endswith("#filter=linear-time+sparse")
    assert page.get_by_role("status").inner_text() == f"{len(shown(page))} of {len(CATALOG)} mechanisms"
    assert not page.locator("h2#normalizers").is_visible() and page.locator("h2#masks").is_visible()
    page.reload()
    assert shown(page) == having("linear time", "sparse")
    assert page.get_by_role("button", name="sparse").get_attribute("aria-pressed") == "true"
    page.evaluate("location.hash = 'softmax'")  # a link to a card that is not shown
    page.locator("h3#softmax").wait_for()
    assert shown(page) == having()
    page.get_by_role("button", name="learned").press("Space")
    page.get_by_role("button", name="show all").click()
    assert shown(page) == having() and "#" not in page.url


@pytest.mark.long
@needs_chromium
def test_every_card_is_visible_without_javascript(page: Any) -> None:
    assert page.context.browser
    context = page.context.browser.new_context(java_script_enabled=False)
    plain = context.new_page()
    plain.goto(page.url.partition("#")[0])
    assert plain.locator(".mechanism-card").count() == len(CATALOG) == len(shown(plain))
    assert not plain.locator(".gallery-filters").is_visible()
    context.close()


@pytest.mark.long
@needs_chromium
def test_anchors_of_the_site_are_those_of_the_repository(page: Any) -> None:
    ids = page.locator(".mechanism-card > h3").evaluate_all("nodes => nodes.map(node => node.id)")
    assert ids == [anchor(m.name) for m in CATALOG]


def test_the_guide_and_the_gallery_have_different_files() -> None:
    assert not {gallery.SCRIPT, gallery.STYLE} & {guide.SCRIPT, guide.STYLE}


def test_the_times_of_the_decision_page_are_those_of_the_benchmark() -> None:
    page = (ROOT / "docs" / "gallery" / "which-one.md").read_text(encoding="utf8")
    rows = re.findall(r"^\| ([\w() +-]+) \| ([\d.]+) \|$", page, re.MULTILINE)
    points = read_points("long_text.json", 100_000)
    assert rows == [
        (name, f"{points[name]:.2g}") for name in sorted(points, key=points.__getitem__) if name in dict(rows)
    ]
    assert len(rows) == 12
    shorter = read_points("scaling.json", 65_536)
    times = (f"{shorter[name]:.1f}" for name in ("strided (Sparse Transformer)", "causal"))
    assert "128 takes {} seconds, and plain causal attention takes {}.".format(*times) in page


def read_points(file_name: str, n: int) -> dict[str, float]:
    points = json.loads((ROOT / "benchmarks" / "results" / file_name).read_text(encoding="utf8"))["points"]
    return {point["mechanism"]: point["seconds"] for point in points if point["n"] == n}
