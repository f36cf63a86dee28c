"""A newcomer's way through the page: type a sentence, open a head, point at a cell, follow its arithmetic."""

from typing import Any

import pytest
import torch

from regard.models.shipped import language_model
from tests.explorer.browser import (
    HEAD,
    LAYER,
    SENTENCE,
    Site,
    at,
    near,
    needs_chromium,
    number,
    recorded,
    settled,
    weights,
)

pytestmark = needs_chromium
TYPED = "Call me Ishmael. Call me what you like"


def test_heads_are_sorted_by_any_measure(site: Site) -> None:
    page = site.page("view=overview")
    page.wait_for_selector(".card .chip")
    page.get_by_label("Measure").select_option("confidence")
    page.get_by_role("button", name="Largest first").click()
    order = [row["layer"] * 8 + row["head"] for row in recorded()[0].heads().sort("confidence")]
    cards = page.locator("button.card").all()
    shown = [int(c.get_attribute("data-layer")) * 8 + int(c.get_attribute("data-head")) for c in cards]
    values = recorded()[0].heads().column("confidence")
    assert [round(values[place], 4) for place in shown] == [round(values[place], 4) for place in order]
    assert page.locator(".card .value").first.text_content() == f"{max(values):.2f}"


def test_a_click_opens_a_head_and_a_cell_shows_its_exact_weight_and_its_arithmetic(site: Site) -> None:
    page = site.page("view=overview")
    page.locator(f"button.card[data-layer='{LAYER}'][data-head='{HEAD}']").click()
    right = weights()
    page.mouse.move(*at(page, 16, 5))
    settled(page)
    assert near(page.locator(".readout output").text_content(), float(right[16, 5]))
    assert "white" in page.locator(".readout .of-query").text_content()
    assert "whale" in page.locator(".readout .of-key").text_content()
    page.mouse.click(*at(page, 16, 5))
    page.get_by_role("button", name="Show the arithmetic").click()
    page.wait_for_selector(".headline output")
    assert near(page.locator(".headline output").text_content(), float(right[16, 5]))


def test_the_text_beside_the_map_is_shaded_by_the_row_under_the_cursor(site: Site) -> None:
    page = site.page(f"view=map&layer={LAYER}&head={HEAD}")
    page.mouse.move(*at(page, 15, 4))
    item = page.locator(".beside li").first
    item.wait_for()
    best = int(weights()[15].argmax())
    assert int(item.get_attribute("data-token")) == best
    assert float(item.get_attribute("data-value")) == pytest.approx(float(weights()[15, best]), abs=1e-5)
    shades = page.eval_on_selector_all(".beside .token", "all => all.map((token) => token.style.backgroundColor)")
    assert shades[best]
    assert not shades[9]
    assert page.locator(".beside .token[data-state=query]").text_content().strip() == "the"


def test_the_main_path_needs_no_mouse_and_is_spoken(site: Site) -> None:
    page = site.page(f"view=overview&layer={LAYER}&head={HEAD}")
    page.wait_for_selector(".card .chip")
    page.locator(f"button.card[data-layer='{LAYER}'][data-head='{HEAD}']").focus()
    assert "induction" in page.evaluate("document.activeElement.getAttribute('aria-label')")
    page.keyboard.press("Enter")
    page.wait_for_selector("canvas.map[data-frame]")
    settled(page)
    page.locator("canvas.map").focus()
    for key in ["ArrowDown"] * 13 + ["ArrowRight"] * 2:
        page.keyboard.press(key)
    settled(page)
    spoken = page.locator("[aria-live]").text_content()
    assert "“captain”, token 13, looks at “saw”, token 2" in spoken
    assert near(spoken.rstrip(".").split()[-1], float(weights()[13, 2]))
    page.keyboard.press("Enter")
    page.wait_for_selector(".headline output")
    assert near(page.locator(".headline output").text_content(), float(weights()[13, 2]))


