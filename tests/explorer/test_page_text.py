"""The Text and Lines views: the keys that tokens attend to, and the queries that attend to them."""

from typing import Any

import pytest
import torch

from regard.explorer.session import Session
from regard.explorer.text_models.registry import load_text_model
from regard.recording.metrics.token_groups import word_ids
from tests.chromium import needs_chromium
from tests.explorer.browser import HEAD, LAYER, Site, is_close, parse_number, record_text, wait_until_idle, weights

pytestmark = needs_chromium
TEXT_VIEW = f"view=text&layer={LAYER}&head={HEAD}"
DATE_TEXT = "on friday , the twenty first of march nineteen eighty six"


def bar_values(page: Any, title: str) -> dict[int, float]:
    """Return the displayed numbers of a bar list by token."""
    items = page.locator(f".bar-list[data-list='{title}'] li").all()
    values = (parse_number(item.locator(".bar-value").text_content()) for item in items)
    return dict(zip((int(item.get_attribute("data-token")) for item in items), values, strict=True))


def bar_tracks(page: Any) -> list[tuple[float, float]]:
    """Return the left end and the length in pixels of a full bar, for every bar."""
    boxes = [track.bounding_box() for track in page.locator(".bar-list .bar-track").all()]
    return [(box["x"], box["width"]) for box in boxes]


def token(page: Any, index: int) -> Any:
    return page.locator(f".token[data-token='{index}']")


def test_a_weight_has_a_bar_of_the_same_length_in_every_list(site: Site) -> None:
    page = site.page(f"{TEXT_VIEW}&pinned=4")
    page.locator(".bar-list").first.wait_for()
    texts = page.locator(".bar-value").all_text_contents()
    assert len({len(text) for text in texts}) > 1, "numbers of different lengths"
    assert len(set(bar_tracks(page))) == 1


def test_hovering_a_token_shows_its_row_and_its_column(site: Site) -> None:
    page = site.page(TEXT_VIEW)
    token(page, 4).hover()
    page.locator(".bar-list").first.wait_for()
    for key, value in bar_values(page, "attends to").items():
        assert is_close(value, float(weights()[4, key]))
    for query, value in bar_values(page, "attended to by").items():
        assert is_close(value, float(weights()[query, 4]))
    assert set(bar_values(page, "attended to by")) >= {4, 15}
    assert "inset" in token(page, 15).evaluate("token => token.style.boxShadow")
    assert token(page, 4).evaluate("token => token.style.backgroundColor") != ""
    page.mouse.move(600, 600)
    page.get_by_text("Point at a token").wait_for()


def test_click_pins_a_token_and_shift_click_adds_another(site: Site) -> None:
    page = site.page(TEXT_VIEW)
    token(page, 13).click()
    token(page, 15).click(modifiers=["Shift"])
    page.mouse.move(600, 600)
    page.wait_for_timeout(200)
    wait_until_idle(page)
    assert [int(t.get_attribute("data-token")) for t in page.locator(".token[data-state=pinned]").all()] == [13, 15]
    mean = weights()[[13, 15]].mean(0)
    values = bar_values(page, "attends to")
    assert set(values) >= {2, 4}
    for key, value in values.items():
        assert is_close(value, float(mean[key]))
    token(page, 13).click()
    token(page, 13).click()
    page.mouse.move(600, 600)
    page.get_by_text("Point at a token").wait_for()


def test_drag_selects_a_span(site: Site) -> None:
    page = site.page(TEXT_VIEW)
    start, end = token(page, 2).bounding_box(), token(page, 5).bounding_box()
    page.mouse.move(start["x"] + 5, start["y"] + 10)
    page.mouse.down()
    page.mouse.move(end["x"] + 5, end["y"] + 10, steps=12)
    page.mouse.up()
    page.mouse.move(600, 600)
    page.locator(".span-mass").wait_for()
    wait_until_idle(page)
    mass = float(page.locator(".span-mass").get_attribute("data-sum"))
    assert mass == pytest.approx(float(weights()[2:6, 2:6].sum() / 4), abs=1e-5)
    column_sum = weights()[:, 2:6].sum(1)
    for query, value in bar_values(page, "attended to by").items():
        assert is_close(value, float(column_sum[query]))


def test_words_join_their_tokens(site: Site) -> None:
    text = "They call me Ishmael and Queequeg. Ishmael went whaling"
    session = site.server.request("run_model", text=text, model="language").values["id"]
    tokens = record_text(text)[1]
    ids = word_ids(tokens)
    page = site.page(f"{TEXT_VIEW}&show_words=1&session={session}")
    words = [
        "".join(token for token, token_word in zip(tokens, ids, strict=True) if token_word == word).strip()
        for word in sorted(set(ids))
    ]
    assert [item.text_content().strip() for item in page.locator(".token").all()] == words
    assert len(words) < len(tokens)
    ishmael = [n for n, word in enumerate(ids) if word == 3]
    assert len(ishmael) > 1
    page.locator(".token").nth(3).hover()
    page.locator(".bar-list").first.wait_for()
    mean = weights(text)[ishmael].mean(0)
    assert is_close(bar_values(page, "attends to")[ishmael[0]], float(mean[ishmael].sum()))


