"""Notices of the page: errors, a lost server, and a restarted server."""

from pathlib import Path
from typing import Any

import pytest

from tests.chromium import needs_chromium
from tests.explorer.browser import HEAD, LAYER, SENTENCE, Site, cell_center, is_close, wait_until_idle, weights
from tests.explorer.server_process import free_port, run_server

pytestmark = needs_chromium
TOO_LONG = "word " * 40_000


def cause_error(page: Any) -> None:
    """Submit a text that is too long, and wait for its own error: that of an earlier text may still be shown."""
    page.get_by_label("Text for the model").fill(TOO_LONG)
    with page.expect_response(lambda response: response.status == 400):
        page.get_by_role("button", name="Run").click()
    wait_until_idle(page)
    page.locator(".alert:not([hidden])", has_text="must have at most").wait_for()


def test_an_error_closes_when_the_next_action_succeeds(site: Site) -> None:
    page = site.page(f"view=map&layer={LAYER}&head={HEAD}")
    cause_error(page)
    page.mouse.move(*cell_center(page, 16, 5))
    wait_until_idle(page)
    assert page.locator(".alert").is_visible(), "hovering is not an action"
    page.get_by_label("Text for the model").fill("Call me Ishmael once more")
    page.get_by_role("button", name="Run").click()
    page.locator(".alert").wait_for(state="hidden")
    cause_error(page)
    page.get_by_role("button", name="Next head").click()
    page.locator(".alert").wait_for(state="hidden")
    site.ignore_bad_requests()


def test_only_the_last_error_is_shown_and_can_be_closed(site: Site) -> None:
    page = site.page("view=overview")
    cause_error(page)
    cause_error(page)
    assert page.get_by_role("alert").count() == 1
    assert page.locator(".alert span").count() == 1
    page.get_by_role("button", name="Close").click()
    assert not page.locator(".alert").is_visible()
    site.ignore_bad_requests()


def test_an_error_stays_after_other_responses_of_the_same_action(site: Site) -> None:
    page = site.page("view=overview")
    page.route("**/api/cell_steps", lambda route: route.fulfill(status=400, json={"error": "the cell is broken"}))
    page.get_by_role("link", name="Arithmetic").click()
    page.locator(".alert", has_text="the cell is broken").wait_for()
    wait_until_idle(page)
    assert page.locator(".alert").is_visible()
    site.ignore_bad_requests()


@pytest.mark.long
def test_the_page_reconnects_when_the_server_is_back(browser: Any, tmp_path: Path) -> None:
    port, environment = free_port(), {"XDG_STATE_HOME": str(tmp_path)}
    with run_server("Something else first", port=port, environment=environment) as server:
        site = Site(server, browser)
        page = site.page(f"view=text&layer={LAYER}&head={HEAD}")
        page.get_by_label("Text for the model").fill(SENTENCE)
        page.get_by_role("button", name="Run").click()
        page.locator(".session-summary", has_text="18 tokens").wait_for()
        address = server.address
    page.get_by_role("link", name="Map").click()
    notice = page.locator(".connection-note:not([hidden])")
    notice.wait_for()
    assert f"regard explore --port {port}" in notice.text_content()
    assert "reconnects automatically" in notice.text_content()
    assert "Failed to fetch" not in page.locator("#regard").inner_text()
    with run_server("Another text, whose session has the id 0", port=port, environment=environment) as server:
        assert server.address == address
        page.locator(".connection-note").wait_for(state="hidden", timeout=30_000)
        page.locator(".session-summary", has_text="18 tokens").wait_for()
        wait_until_idle(page)
        page.mouse.move(*cell_center(page, 16, 5))
        wait_until_idle(page)
        assert is_close(page.locator(".readout output").text_content(), float(weights()[16, 5]))
        assert page.get_by_label("Text for the model").input_value() == SENTENCE
        assert not page.locator(".alert").is_visible()
        page.close()


@pytest.mark.long
def test_a_session_id_of_the_old_server_never_shows_a_text_of_the_new_one(browser: Any, tmp_path: Path) -> None:
    """The server may restart without the page noticing."""
    port, environment = free_port(), {"XDG_STATE_HOME": str(tmp_path)}
    with run_server(SENTENCE, port=port, environment=environment) as server:
        page = Site(server, browser).page(f"view=map&layer={LAYER}&head={HEAD}")
        wait_until_idle(page)
    page.wait_for_timeout(200)  # until all responses of the first server are delivered
    responses: list[Any] = []
    page.on("response", lambda response: responses.append(response))
    runs: list[Any] = []
    page.route("**/api/run_model", lambda route: runs.append(route))
    with run_server("Another text, whose session has the id 0", port=port, environment=environment):
        page.get_by_role("link", name="Text", exact=True).click()
        page.locator(".text-view .token", has_text="whale").first.wait_for()
        for _ in range(100):  # until the page notices the restart and runs its text again
            if runs:
                break
            page.locator(".token").nth(3).hover()
            page.wait_for_timeout(100)
        assert runs, "the page did not notice the restart"
        page.locator(".token").nth(4).hover()  # a request with the old session id, which is aborted
        page.wait_for_timeout(500)
        page.mouse.move(600, 600)
        runs[0].continue_()
        page.wait_for_function("() => new URLSearchParams(location.hash.slice(1)).get('session') === '1'")
        wait_until_idle(page)
        page.locator(".token").nth(4).hover()
        first = page.locator(".bar-list[data-list='attends to'] li").first
        first.wait_for()
        assert float(first.get_attribute("data-value")) == pytest.approx(float(weights()[4].max()), abs=1e-5)
        assert "view=text" in page.url  # selected during the reopening
        stale = [response for response in responses if '"session":0' in (response.request.post_data or "")]
        assert [response.url for response in stale if response.status != 409] == []
        page.close()


@pytest.mark.long
def test_the_key_is_not_sent_to_a_server_with_another_key(browser: Any, tmp_path: Path) -> None:
    port = free_port()
    with run_server(port=port, environment={"XDG_STATE_HOME": str(tmp_path / "one")}) as server:
        page = Site(server, browser).page("view=overview")
        key = server.path.strip("/")
    page.get_by_role("link", name="Map").click()
    page.locator(".connection-note:not([hidden])").wait_for()
    urls: list[str] = []
    page.on("request", lambda request: urls.append(request.url))
    with run_server(port=port, environment={"XDG_STATE_HOME": str(tmp_path / "two")}) as server:
        page.locator(".connection-note", has_text="Another server responds here").wait_for(timeout=30_000)
        assert any("/proof/" in url for url in urls)
        assert not [url for url in urls if key in url]
        page.reload()
        assert "This address does not belong to the running explorer" in page.locator("h1").text_content()
        assert page.evaluate("getComputedStyle(document.body).maxWidth") != "none", (
            "the content policy allows its style"
        )
        page.close()
