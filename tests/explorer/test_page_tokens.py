"""Texts in any script: labels of partial characters, and a text that stays intact after generation."""

from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.chromium import needs_chromium
from tests.explorer.browser import HEAD, LAYER, Site, cell_center, wait_until_idle

pytestmark = needs_chromium
ACCENTS = "The café in München costs 5 €"
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


@pytest.fixture(scope="module")
def shared_site(shared_site: Site) -> Site:
    return shared_site.with_text(ACCENTS)


def token_texts(page: Any) -> list[str]:
    return [token.text_content() for token in page.locator(".token").all()]


def test_partial_characters_show_the_character_once_and_their_bytes(site: Site) -> None:
    page = site.page(f"view=text&layer={LAYER}&head={HEAD}")
    assert token_texts(page)[2:5] == ["f", "éC3", "A9"]
    assert page.locator(".token .token-bytes").all_text_contents() == ["C3", "A9", "C3", "BC", "E2", "82", "AC"]
    page.locator(".token").nth(4).hover()
    page.locator(".bar-list").first.wait_for()
    assert page.locator(".sidebar .selection-title").text_content() == "é‹A9› token 4"
    page.get_by_role("button", name="Words").click()
    page.locator(".token", has_text="café").wait_for()
    assert [word.strip() for word in token_texts(page)] == ACCENTS.replace("5 €", "5 · €").split()
    assert REPLACEMENT not in page.locator("#regard").inner_text()


def test_map_and_lines_label_partial_characters(site: Site) -> None:
    page = site.page(f"view=map&layer={LAYER}&head={HEAD}")
    page.mouse.move(*cell_center(page, 8, 4))
    wait_until_idle(page)
    assert page.locator(".readout .query-color").text_content() == "ü‹BC›8"
    assert page.locator(".readout .key-color").text_content() == "é‹A9›4"
    page.get_by_role("link", name="Lines").click()
    page.locator("svg.lines path").first.wait_for(state="attached")
    labels = page.locator(".line-token[data-side=key]").evaluate_all("all => all.map((t) => t.firstChild.textContent)")
    assert labels[3:5] == ["é‹C3›", "é‹A9›"]


@pytest.mark.parametrize("text", ["日本語", "🙂👍", "Привет"])
def test_other_scripts_are_shown_as_characters(site: Site, text: str) -> None:
    page = site.with_text(text).page(f"view=text&layer={LAYER}&head={HEAD}")
    displayed = page.locator(".token-flow").inner_text()
    assert "".join(character for character in displayed if character in text) == text
    assert REPLACEMENT not in page.locator("#regard").inner_text()


def test_form_link_and_next_run_keep_the_text_intact_after_generation(site: Site) -> None:
    page = site.page(f"view=generate&layer={LAYER}&head={HEAD}")
    page.get_by_label("New tokens").fill("2")
    page.locator(".generate-view").get_by_role("button", name="Generate").click()
    page.locator(".probability-step").nth(1).wait_for()
    page.wait_for_function("decodeURIComponent(location.hash.replaceAll('+', ' ')).includes('München costs 5 €')")
    assert page.get_by_label("Text for the model").input_value().startswith(ACCENTS)
    assert parse_qs(urlsplit(page.url).fragment)["text"][0].startswith(ACCENTS)
    page.get_by_role("button", name="Run").click()
    page.locator(".playback-bar .hint").wait_for()
    sessions = site.server.request("state").values["sessions"]
    texts = [session["text"] for session in sessions if not session["generation"]]
    assert any(text.startswith(ACCENTS) for text in texts[1:])
    page.get_by_role("link", name="Text", exact=True).click()
    page.locator(".text-view .token").first.wait_for()
    assert token_texts(page)[3:5] == ["éC3", "A9"]