def test_the_arithmetic_multiplies_out_and_its_code_gives_the_weight(site: Site) -> None:
    page = site.page(f"view=arithmetic&layer={LAYER}&head={HEAD}&query=13&key=1")
    page.wait_for_selector(".headline output")

    def figure(name: str) -> float:
        return float(page.locator(f".fig[data-name={name}]").first.get_attribute("data-value"))

    take = recorded()[0].find_layer(LAYER).take
    q, k, v = (x[0, HEAD].double() for x in (take.q, take.k, take.v))
    scores = q[13] @ k[:14].mT / q.shape[-1] ** 0.5
    assert figure("dot") == pytest.approx(float(q[13] @ k[1]), rel=1e-5)
    assert figure("scaled") == pytest.approx(float(scores[1]), rel=1e-5)
    assert figure("maximum") == pytest.approx(float(scores.max()), rel=1e-5)
    assert figure("total") == pytest.approx(float((scores - scores.max()).exp().sum()), rel=1e-5)
    assert figure("power") / figure("total") == pytest.approx(float(weights()[13, 1]), abs=1e-6)
    cells = page.locator(".vector tbody tr:nth-child(3) td").all()
    products = [float(cell.get_attribute("title")) for cell in cells]
    assert sum(products[: q.shape[1]]) == pytest.approx(figure("dot"), rel=1e-6)
    output = [float(cell.get_attribute("title")) for cell in page.locator("li").last.locator("td").all()]
    assert output == pytest.approx((scores.softmax(0) @ v[:14]).tolist(), rel=1e-4, abs=1e-5)
    names: dict[str, Any] = {"tape": recorded()[0], "torch": torch}
    exec(page.locator("pre.code").text_content(), names)
    assert names["weights"][1] == pytest.approx(float(weights()[13, 1]), abs=1e-5)


def test_numbers_of_vectors_fit_their_columns(site: Site) -> None:
    """Small ones are written short, so that no column is pushed off the page; what they are is in their titles."""
    small = []
    for query, key in ((3, 1), (9, 8), (13, 12), (15, 14)):
        page = site.page(f"view=arithmetic&layer=0&head=0&query={query}&key={key}")
        page.wait_for_selector(".headline output")
        cells = [(c.text_content(), float(c.get_attribute("title"))) for c in page.locator(".vector td").all()]
        small += [(text, x) for text, x in cells if 0 < abs(x) < 0.01]
        assert page.evaluate("[...document.querySelectorAll('.vectors')].every((x) => x.scrollWidth <= x.clientWidth)")
    assert len(small) > 10
    for text, x in small:
        assert float(text.replace("−", "-")) == pytest.approx(x, rel=0.5), (text, x)


def test_a_cell_that_is_hidden_says_so(site: Site) -> None:
    page = site.page(f"view=arithmetic&layer={LAYER}&head={HEAD}&query=3&key=9")
    page.wait_for_selector(".headline output")
    assert number(page.locator(".headline output").text_content()) == 0
    assert page.get_by_text("no: the weight is exactly 0").is_visible()


def test_what_cannot_be_read_is_refused_in_a_sentence(site: Site) -> None:
    page = site.page("view=overview")
    limit = page.evaluate("fetch('ask/state', {method: 'POST', body: '{}'}).then((r) => r.text())")
    assert '"tokens"' in limit
    page.get_by_label("Text for the model to read").fill("word " * 40_000)
    page.get_by_role("button", name="Look").click()
    page.wait_for_selector(".alert:not([hidden])")
    said = page.locator(".alert").text_content()
    assert "must have at most" in said
    assert f"{len(language_model()[1].encode('word ' * 40_000)):,}" in said
    site.errors[:] = [error for error in site.errors if "400" not in error]  # the browser tells of the refusal as well


def test_a_sentence_that_is_typed_is_read_and_shown_as_named_heads(site: Site) -> None:
    page = site.page("view=overview")
    page.get_by_label("Text for the model to read").fill(TYPED)
    page.get_by_role("button", name="Look").click()
    tape, tokens = recorded(TYPED)
    page.locator(".about", has_text=f"{len(tokens)} tokens").wait_for()
    assert page.locator("button.card").count() == sum(len(layer.heads) for layer in tape.layers) == 32
    page.wait_for_selector(".card .chip")
    right = {(found.layer, found.head) for found in tape.find("previous")}
    page.locator(".filter .chip[data-kind=previous]").click()
    cards = page.locator("button.card").all()
    assert {(int(c.get_attribute("data-layer")), int(c.get_attribute("data-head"))) for c in cards} == right != set()


def test_a_link_runs_its_text_again_where_it_is_not_there(site: Site) -> None:
    page = site.page(
        f"view=map&layer={LAYER}&head={HEAD}&query=9&key=1&shown=7&text=Call+me+what+you+like,+call+me+often"
    )
    page.locator(".about", has_text="10 tokens").wait_for()
    page.locator(".readout output").wait_for()
    settled(page)
    right = weights("Call me what you like, call me often")
    assert near(page.locator(".readout output").text_content(), float(right[9, 1]))


def test_two_pages_do_not_change_what_the_other_shows(site: Site) -> None:
    page = site.page("view=map&shown=0")
    page.get_by_label("Text for the model to read").fill("Something else")
    page.get_by_role("button", name="Look").click()
    page.locator(".about", has_text="18 tokens").wait_for(state="detached")
    texts = {shown["id"]: shown["text"] for shown in site.server.ask("state").values["shown"]}
    assert texts[0] == SENTENCE
    assert "Something else" in texts.values()
