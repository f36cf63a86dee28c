"""What is taken along: the page as a file that needs neither server nor network, the map as a picture."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.explorer.browser import HEAD, LAYER, Site, at, near, needs_chromium, opened, saved, settled, weights

pytestmark = needs_chromium
VIEW = f"view=map&layer={LAYER}&head={HEAD}"


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with opened() as made:
        yield made


@pytest.fixture(scope="module")
def file(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Path:
    page = site.page(f"view=arithmetic&layer={LAYER}&head={HEAD}&query=16&key=5")
    page.locator(".headline output").wait_for()
    return saved(page, "This page as a file", tmp_path_factory.mktemp("exported"))


def from_disk(site: Site, file: Path, address: str) -> Any:
    """The file in a browser without a network, in which every request is an error."""
    page = site.page(f"{file.as_uri()}#{address}", offline=True)
    page.on("request", lambda request: site.errors.append(request.url) if "blob:" not in request.url else None)
    return page


def test_the_file_shows_the_same_numbers_without_a_network(site: Site, file: Path) -> None:
    page = from_disk(site, file, VIEW)
    settled(page)
    for query, key in ((16, 5), (13, 1), (3, 1)):
        page.mouse.move(*at(page, query, key))
        settled(page)
        assert near(page.locator(".readout output").text_content(), float(weights()[query, key]))


def test_the_file_has_rows_lines_and_heads(site: Site, file: Path) -> None:
    page = from_disk(site, file, f"view=text&layer={LAYER}&head={HEAD}&locked=16")
    page.locator(".looks li").first.wait_for()
    item = page.locator(".looks[data-list='looks at'] li").first
    assert near(item.locator(".num").text_content(), float(weights()[16].max()))
    page.get_by_role("link", name="Lines").click()
    path = page.locator("svg.lines path[data-query='16'][data-key='5']")
    path.wait_for(state="attached")
    assert float(path.get_attribute("data-weight")) == pytest.approx(float(weights()[16, 5]), abs=1e-5)
    page.get_by_role("link", name="Overview").click()
    page.locator(".card .chip").first.wait_for()
    assert page.locator("button.card").count() == 32


def test_the_file_has_the_arithmetic_that_was_looked_at(site: Site, file: Path) -> None:
    page = from_disk(site, file, f"view=arithmetic&layer={LAYER}&head={HEAD}&query=16&key=5")
    page.locator(".headline output").wait_for()
    assert near(page.locator(".headline output").text_content(), float(weights()[16, 5]))


def test_the_file_says_what_it_does_not_hold(site: Site, file: Path) -> None:
    page = from_disk(site, file, "view=steps")
    page.get_by_text("This file does not hold that").first.wait_for()


def test_the_file_has_no_form_for_what_only_a_server_can_do(site: Site, file: Path) -> None:
    page = from_disk(site, file, VIEW)
    assert page.get_by_role("button", name="Look", exact=True).count() == 0
    page.get_by_text("Export", exact=True).click()
    assert page.get_by_role("button", name="This page as a file").count() == 0


def test_the_map_is_saved_as_a_picture(site: Site, tmp_path: Path) -> None:
    page = site.page(VIEW)
    settled(page)
    data = saved(page, "The map as PNG", tmp_path).read_bytes()
    assert data.startswith(b"\x89PNG")
    assert len(data) > 2000


def test_the_map_is_saved_as_a_drawing_with_every_weight(site: Site, tmp_path: Path) -> None:
    page = site.page(VIEW)
    settled(page)
    svg = ElementTree.parse(saved(page, "The map as SVG", tmp_path)).getroot()
    space = "{http://www.w3.org/2000/svg}"
    cells = [rect for rect in svg.iter(f"{space}rect") if rect.find(f"{space}title") is not None]
    length = len(weights())
    assert len(cells) == length * (length + 1) // 2
    assert [text.text for text in svg.iter(f"{space}text")][:2] == ["The", "captain"]
    first = cells[1].find(f"{space}title")
    assert first is not None
    assert first.text is not None
    assert near(first.text, float(weights()[1, 0]))
