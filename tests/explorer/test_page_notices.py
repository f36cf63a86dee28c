"""What the page says when something went wrong: one error at a time, until something succeeds; and a lost server."""

import socket
from pathlib import Path
from typing import Any

import pytest

from tests.explorer.browser import HEAD, LAYER, SENTENCE, Site, at, near, needs_chromium, settled, weights
from tests.explorer.served import serving

pytestmark = needs_chromium
TOO_LONG = "word " * 40_000


def refuse(page: Any) -> None:
    page.get_by_label("Text for the model to read").fill(TOO_LONG)
    page.get_by_role("button", name="Look").click()
    page.locator(".alert:not([hidden])", has_text="must have at most").wait_for()


def forgiven(site: Site) -> None:
    site.errors[:] = [error for error in site.errors if "400" not in error]


def test_an_error_goes_when_the_next_action_succeeds(site: Site) -> None:
    page = site.page(f"view=map&layer={LAYER}&head={HEAD}")
    refuse(page)
    page.mouse.move(*at(page, 16, 5))
    settled(page)
    assert page.locator(".alert").is_visible(), "pointing at something is no action"
    page.get_by_label("Text for the model to read").fill("Call me Ishmael once more")
    page.get_by_role("button", name="Look").click()
    page.locator(".alert").wait_for(state="hidden")
    refuse(page)
    page.get_by_role("button", name="The next head").click()
    page.locator(".alert").wait_for(state="hidden")
    forgiven(site)


def test_errors_do_not_stack_up_and_can_be_closed(site: Site) -> None:
    page = site.page("view=overview")
    refuse(page)
    refuse(page)
    assert page.get_by_role("alert").count() == 1
    assert page.locator(".alert span").count() == 1
    page.get_by_role("button", name="Close").click()
    assert not page.locator(".alert").is_visible()
    forgiven(site)


def test_an_error_stays_while_other_questions_of_the_same_action_are_answered(site: Site) -> None:
    page = site.page("view=overview")
    page.route("**/ask/cell", lambda route: route.fulfill(status=400, json={"error": "the cell is broken"}))
    page.get_by_role("link", name="Arithmetic").click()
    page.locator(".alert", has_text="the cell is broken").wait_for()
    settled(page)
    assert page.locator(".alert").is_visible()
    forgiven(site)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_the_page_goes_on_when_the_server_is_back(browser: Any, tmp_path: Path) -> None:
    port, environment = free_port(), {"XDG_STATE_HOME": str(tmp_path)}
    with serving("Something else first", port=port, environment=environment) as server:
        site = Site(server, browser)
        page = site.page(f"view=text&layer={LAYER}&head={HEAD}")
        page.get_by_label("Text for the model to read").fill(SENTENCE)
        page.get_by_role("button", name="Look").click()
        page.locator(".about", has_text="18 tokens").wait_for()
        address = server.address
    page.get_by_role("link", name="Map").click()
    note = page.locator(".connection-note:not([hidden])")
    note.wait_for()
    assert f"regard look --port {port}" in note.text_content()
    assert "goes on by itself" in note.text_content()
    assert "Failed to fetch" not in page.locator("#regard").inner_text()
    with serving("Another text, which has the number 0 now", port=port, environment=environment) as server:
        assert server.address == address
        page.locator(".connection-note").wait_for(state="hidden", timeout=30_000)
        page.locator(".about", has_text="18 tokens").wait_for()
        settled(page)
        page.mouse.move(*at(page, 16, 5))
        settled(page)
        assert near(page.locator(".readout output").text_content(), float(weights()[16, 5]))
        assert page.get_by_label("Text for the model to read").input_value() == SENTENCE
        assert not page.locator(".alert").is_visible()
        page.context.close()


def test_a_page_never_shows_another_text_under_the_number_of_its_own(browser: Any, tmp_path: Path) -> None:
    """The server may be started again without the page noticing that it was gone."""
    port, environment = free_port(), {"XDG_STATE_HOME": str(tmp_path)}
    with serving(SENTENCE, port=port, environment=environment) as server:
        page = Site(server, browser).page(f"view=map&layer={LAYER}&head={HEAD}")
        settled(page)
    responses: list[Any] = []
    page.on("response", lambda response: responses.append(response))
    runs: list[Any] = []
    page.route("**/ask/run", lambda route: runs.append(route))
    with serving("Another text, which has the number 0 now", port=port, environment=environment):
        page.get_by_role("link", name="Text", exact=True).click()
        page.locator(".text-view .token", has_text="whale").first.wait_for()
        for _ in range(100):  # until the page has noticed the restart and has its text read again
            if runs:
                break
            page.locator(".token").nth(3).hover()
            page.wait_for_timeout(100)
        assert runs, "the page did not notice the restart"
        page.locator(".token").nth(4).hover()  # a request with the old number, which is abandoned
        page.wait_for_timeout(500)
        page.mouse.move(600, 600)
        runs[0].continue_()
        page.wait_for_function("() => new URLSearchParams(location.hash.slice(1)).get('shown') === '1'")
        settled(page)
        page.locator(".token").nth(4).hover()
        first = page.locator(".looks[data-list='looks at'] li").first
        first.wait_for()
        assert float(first.get_attribute("data-value")) == pytest.approx(float(weights()[4].max()), abs=1e-5)
        assert "view=text" in page.url  # chosen while the page was being reopened
        old_numbers = [r for r in responses if '"shown":0' in (r.request.post_data or "")]
        assert {r.status for r in old_numbers} <= {409}
        page.context.close()


def test_a_server_with_another_key_is_not_sent_this_one(browser: Any, tmp_path: Path) -> None:
    port = free_port()
    with serving(port=port, environment={"XDG_STATE_HOME": str(tmp_path / "one")}) as server:
        page = Site(server, browser).page("view=overview")
        key = server.path.strip("/")
    page.get_by_role("link", name="Map").click()
    page.locator(".connection-note:not([hidden])").wait_for()
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.url))
    with serving(port=port, environment={"XDG_STATE_HOME": str(tmp_path / "two")}) as server:
        page.locator(".connection-note", has_text="Another server answers here").wait_for(timeout=30_000)
        assert any("/proof/" in url for url in sent)
        assert not [url for url in sent if key in url]
        page.reload()
        assert "This address does not belong to the running explorer" in page.locator("h1").text_content()
        assert page.evaluate("getComputedStyle(document.body).maxWidth") != "none", "its style is allowed"
        page.context.close()
