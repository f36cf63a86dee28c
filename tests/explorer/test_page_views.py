"""Steps, cost, generation and comparison in the page, against the library."""

import pytest
import torch

import regard
from regard import weigh
from tests.explorer.browser import (
    HEAD,
    LAYER,
    SENTENCE,
    Site,
    at,
    needs_chromium,
    number,
    recorded,
    settled,
    stage,
    weights,
)

pytestmark = needs_chromium
OTHER = SENTENCE.replace("white", "black")


@pytest.mark.parametrize(
    "title, weights_of_the_first, output_of_the_first",
    [
        ("Three words", [0.448328, 0.171983, 0.379690], [1.274714, 2.363713]),
        ("Three tokens", [0.391114, 0.296221, 0.312664], [0.799977, 0.869070]),
    ],
)
def test_both_worked_examples_come_out_right(
    site: Site, title: str, weights_of_the_first: list[float], output_of_the_first: list[float]
) -> None:
    page = site.page("view=steps")
    page.get_by_role("button", name=title).click()
    page.locator(".stage-card[data-stage=output]").wait_for()
    settled(page)
    assert stage(page, "weights")[0] == pytest.approx(weights_of_the_first, abs=1e-6)
    assert stage(page, "output")[0] == pytest.approx(output_of_the_first, abs=1e-6)
    assert page.locator(".note").get_by_text("often printed with wrong numbers").is_visible()


def test_a_number_that_is_typed_changes_everything_after_it(site: Site) -> None:
    page = site.page("view=steps")
    page.get_by_role("button", name="Q, K, V of my own").click()
    page.locator(".stage-card[data-stage=output]").wait_for()
    page.get_by_label("Q, row 1, column 2").fill("3")
    page.wait_for_timeout(300)
    settled(page)
    q, k = torch.tensor([[1.0, 3], [0, 1], [1, 1]]), torch.tensor([[1.0, 0], [0, 1], [1, -1]])
    v = torch.tensor([[1.0, 0], [0, 1], [2, 2]])
    right = regard.attend(q, k, v, engine="reference")
    assert torch.tensor(stage(page, "weights")) == pytest.approx(right.weights.dense().view(3, 3), abs=1e-6)
    assert torch.tensor(stage(page, "output")) == pytest.approx(right.output, abs=1e-6)


def test_a_matrix_can_be_pasted(site: Site) -> None:
    page = site.page("view=steps")
    page.get_by_role("button", name="Q, K, V of my own").click()
    page.get_by_label("Q, row 1, column 1").focus()
    page.evaluate(
        """() => {
          const data = new DataTransfer();
          data.setData("text", "2 0.5; -1 4; 0, 0");
          document.activeElement.dispatchEvent(new ClipboardEvent("paste", { clipboardData: data, bubbles: true }));
        }"""
    )
    page.wait_for_timeout(300)
    settled(page)
    k = torch.tensor([[1.0, 0], [0, 1], [1, -1]])
    assert stage(page, "products")[1] == pytest.approx((torch.tensor([-1.0, 4]) @ k.mT).tolist())


def test_masks_normalisers_and_temperature_are_those_of_the_library(site: Site) -> None:
    page = site.page("view=steps")
    page.get_by_role("button", name="Three tokens").click()
    page.get_by_label("Mask").select_option("causal")
    page.get_by_label("Normaliser").select_option("sparsemax")
    page.get_by_label("Temperature").fill("-0.5")
    page.wait_for_timeout(400)
    settled(page)
    q = torch.tensor([[1.18, 0.78], [0.62, 0.59], [0.66, 0.71]])
    k = torch.tensor([[0.83, 0.71], [0.53, 0.66], [0.76, 0.41]])
    v = torch.tensor([[1.02, 1.07], [0.52, 0.93], [0.79, 0.56]])
    hotter = q / 0.316  # the slider gives three digits
    right = regard.attend(hotter, k, v, mask=regard.mask.causal(), weigh=weigh.sparsemax(), engine="reference")
    assert torch.tensor(stage(page, "weights")) == pytest.approx(right.weights.dense().view(3, 3), abs=1e-5)
    assert page.locator(".stage-card[data-stage=seen] td.no").count() == 3


def test_what_does_not_fit_is_refused_in_a_sentence(site: Site) -> None:
    page = site.page("view=steps")
    page.get_by_role("button", name="Q, K, V of my own").click()
    page.locator(".matrix-input").nth(1).hover()
    page.get_by_label("K: one column more").click()
    page.locator(".refused").wait_for()
    assert "2" in page.locator(".refused").text_content()
    assert "3" in page.locator(".refused").text_content()
    site.errors[:] = [error for error in site.errors if "400" not in error]


def test_cost_curves_cross_where_the_formulas_do(site: Site) -> None:
    page = site.page("view=cost")
    page.locator(".crossings li").first.wait_for()
    lengths = [float(item.get_attribute("data-length")) for item in page.locator(".crossings li").all()]
    assert 6 * 768 in lengths  # plain feed-forward: attention costs as much as the rest at 6 D
    assert 12 * 768 in lengths  # half of the pairs: at 12 D
    page.get_by_label("Width").fill("512")
    page.get_by_label("Heads").fill("8")
    page.get_by_label("Feed-forward").fill("2048")
    page.locator(".crossings li[data-length='3072']").first.wait_for()
    names = {curve.get_attribute("data-curve") for curve in page.locator(".curve").all()}
    assert {"softmax", "causal", "linear", "rest"} <= names
    page.locator(".head-chip[data-name=Performer]").click()
    page.locator(".curve[data-curve=Performer]").wait_for(state="attached")
    page.get_by_role("button", name="Memory").click()
    assert page.locator(".curve[data-curve=rest]").count() == 0


