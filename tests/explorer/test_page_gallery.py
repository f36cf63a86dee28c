"""The Gallery view: cards, pictures and filters, from a server and in an exported file."""

from pathlib import Path
from typing import Any

import pytest

from regard.explorer.api.registry import dispatch
from regard.mechanisms import catalog
from regard.mechanisms.weight_matrices import weight_matrix
from tests.chromium import needs_chromium
from tests.explorer.browser import Site, wait_until_idle
from tests.explorer.recordings import make_explorer

pytestmark = [needs_chromium, pytest.mark.long]


@pytest.fixture(params=["server", "file"])
def page(request: pytest.FixtureRequest, site: Site, tmp_path: Path) -> Any:
    """The view, opened with two filters."""
    address = "view=gallery&properties=linear+time,sparse"
    if request.param == "file":
        path = tmp_path / "export.html"
        path.write_bytes(dispatch(make_explorer(4, 4), "export", {"session": 0}).arrays["html"].tobytes())
        address = f"{path.as_uri()}#{address}"
    page = site.page(address, offline=request.param == "file")
    page.locator(".mechanism-card").first.wait_for()
    return page


def names(page: Any) -> list[str]:
    return [str(card.get_attribute("data-name")) for card in page.locator(".mechanism-card").all()]


def having(*properties: str) -> list[str]:
    return [m.name for m in catalog() if all(m.properties[name] for name in properties)]


def test_filters_combine_and_are_in_the_address(page: Any) -> None:
    assert names(page) == having("linear time", "sparse")
    page.get_by_role("button", name="sparse").press("Enter")
    assert names(page) == having("linear time")
    page.get_by_role("button", name="causal").click()
    assert names(page) == having("linear time", "causal")
    page.wait_for_url(lambda url: "properties=causal%2Clinear+time" in url)
    assert page.get_by_role("button", name="causal").get_attribute("aria-pressed") == "true"
    page.get_by_role("button", name="show all").click()
    assert names(page) == having()
    page.wait_for_url(lambda url: "properties" not in url)


def test_cards_have_pictures_formulas_and_code(page: Any) -> None:
    page.get_by_role("button", name="show all").click()
    text = "".join(page.locator(".formula-text").all_text_contents())
    assert "\\" not in text and "^" not in text and "√d" in text
    for m in catalog():
        card = page.locator(f'.mechanism-card[data-name="{m.name}"]')
        assert m.idea in card.text_content() and m.exactness in card.text_content()
        assert card.locator("pre").text_content() == m.example.strip()
        # an empty cell is transparent
        shown = card.locator("canvas").evaluate(
            "c => [...c.getContext('2d').getImageData(0, 0, 32, 32).data].filter((_, n) => n % 4 === 3)"
        )
        assert [alpha > 0 for alpha in shown] == (weight_matrix(m.name).flatten() != 0).tolist()
    wait_until_idle(page)
