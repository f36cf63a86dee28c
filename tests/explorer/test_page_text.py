"""The text and the lines: where tokens look, who looks at them, in one text and across two."""

from typing import Any

import pytest
import torch

from regard.explorer.sources import of_name
from regard.inside.places import word_ids
from tests.explorer.browser import HEAD, LAYER, Site, near, needs_chromium, number, recorded, settled, weights

pytestmark = needs_chromium
TEXT = f"view=text&layer={LAYER}&head={HEAD}"
DATE = "on friday , the twenty first of march nineteen eighty six"


def listed(page: Any, title: str) -> dict[int, float]:
    """A list of the side as numbers by token, as they are written."""
    items = page.locator(f".looks[data-list='{title}'] li").all()
    return {int(item.get_attribute("data-token")): number(item.locator(".num").text_content()) for item in items}


def token(page: Any, place: int) -> Any:
    return page.locator(f".token[data-token='{place}']")


def test_pointing_shows_where_a_token_looks_and_who_looks_at_it(site: Site) -> None:
    page = site.page(TEXT)
    token(page, 4).hover()
    page.locator(".looks").first.wait_for()
    right = weights()
    for place, shown in listed(page, "looks at").items():
        assert near(shown, float(right[4, place]))
    for place, shown in listed(page, "is looked at by").items():
        assert near(shown, float(right[place, 4]))
    assert set(listed(page, "is looked at by")) >= {4, 15}
    assert "inset" in token(page, 15).evaluate("token => token.style.boxShadow")
    assert token(page, 4).evaluate("token => token.style.backgroundColor") != ""
    page.mouse.move(600, 600)
    page.get_by_text("Point at a token").wait_for()


def test_a_click_locks_and_shift_and_click_add_another(site: Site) -> None:
    page = site.page(TEXT)
    token(page, 13).click()
    token(page, 15).click(modifiers=["Shift"])
    page.mouse.move(600, 600)
    page.wait_for_timeout(200)
    settled(page)
    assert [int(t.get_attribute("data-token")) for t in page.locator(".token[data-state=locked]").all()] == [13, 15]
    mean = weights()[[13, 15]].mean(0)
    found = listed(page, "looks at")
    assert set(found) >= {2, 4}
    for place, shown in found.items():
        assert near(shown, float(mean[place]))
    token(page, 13).click()
    token(page, 13).click()
    page.mouse.move(600, 600)
    page.get_by_text("Point at a token").wait_for()


def test_dragging_selects_a_span_and_sums(site: Site) -> None:
    page = site.page(TEXT)
    begin, end = token(page, 2).bounding_box(), token(page, 5).bounding_box()
    page.mouse.move(begin["x"] + 5, begin["y"] + 10)
    page.mouse.down()
    page.mouse.move(end["x"] + 5, end["y"] + 10, steps=12)
    page.mouse.up()
    page.mouse.move(600, 600)
    page.locator(".sum").wait_for()
    settled(page)
    part = weights()[2:6]
    assert float(page.locator(".sum").get_attribute("data-sum")) == pytest.approx(
        float(part[:, 2:6].sum() / 4), abs=1e-5
    )
    received = weights()[:, 2:6].sum(1)
    for place, shown in listed(page, "is looked at by").items():
        assert near(shown, float(received[place]))


def test_words_are_made_of_their_tokens(site: Site) -> None:
    text = "They call me Ishmael and Queequeg. Ishmael went whaling"
    other = site.server.ask("run", text=text, model="language").values["id"]
    tokens, right = recorded(text)[1], weights(text)
    groups = word_ids(tokens)
    page = site.page(f"{TEXT}&words=1&shown={other}")
    whole = [
        "".join(t for t, g in zip(tokens, groups, strict=True) if g == word).strip() for word in sorted(set(groups))
    ]
    assert [t.text_content().strip() for t in page.locator(".token").all()] == whole
    assert len(whole) < len(tokens)
    ishmael = [n for n, g in enumerate(groups) if g == 3]
    assert len(ishmael) > 1
    page.locator(".token").nth(3).hover()
    page.locator(".looks").first.wait_for()
    mean, found = right[ishmael].mean(0), listed(page, "looks at")
    assert near(found[ishmael[0]], float(mean[ishmael].sum()))


