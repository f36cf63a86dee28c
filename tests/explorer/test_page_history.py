"""The history of texts: Back and Forward, the menu of texts, and the texts to compare."""

from typing import Any

from tests.chromium import needs_chromium
from tests.explorer.browser import HEAD, LAYER, SENTENCE, Site, wait_until_idle
from tests.explorer.server_process import run_server

pytestmark = needs_chromium
SECOND, THIRD, FOURTH = "Call me Ishmael", "Some years ago", "never mind how long"


def run_text(page: Any, text: str) -> None:
    page.get_by_label("Text for the model").fill(text)
    page.get_by_role("button", name="Run").click()
    wait_for_text(page, text)


def wait_for_text(page: Any, text: str) -> None:
    """Wait until the page shows a text in its view and in its URL; check the tokens."""
    page.locator(".text-view .token-flow", has_text=text.split()[-1]).wait_for()
    page.wait_for_function("text => new URLSearchParams(location.hash.slice(1)).get('text') === text", arg=text)
    wait_until_idle(page)
    page.get_by_label("Text for the model").blur()
    displayed = "".join(token.text_content() for token in page.locator(".token").all())
    assert displayed.replace(" ", "") == text.replace(" ", "")  # a wrapped line begins without its space


def test_back_and_forward_go_from_text_to_text(site: Site) -> None:
    page = site.page(f"view=text&layer={LAYER}&head={HEAD}&pinned=5")
    run_text(page, SECOND)
    run_text(page, THIRD)
    page.go_back()
    wait_for_text(page, SECOND)
    page.go_back()
    wait_for_text(page, SENTENCE)
    assert page.get_by_label("Text for the model").input_value() == SENTENCE
    assert page.locator(".token[data-state=pinned]").get_attribute("data-token") == "5"
    page.go_forward()
    page.go_forward()
    wait_for_text(page, THIRD)


def test_back_returns_to_the_previous_view_before_the_previous_text(site: Site) -> None:
    page = site.page(f"view=text&layer={LAYER}&head={HEAD}")
    run_text(page, FOURTH)
    page.get_by_role("link", name="Cost").click()
    page.locator(".cost-view").wait_for()
    page.wait_for_timeout(300)
    page.go_back()
    wait_for_text(page, FOURTH)
    page.go_back()
    wait_for_text(page, SENTENCE)


def test_back_undoes_a_generation(site: Site) -> None:
    page = site.page(f"view=generate&layer={LAYER}&head={HEAD}")
    page.wait_for_timeout(300)
    page.get_by_label("New tokens").fill("2")
    page.locator(".generate-view").get_by_role("button", name="Generate").click()
    page.locator(".probability-step").nth(1).wait_for()
    page.wait_for_timeout(300)
    page.go_back()
    page.locator(".playback-bar .hint").wait_for()
    page.get_by_role("link", name="Text", exact=True).click()
    wait_for_text(page, SENTENCE)


def test_menu_and_compare_view_list_the_texts(site: Site) -> None:
    page = site.page(f"view=text&layer={LAYER}&head={HEAD}")
    run_text(page, SECOND)
    page.locator(".session-menu summary").click()
    titles = page.locator(".session-list button").all_text_contents()
    assert titles.count(SECOND) == 1, "the model does not run again on the same text"
    assert any(title.startswith("The captain") for title in titles)
    page.locator(".session-list button[aria-current=true]", has_text=SECOND).wait_for()
    page.locator(".session-list button").last.click()
    wait_for_text(page, SENTENCE)
    page.get_by_role("link", name="Compare").click()
    options = page.get_by_label("Second").locator("option").all_text_contents()
    assert any(option.endswith(SECOND) for option in options)


def test_a_text_that_the_server_dropped_is_run_again(browser: Any) -> None:
    long = "word " * 200 + "end"  # too long for the URL, so the page has to remember it
    with run_server(SENTENCE, max_sessions=2) as server:
        site = Site(server, browser)
        page = site.page(f"view=text&layer={LAYER}&head={HEAD}")
        page.get_by_label("Text for the model").fill(long)
        page.get_by_role("button", name="Run").click()
        page.locator(".session-summary", has_text="tokens").filter(has_not_text="18 tokens").wait_for()
        page.wait_for_timeout(300)
        run_text(page, THIRD)
        assert [session["text"] for session in server.request("state").values["sessions"]] == [SENTENCE, THIRD]
        page.go_back()
        page.locator(".token-flow", has_text="word word").wait_for()
        page.go_back()
        wait_for_text(page, SENTENCE)
        page.go_forward()
        page.go_forward()
        wait_for_text(page, THIRD)
        site.close_pages()