def test_time_is_measured_on_this_machine(site: Site) -> None:
    page = site.page("view=cost")
    page.locator(".crossings li").first.wait_for()
    for name in ("all weights kept", "softmax", "causal", "window of 256"):
        page.locator(f".head-chip[data-name='{name}']").click()
        settled(page)
    page.get_by_role("button", name="Measure on this machine").click()
    page.locator(".curve[data-curve=linear] circle").nth(4).wait_for(state="attached", timeout=60_000)
    heights = [float(dot.get_attribute("cy")) for dot in page.locator(".curve[data-curve=linear] circle").all()]
    assert heights[4] < heights[0]  # more tokens, more time: higher on the chart


def test_the_model_continues_and_each_step_shows_the_row_it_was_chosen_by(site: Site) -> None:
    page = site.page(f"view=generate&layer={LAYER}&head={HEAD}")
    page.get_by_label("Tokens").fill("6")
    page.get_by_role("button", name="Continue").click()
    page.locator(".scrub input").wait_for()
    length = len(recorded()[1])
    page.get_by_label("Step", exact=True).fill(str(length + 3))
    page.locator(".subject", has_text=f"token {length + 3}").wait_for()
    settled(page)
    text = " ".join(line.text_content() for line in page.locator(".flow-line").all())
    whole = SENTENCE + " and the boats went down."
    assert text.replace(" .", ".").split() == whole.split()
    row = weights(whole)[length + 2]
    for item in page.locator(".looks[data-list='looks at'] li").all():
        place = int(item.get_attribute("data-token"))
        assert float(item.get_attribute("data-value")) == pytest.approx(float(row[place]), abs=1e-4)
    assert 0 < float(page.locator(".side b").get_attribute("data-value")) <= 1
    page.get_by_role("button", name="Play").click()
    page.locator(".subject", has_text=f"token {length + 4}").wait_for()
    page.get_by_label("Tokens").fill("2")
    page.get_by_role("button", name="Continue").click()  # while it plays
    page.locator(".sure").nth(2).wait_for(state="detached")
    page.get_by_role("button", name="Play").click()
    page.get_by_role("button", name="Pause").wait_for()


def test_a_strip_shows_how_sure_the_model_was_and_leads_to_each_step(site: Site) -> None:
    page = site.page(f"view=generate&layer={LAYER}&head={HEAD}")
    page.get_by_label("Tokens").fill("4")
    page.get_by_role("button", name="Continue").click()
    page.locator(".sure").nth(3).wait_for()
    length = len(recorded()[1])
    for n, bar in enumerate(page.locator(".sure").all()):
        bar.click()
        page.locator(".subject", has_text=f"token {length + n}").wait_for()
        probability = float(page.locator(".side b").get_attribute("data-value"))
        share = bar.locator(".sure-bar").evaluate("(bar) => bar.offsetHeight / bar.parentElement.offsetHeight")
        assert share == pytest.approx(probability, abs=0.03)  # pixels of some sixty
        assert bar.get_attribute("aria-current") == "true"


def test_two_prompts_are_compared_with_one_cursor_and_their_difference(site: Site) -> None:
    page = site.page(f"view=compare&layer={LAYER}&head={HEAD}")
    page.get_by_label("Another text").fill(OTHER)
    page.get_by_role("button", name="Compare", exact=True).click()
    page.locator(".panel[data-panel=difference] canvas[data-frame]").wait_for()
    settled(page)
    page.mouse.move(*at(page, 16, 5))
    settled(page)
    shown = {
        name: float(page.locator(f"[data-of={name}]").get_attribute("data-value"))
        for name in ("one", "other", "difference")
    }
    one, other = float(weights()[16, 5]), float(weights(OTHER)[16, 5])
    assert shown["one"] == pytest.approx(one, abs=1e-5)
    assert shown["other"] == pytest.approx(other, abs=1e-5)
    assert shown["difference"] == pytest.approx(one - other, abs=1e-5)
    changed = recorded()[0].compare(recorded(OTHER)[0]).heads[0]
    first = page.locator(".changed tbody tr").first
    assert first.locator("button").text_content() == f"{changed['layer']}.{changed['head']}"
    assert number(first.locator("td").nth(1).text_content()) == pytest.approx(changed["changed"], abs=1e-3)


def test_texts_of_different_lengths_are_compared_by_shares(site: Site) -> None:
    page = site.page(f"view=compare&layer={LAYER}&head={HEAD}")
    page.get_by_label("Another text").fill("The captain saw the whale")
    page.get_by_role("button", name="Compare", exact=True).click()
    page.get_by_text("as shares of their lengths").wait_for()
    page.locator(".panel[data-panel=difference] canvas[data-frame]").wait_for()
    settled(page)
    assert page.locator(".compare-view .boxed").text_content() != ""