def test_the_text_is_walked_through_by_keys(site: Site) -> None:
    page = site.page(TEXT)
    page.locator(".flow").focus()
    for _ in range(6):
        page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    page.locator(".looks").first.wait_for()
    assert page.locator(".token[data-state=locked]").get_attribute("data-token") == "5"
    page.keyboard.press("Escape")
    assert page.locator(".token[data-state=locked]").count() == 0


def drawn(page: Any) -> set[tuple[int, int, int]]:
    return {
        tuple(int(path.get_attribute(f"data-{name}")) for name in ("head", "query", "key"))
        for path in page.locator("svg.lines path").all()
    }


def largest(matrix: torch.Tensor, mass: float, head: int) -> set[tuple[int, int, int]]:
    """Of each query the largest weights until they have the mass together."""
    found = set()
    for query, row in enumerate(matrix):
        left = mass * float(row.sum())
        for key in row.argsort(descending=True).tolist():
            if left <= 0 or float(row[key]) == 0:
                break
            left -= float(row[key])
            found.add((head, query, key))
    return found


def test_lines_are_the_largest_weights_of_the_chosen_heads(site: Site) -> None:
    page = site.page(f"view=lines&layer={LAYER}&head={HEAD}&mass=0.6")
    page.locator("svg.lines path").first.wait_for(state="attached")
    assert drawn(page) == largest(weights(), 0.6, HEAD)
    path = page.locator("svg.lines path[data-query='16'][data-key='5']")
    assert float(path.get_attribute("data-weight")) == pytest.approx(float(weights()[16, 5]), abs=1e-5)
    page.locator(".head-chip[data-head='3']").click()
    page.locator("svg.lines path[data-head='3']").first.wait_for(state="attached")
    settled(page)
    assert drawn(page) == largest(weights(), 0.6, HEAD) | largest(weights(head=3), 0.6, 3)


def test_more_mass_draws_more_lines(site: Site) -> None:
    page = site.page(f"view=lines&layer={LAYER}&head=0&mass=0.2")
    page.locator("svg.lines path").first.wait_for(state="attached")
    page.get_by_label("Mass").fill("0.9")
    settled(page)
    assert drawn(page) == largest(weights(head=0), 0.9, 0)


def test_the_keyboard_keeps_its_place_when_a_view_is_drawn_anew(site: Site) -> None:
    page = site.page(f"view=text&layer={LAYER}&head=2")
    page.get_by_label("Head", exact=True).focus()
    for _ in range(2):
        page.keyboard.press("ArrowDown")
        settled(page)
    assert page.evaluate("document.activeElement.value") == "4"
    assert page.locator(".text-view").get_by_label("Head", exact=True).input_value() == "4"


@pytest.fixture(scope="module")
def dates(shared: Site) -> int:
    """The translator's recording, in the same server."""
    return int(shared.server.ask("run", text=DATE, model="dates").values["id"])


def test_an_encoder_and_decoder_have_two_columns_of_different_tokens(site: Site, dates: int) -> None:
    shown = of_name("dates").shown(DATE)
    layer = next(number for number, place in shown.places.items() if place.query_text != place.key_text)
    page = site.page(f"view=lines&shown={dates}&layer={layer}&head=0&mass=0.5")
    page.locator("svg.lines path").first.wait_for(state="attached")
    place = shown.places[layer]
    sides = {
        side: [
            t.evaluate("t => t.firstChild.textContent") for t in page.locator(f".line-token[data-side={side}]").all()
        ]
        for side in ("query", "key")
    }
    assert sides["key"] == [t.strip() for t in shown.texts[place.key_text].tokens]
    assert sides["query"] != sides["key"]
    assert drawn(page) == largest(shown.tape[layer].weights.dense()[0, 0], 0.5, 0)


def test_across_two_texts_a_query_is_pointed_at_in_one_and_its_keys_are_shaded_in_the_other(
    site: Site, dates: int
) -> None:
    shown = of_name("dates").shown(DATE)
    layer = next(number for number, place in shown.places.items() if place.query_text != place.key_text)
    page = site.page(f"view=text&shown={dates}&layer={layer}&head=1")
    panes = page.locator(".pane")
    panes.nth(0).locator(".token").nth(3).hover()
    page.locator(".looks").first.wait_for()
    row = shown.tape[layer].weights.dense()[0, 1, 3]
    for place, value in listed(page, "looks at").items():
        assert near(value, float(row[place]))
    best = int(row.argmax())
    assert panes.nth(1).locator(".token").nth(best).evaluate("t => t.style.backgroundColor") != ""
    assert page.locator(".looks[data-list='is looked at by']").count() == 0
