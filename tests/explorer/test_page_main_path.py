"""The main path through the page: enter a sentence, open a head, point at a cell, read its arithmetic."""

from typing import Any

import pytest
import torch

from regard.models.bundled import language_model
from tests.chromium import needs_chromium
from tests.explorer.browser import (
    HEAD,
    LAYER,
    SENTENCE,
    Site,
    cell_center,
    is_close,
    parse_number,
    record_text,
    wait_until_idle,
    weights,
)

pytestmark = needs_chromium
TEXT = "Call me Ishmael. Call me what you like"


def displayed_heads(page: Any) -> list[tuple[int, int]]:
    """Return the layer and the head of each card, in the order of the page."""
    script = "cards => cards.map(({ dataset }) => [Number(dataset.layer), Number(dataset.head)])"
    return [(layer, head) for layer, head in page.locator("button.head-card").evaluate_all(script)]


def displayed_numbers(cells: Any) -> list[tuple[str, float]]:
    """Return the text of each cell, and the number at full precision in its tooltip."""
    texts = cells.evaluate_all("cells => cells.map((cell) => [cell.textContent, cell.title])")
    return [(text, float(title)) for text, title in texts]


def test_heads_are_sorted_by_a_measure(site: Site) -> None:
    page = site.page("view=overview")
    page.wait_for_selector(".head-card .chip")
    page.get_by_label("Measure").select_option("confidence")
    page.get_by_role("button", name="Largest first").click()
    expected = [row["layer"] * 8 + row["head"] for row in record_text()[0].head_table().sort("confidence")]
    order = [layer * 8 + head for layer, head in displayed_heads(page)]
    values = record_text()[0].head_table().column("confidence")
    assert [round(values[head], 4) for head in order] == [round(values[head], 4) for head in expected]
    assert page.locator(".head-card .value").first.text_content() == f"{max(values):.2f}"


def test_cards_open_maps_and_cells_open_arithmetic(site: Site) -> None:
    page = site.page("view=overview")
    page.locator(f"button.head-card[data-layer='{LAYER}'][data-head='{HEAD}']").click()
    expected = float(weights()[16, 5])
    page.mouse.move(*cell_center(page, 16, 5))
    wait_until_idle(page)
    assert is_close(page.locator(".readout output").text_content(), expected)
    assert "white" in page.locator(".readout .query-color").text_content()
    assert "whale" in page.locator(".readout .key-color").text_content()
    page.mouse.click(*cell_center(page, 16, 5))
    page.get_by_role("button", name="Show arithmetic").click()
    page.wait_for_selector(".arithmetic-headline output")
    assert is_close(page.locator(".arithmetic-headline output").text_content(), expected)


def test_text_beside_the_map_is_shaded_by_the_hovered_row(site: Site) -> None:
    page = site.page(f"view=map&layer={LAYER}&head={HEAD}")
    page.mouse.move(*cell_center(page, 15, 4))
    item = page.locator(".shaded-text li").first
    item.wait_for()
    best = int(weights()[15].argmax())
    assert int(item.get_attribute("data-token")) == best
    assert float(item.get_attribute("data-value")) == pytest.approx(float(weights()[15, best]), abs=1e-5)
    shades = page.eval_on_selector_all(".shaded-text .token", "all => all.map((token) => token.style.backgroundColor)")
    assert shades[best]
    assert not shades[9]
    assert page.locator(".shaded-text .token[data-state=query]").text_content().strip() == "the"


def test_main_path_works_by_keyboard_and_is_announced(site: Site) -> None:
    page = site.page(f"view=overview&layer={LAYER}&head={HEAD}")
    page.wait_for_selector(".head-card .chip")
    page.locator(f"button.head-card[data-layer='{LAYER}'][data-head='{HEAD}']").focus()
    assert "induction" in page.evaluate("document.activeElement.getAttribute('aria-label')")
    page.keyboard.press("Enter")
    page.wait_for_selector("canvas.map[data-frame]")
    wait_until_idle(page)
    page.locator("canvas.map").focus()
    for key in ["ArrowDown"] * 13 + ["ArrowRight"] * 2:
        page.keyboard.press(key)
    wait_until_idle(page)
    announcement = page.locator("[aria-live]").text_content()
    assert "“captain”, token 13, attends to “saw”, token 2" in announcement
    assert is_close(announcement.rstrip(".").split()[-1], float(weights()[13, 2]))
    page.keyboard.press("Enter")
    page.wait_for_selector(".arithmetic-headline output")
    assert is_close(page.locator(".arithmetic-headline output").text_content(), float(weights()[13, 2]))


