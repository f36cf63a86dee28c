"""Text in any script in the page: labels of parts of characters, and a text that stays what it was after writing on."""

from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.explorer.browser import HEAD, LAYER, Site, at, needs_chromium, settled

pytestmark = needs_chromium
ACCENTS = "The café in München costs 5 €"
BROKEN = "\N{REPLACEMENT CHARACTER}"


@pytest.fixture(scope="module")
def shared(shared: Site) -> Site:
    return shared.reading(ACCENTS)


def flow(page: Any) -> list[str]:
    return [token.text_content() for token in page.locator(".token").all()]


def test_parts_of_a_character_show_it_once_and_their_bytes(site: Site) -> None:
    page = site.page(f"view=text&layer={LAYER}&head={HEAD}")
    assert flow(page)[2:5] == ["f", "éC3", "A9"]
    assert page.locator(".token .bytes").all_text_contents() == ["C3", "A9", "C3", "BC", "E2", "82", "AC"]
    page.locator(".token").nth(4).hover()
    page.locator(".looks").first.wait_for()
    assert page.locator(".side .subject").text_content() == "é‹A9› token 4"
    page.get_by_role("button", name="Words").click()
    page.locator(".token", has_text="café").wait_for()
    assert [word.strip() for word in flow(page)] == ACCENTS.replace("5 €", "5 · €").split()
    assert BROKEN not in page.locator("#regard").inner_text()


def test_the_map_and_the_lines_name_parts_of_a_character(site: Site) -> None:
    page = site.page(f"view=map&layer={LAYER}&head={HEAD}")
    page.mouse.move(*at(page, 8, 4))
    settled(page)
    assert page.locator(".readout .of-query").text_content() == "ü‹BC›8"
    assert page.locator(".readout .of-key").text_content() == "é‹A9›4"
    page.get_by_role("link", name="Lines").click()
    page.locator("svg.lines path").first.wait_for(state="attached")
    labels = page.locator(".line-token[data-side=key]").evaluate_all("all => all.map((t) => t.firstChild.textContent)")
    assert labels[3:5] == ["é‹C3›", "é‹A9›"]


@pytest.mark.parametrize("text", ["日本語", "🙂👍", "Привет"])
def test_other_scripts_are_shown_as_characters(site: Site, text: str) -> None:
    page = site.reading(text).page(f"view=text&layer={LAYER}&head={HEAD}")
    shown = page.locator(".flow").inner_text()
    assert "".join(letter for letter in shown if letter in text) == text
    assert BROKEN not in page.locator("#regard").inner_text()


def test_the_box_the_link_and_the_next_run_have_the_text_intact_after_writing_on(site: Site) -> None:
    page = site.page(f"view=generate&layer={LAYER}&head={HEAD}")
    page.get_by_label("Tokens").fill("2")
    page.get_by_role("button", name="Continue").click()
    page.locator(".sure").nth(1).wait_for()
    page.wait_for_function("decodeURIComponent(location.hash.replaceAll('+', ' ')).includes('München costs 5 €')")
    box = page.get_by_label("Text for the model to read")
    assert box.input_value().startswith(ACCENTS)
    assert parse_qs(urlsplit(page.url).fragment)["text"][0].startswith(ACCENTS)
    page.get_by_role("button", name="Look").click()
    page.locator(".scrub .hint").wait_for()
    texts = [shown["text"] for shown in site.server.ask("state").values["shown"] if not shown["generated"]]
    assert any(text.startswith(ACCENTS) for text in texts[1:])
    page.get_by_role("link", name="Text", exact=True).click()
    page.locator(".text-view .token").first.wait_for()
    assert flow(page)[3:5] == ["éC3", "A9"]
