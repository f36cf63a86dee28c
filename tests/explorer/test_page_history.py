"""Texts that were read stay: Back and Forward go from one to another, a menu and Compare list them."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.explorer.browser import HEAD, LAYER, SENTENCE, Site, needs_chromium, opened, settled

pytestmark = needs_chromium
SECOND, THIRD, FOURTH = "Call me Ishmael", "Some years ago", "never mind how long"


@pytest.fixture(scope="module")
def site(browser: Any) -> Iterator[Site]:
    """A server of its own, since others add texts as well."""
    with opened(browser) as site:
        yield site


def look(page: Any, text: str) -> None:
    page.get_by_label("Text for the model to read").fill(text)
    page.get_by_role("button", name="Look").click()
    is_shown(page, text)


def is_shown(page: Any, text: str) -> None:
    """Waits until the page shows a text, in its view and its address; then the box has it too."""
    page.locator(".text-view .flow", has_text=text.split()[-1]).wait_for()
    page.wait_for_function("text => new URLSearchParams(location.hash.slice(1)).get('text') === text", arg=text)
    settled(page)
    page.get_by_label("Text for the model to read").blur()
    shown = "".join(token.text_content() for token in page.locator(".token").all())
    assert shown.replace(" ", "") == text.replace(" ", "")  # a line begins without its space


def test_back_and_forward_go_from_text_to_text(site: Site) -> None:
    page = site.page(f"view=text&layer={LAYER}&head={HEAD}&locked=5")
    look(page, SECOND)
    look(page, THIRD)
    page.go_back()
    is_shown(page, SECOND)
    page.go_back()
    is_shown(page, SENTENCE)
    assert page.get_by_label("Text for the model to read").input_value() == SENTENCE
    assert page.locator(".token[data-state=locked]").get_attribute("data-token") == "5"
    page.go_forward()
    page.go_forward()
    is_shown(page, THIRD)


def test_back_takes_back_a_view_before_a_text(site: Site) -> None:
    page = site.page(f"view=text&layer={LAYER}&head={HEAD}")
    look(page, FOURTH)
    page.get_by_role("link", name="Cost").click()
    page.locator(".cost-view").wait_for()
    page.wait_for_timeout(300)
    page.go_back()
    is_shown(page, FOURTH)
    page.go_back()
    is_shown(page, SENTENCE)


def test_writing_on_can_be_taken_back(site: Site) -> None:
    page = site.page(f"view=generate&layer={LAYER}&head={HEAD}")
    page.wait_for_timeout(300)
    page.get_by_label("Tokens").fill("2")
    page.get_by_role("button", name="Continue").click()
    page.locator(".sure").nth(1).wait_for()
    page.wait_for_timeout(300)
    page.go_back()
    page.locator(".scrub .hint").wait_for()
    page.get_by_role("link", name="Text", exact=True).click()
    is_shown(page, SENTENCE)


def test_compare_and_a_menu_list_the_texts(site: Site) -> None:
    page = site.page(f"view=text&layer={LAYER}&head={HEAD}")
    look(page, SECOND)
    page.locator(".texts-menu summary").click()
    titles = page.locator(".texts-list button").all_text_contents()
    assert titles.count(SECOND) == 1, "a text that was read before is not read again"
    assert any(title.startswith("The captain") for title in titles)
    page.locator(".texts-list button[aria-current=true]", has_text=SECOND).wait_for()
    page.locator(".texts-list button").last.click()
    is_shown(page, SENTENCE)
    page.get_by_role("link", name="Compare").click()
    options = page.get_by_label("The other").locator("option").all_text_contents()
    assert any(option.endswith(SECOND) for option in options)


def test_a_text_that_the_server_has_dropped_is_read_again(browser: Any) -> None:
    from tests.explorer.served import serving

    long = "word " * 200 + "end"  # too long for an address: the page itself remembers it
    with serving(SENTENCE, keeps=2) as server:
        site = Site(server, browser)
        page = site.page(f"view=text&layer={LAYER}&head={HEAD}")
        page.get_by_label("Text for the model to read").fill(long)
        page.get_by_role("button", name="Look").click()
        page.locator(".about", has_text="tokens").filter(has_not_text="18 tokens").wait_for()
        page.wait_for_timeout(300)
        look(page, THIRD)
        assert [each["text"] for each in server.ask("state").values["shown"]] == [SENTENCE, THIRD]
        page.go_back()
        page.locator(".flow", has_text="word word").wait_for()
        page.go_back()
        is_shown(page, SENTENCE)
        page.go_forward()
        page.go_forward()
        is_shown(page, THIRD)
        site.rest()