def test_arithmetic_and_its_code_give_the_weight(site: Site) -> None:
    page = site.page(f"view=arithmetic&layer={LAYER}&head={HEAD}&query=13&key=1")
    page.wait_for_selector(".arithmetic-headline output")

    def step_value(name: str) -> float:
        return float(page.locator(f".step-number[data-name={name}]").first.get_attribute("data-value"))

    call = record_text()[0].layer_named(LAYER).merged_call
    q, k, v = (x[0, HEAD].double() for x in (call.q, call.k, call.v))
    scores = q[13] @ k[:14].mT / q.shape[-1] ** 0.5
    assert step_value("dot") == pytest.approx(float(q[13] @ k[1]), rel=1e-5)
    assert step_value("scaled") == pytest.approx(float(scores[1]), rel=1e-5)
    assert step_value("row_max") == pytest.approx(float(scores.max()), rel=1e-5)
    assert step_value("exp_sum") == pytest.approx(float((scores - scores.max()).exp().sum()), rel=1e-5)
    assert step_value("exp") / step_value("exp_sum") == pytest.approx(float(weights()[13, 1]), abs=1e-6)
    products = [x for _, x in displayed_numbers(page.locator(".vector tbody tr:nth-child(3) td"))]
    assert sum(products[: q.shape[1]]) == pytest.approx(step_value("dot"), rel=1e-6)
    output = [x for _, x in displayed_numbers(page.locator("li").last.locator("td"))]
    assert output == pytest.approx((scores.softmax(0) @ v[:14]).tolist(), rel=1e-4, abs=1e-5)
    names: dict[str, Any] = {"recording": record_text()[0], "torch": torch}
    exec(page.locator("pre.code").text_content(), names)
    assert names["weights"][1] == pytest.approx(float(weights()[13, 1]), abs=1e-5)


def test_vector_numbers_fit_their_columns(site: Site) -> None:
    """Small numbers have a short format, so that the table does not overflow; tooltips have full precision."""
    small = []
    for query, key in ((3, 1), (9, 8), (13, 12), (15, 14)):
        page = site.page(f"view=arithmetic&layer=0&head=0&query={query}&key={key}")
        page.wait_for_selector(".arithmetic-headline output")
        cells = displayed_numbers(page.locator(".vector td"))
        small += [(text, x) for text, x in cells if 0 < abs(x) < 0.01]
        assert page.evaluate("[...document.querySelectorAll('.vectors')].every((x) => x.scrollWidth <= x.clientWidth)")
    assert len(small) > 10
    for text, x in small:
        assert float(text.replace("−", "-")) == pytest.approx(x, rel=0.5), (text, x)


def test_a_masked_cell_has_weight_zero(site: Site) -> None:
    page = site.page(f"view=arithmetic&layer={LAYER}&head={HEAD}&query=3&key=9")
    page.wait_for_selector(".arithmetic-headline output")
    assert parse_number(page.locator(".arithmetic-headline output").text_content()) == 0
    assert page.get_by_text("masked: the weight is exactly 0").is_visible()


def test_a_text_that_is_too_long_shows_an_error(site: Site) -> None:
    page = site.page("view=overview")
    state = page.evaluate("fetch('api/state', {method: 'POST', body: '{}'}).then((r) => r.text())")
    assert '"tokens"' in state
    page.get_by_label("Text for the model").fill("word " * 40_000)
    page.get_by_role("button", name="Run").click()
    page.wait_for_selector(".alert:not([hidden])")
    message = page.locator(".alert").text_content()
    assert "must have at most" in message
    assert f"{len(language_model()[1].encode('word ' * 40_000)):,}" in message
    site.ignore_bad_requests()


def test_a_new_text_is_run_and_its_heads_are_filtered_by_kind(site: Site) -> None:
    page = site.page("view=overview")
    page.get_by_label("Text for the model").fill(TEXT)
    page.get_by_role("button", name="Run").click()
    page.wait_for_function("title => document.title === title", arg=f"{TEXT} · regard")
    recording, tokens = record_text(TEXT)
    page.locator(".session-summary", has_text=f"{len(tokens)} tokens").wait_for()
    assert page.locator("button.head-card").count() == sum(len(layer.head_indices) for layer in recording.layers) == 32
    page.wait_for_selector(".head-card .chip")
    expected = {(head.layer, head.head) for head in recording.find_heads("previous")}
    page.locator(".chip-group .chip[data-kind=previous]").click()
    assert set(displayed_heads(page)) == expected != set()


def test_a_link_runs_its_text_if_the_server_does_not_have_it(site: Site) -> None:
    page = site.page(
        f"view=map&layer={LAYER}&head={HEAD}&query=9&key=1&session=7&text=Call+me+what+you+like,+call+me+often"
    )
    page.locator(".session-summary", has_text="10 tokens").wait_for()
    page.locator(".readout output").wait_for()
    wait_until_idle(page)
    expected = weights("Call me what you like, call me often")
    assert is_close(page.locator(".readout output").text_content(), float(expected[9, 1]))


def test_a_new_text_does_not_replace_earlier_sessions(site: Site) -> None:
    page = site.page("view=map&session=0")
    page.get_by_label("Text for the model").fill("Something else")
    page.get_by_role("button", name="Run").click()
    page.locator(".session-summary", has_text="18 tokens").wait_for(state="detached")
    texts = {session["id"]: session["text"] for session in site.server.request("state").values["sessions"]}
    assert texts[0] == SENTENCE
    assert "Something else" in texts.values()