def test_keys_move_through_the_text_and_pin_tokens(site: Site) -> None:
    page = site.page(TEXT_VIEW)
    page.locator(".token-flow").focus()
    for _ in range(6):
        page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    page.locator(".bar-list").first.wait_for()
    assert page.locator(".token[data-state=pinned]").get_attribute("data-token") == "5"
    page.keyboard.press("Escape")
    assert page.locator(".token[data-state=pinned]").count() == 0


def line_ids(page: Any) -> set[tuple[int, int, int]]:
    """Return head, query and key of all lines."""
    return {
        tuple(int(path.get_attribute(f"data-{name}")) for name in ("head", "query", "key"))
        for path in page.locator("svg.lines path").all()
    }


def expected_lines(matrix: torch.Tensor, mass: float, head: int) -> set[tuple[int, int, int]]:
    """Return head, query and key of the largest weights of each query that together have the mass."""
    lines = set()
    for query, row in enumerate(matrix):
        remaining = mass * float(row.sum())
        for key in row.argsort(descending=True).tolist():
            if remaining <= 0 or float(row[key]) == 0:
                break
            remaining -= float(row[key])
            lines.add((head, query, key))
    return lines


def test_lines_are_the_largest_weights_of_the_selected_heads(site: Site) -> None:
    page = site.page(f"view=lines&layer={LAYER}&head={HEAD}&mass=0.6")
    page.locator("svg.lines path").first.wait_for(state="attached")
    assert line_ids(page) == expected_lines(weights(), 0.6, HEAD)
    path = page.locator("svg.lines path[data-query='16'][data-key='5']")
    assert float(path.get_attribute("data-weight")) == pytest.approx(float(weights()[16, 5]), abs=1e-5)
    page.locator(".head-chip[data-head='3']").click()
    page.locator("svg.lines path[data-head='3']").first.wait_for(state="attached")
    wait_until_idle(page)
    assert line_ids(page) == expected_lines(weights(), 0.6, HEAD) | expected_lines(weights(head=3), 0.6, 3)


def test_more_mass_draws_more_lines(site: Site) -> None:
    page = site.page(f"view=lines&layer={LAYER}&head=0&mass=0.2")
    page.locator("svg.lines path").first.wait_for(state="attached")
    page.get_by_label("Mass").fill("0.9")
    wait_until_idle(page)
    assert line_ids(page) == expected_lines(weights(head=0), 0.9, 0)


def test_focus_stays_on_a_control_when_the_view_is_redrawn(site: Site) -> None:
    page = site.page(f"view=text&layer={LAYER}&head=2")
    page.get_by_label("Head", exact=True).focus()
    for _ in range(2):
        page.keyboard.press("ArrowDown")
        wait_until_idle(page)
    assert page.evaluate("document.activeElement.value") == "4"
    assert page.locator(".text-view").get_by_label("Head", exact=True).input_value() == "4"


@pytest.fixture(scope="module")
def dates_session(shared_site: Site) -> int:
    """The session of the date model, an encoder-decoder."""
    return int(shared_site.server.request("run_model", text=DATE_TEXT, model="dates").values["id"])


def cross_attention_layer(session: Session) -> int:
    return next(layer for layer, texts in session.layer_texts.items() if texts.query_text != texts.key_text)


def test_lines_of_cross_attention_have_two_columns_of_different_tokens(site: Site, dates_session: int) -> None:
    session = load_text_model("dates").record_text(DATE_TEXT)
    layer = cross_attention_layer(session)
    page = site.page(f"view=lines&session={dates_session}&layer={layer}&head=0&mass=0.5")
    page.locator("svg.lines path").first.wait_for(state="attached")
    labels = {
        side: [
            label.evaluate("label => label.firstChild.textContent")
            for label in page.locator(f".line-token[data-side={side}]").all()
        ]
        for side in ("query", "key")
    }
    key_tokens = session.texts[session.layer_texts[layer].key_text].tokens
    assert labels["key"] == [token.strip() for token in key_tokens]
    assert labels["query"] != labels["key"]
    assert line_ids(page) == expected_lines(session.recording[layer].weights.to_dense()[0, 0], 0.5, 0)


def test_cross_attention_shades_the_keys_in_the_other_text(site: Site, dates_session: int) -> None:
    session = load_text_model("dates").record_text(DATE_TEXT)
    layer = cross_attention_layer(session)
    page = site.page(f"view=text&session={dates_session}&layer={layer}&head=1")
    panes = page.locator(".pane")
    panes.nth(0).locator(".token").nth(3).hover()
    page.locator(".bar-list").first.wait_for()
    row = session.recording[layer].weights.to_dense()[0, 1, 3]
    for key, value in bar_values(page, "attends to").items():
        assert is_close(value, float(row[key]))
    best_key = int(row.argmax())
    assert panes.nth(1).locator(".token").nth(best_key).evaluate("token => token.style.backgroundColor") != ""
    assert page.locator(".bar-list[data-list='attended to by']").count() == 0
