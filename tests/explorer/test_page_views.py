"""The Steps, Cost, Generate and Compare views agree with the library."""

from typing import Any

import pytest
import torch

import regard
from regard import normalizer
from tests.chromium import needs_chromium
from tests.explorer.browser import (
    HEAD,
    LAYER,
    SENTENCE,
    Site,
    cell_center,
    parse_number,
    record_text,
    stage_values,
    wait_until_idle,
    weights,
)

pytestmark = needs_chromium
OTHER = SENTENCE.replace("white", "black")


@pytest.mark.parametrize(
    "title, first_weights, first_output",
    [
        ("Three words", [0.448328, 0.171983, 0.379690], [1.274714, 2.363713]),
        ("Three tokens", [0.391114, 0.296221, 0.312664], [0.799977, 0.869070]),
    ],
)
def test_walkthrough_examples_have_the_correct_numbers(
    site: Site, title: str, first_weights: list[float], first_output: list[float]
) -> None:
    page = site.page("view=steps")
    page.get_by_role("button", name=title).click()
    page.locator(".stage-card[data-stage=output]").wait_for()
    wait_until_idle(page)
    assert stage_values(page, "weights")[0] == pytest.approx(first_weights, abs=1e-6)
    assert stage_values(page, "output")[0] == pytest.approx(first_output, abs=1e-6)
    assert page.locator(".note").get_by_text("often printed with wrong numbers").is_visible()


def test_an_edited_number_updates_all_stages(site: Site) -> None:
    page = site.page("view=steps")
    page.get_by_role("button", name="Custom Q, K, V").click()
    page.locator(".stage-card[data-stage=output]").wait_for()
    page.get_by_label("Q, row 1, column 2").fill("3")
    page.wait_for_timeout(300)
    wait_until_idle(page)
    q, k = torch.tensor([[1.0, 3], [0, 1], [1, 1]]), torch.tensor([[1.0, 0], [0, 1], [1, -1]])
    v = torch.tensor([[1.0, 0], [0, 1], [2, 2]])
    expected = regard.attention_with_weights(q, k, v, backend="reference")
    assert torch.tensor(stage_values(page, "weights")) == pytest.approx(
        expected.weights.to_dense().view(3, 3), abs=1e-6
    )
    assert torch.tensor(stage_values(page, "output")) == pytest.approx(expected.output, abs=1e-6)


def test_a_matrix_can_be_pasted(site: Site) -> None:
    page = site.page("view=steps")
    page.get_by_role("button", name="Custom Q, K, V").click()
    page.get_by_label("Q, row 1, column 1").focus()
    page.evaluate(
        """() => {
          const data = new DataTransfer();
          data.setData("text", "2 0.5; -1 4; 0, 0");
          document.activeElement.dispatchEvent(new ClipboardEvent("paste", { clipboardData: data, bubbles: true }));
        }"""
    )
    page.wait_for_timeout(300)
    wait_until_idle(page)
    k = torch.tensor([[1.0, 0], [0, 1], [1, -1]])
    assert stage_values(page, "products")[1] == pytest.approx((torch.tensor([-1.0, 4]) @ k.mT).tolist())


def test_mask_normalizer_and_temperature_agree_with_the_library(site: Site) -> None:
    page = site.page("view=steps")
    page.get_by_role("button", name="Three tokens").click()
    page.get_by_label("Mask").select_option("causal")
    page.get_by_label("Normalizer").select_option("sparsemax")
    page.get_by_label("Temperature").fill("-0.5")
    page.wait_for_timeout(400)
    wait_until_idle(page)
    q = torch.tensor([[1.18, 0.78], [0.62, 0.59], [0.66, 0.71]])
    k = torch.tensor([[0.83, 0.71], [0.53, 0.66], [0.76, 0.41]])
    v = torch.tensor([[1.02, 1.07], [0.52, 0.93], [0.79, 0.56]])
    temperature = 0.316  # the slider rounds to three digits
    expected = regard.attention_with_weights(
        q / temperature, k, v, mask=regard.mask.causal(), normalizer=normalizer.sparsemax(), backend="reference"
    )
    assert torch.tensor(stage_values(page, "weights")) == pytest.approx(
        expected.weights.to_dense().view(3, 3), abs=1e-5
    )
    assert page.locator(".stage-card[data-stage=visible] td.is-false").count() == 3


def test_mismatched_shapes_show_an_error(site: Site) -> None:
    page = site.page("view=steps")
    page.get_by_role("button", name="Custom Q, K, V").click()
    page.locator(".matrix-input").nth(1).hover()
    page.get_by_label("K: add a column").click()
    page.locator(".error-text").wait_for()
    assert "2" in page.locator(".error-text").text_content()
    assert "3" in page.locator(".error-text").text_content()
    site.ignore_bad_requests()


def test_crossovers_agree_with_the_formulas(site: Site) -> None:
    page = site.page("view=cost")
    page.locator(".crossover-list li").first.wait_for()
    lengths = [float(item.get_attribute("data-length")) for item in page.locator(".crossover-list li").all()]
    assert 6 * 768 in lengths  # attention costs as much as the rest of a layer without gating at 6 D
    assert 12 * 768 in lengths  # causal attention, with half of the pairs, at 12 D
    page.get_by_label("Heads").fill("8")  # first: 12 heads do not divide 512
    page.get_by_label("Embedding dimension").fill("512")
    page.get_by_label("Feed-forward").fill("2048")
    page.locator(".crossover-list li[data-length='3072']").first.wait_for()
    names = {curve.get_attribute("data-curve") for curve in page.locator(".curve").all()}
    assert {"softmax", "causal", "linear", "non_attention"} <= names
    page.locator(".head-chip[data-name=Performer]").click()
    page.locator(".curve[data-curve=Performer]").wait_for(state="attached")
    page.get_by_role("button", name="Memory").click()
    assert page.locator(".curve[data-curve=non_attention]").count() == 0


def test_times_are_measured_on_this_machine(site: Site) -> None:
    page = site.page("view=cost")
    page.locator(".crossover-list li").first.wait_for()
    for name in ("dense softmax", "softmax", "causal", "sliding window of 256"):
        page.locator(f".head-chip[data-name='{name}']").click()
        wait_until_idle(page)
    page.get_by_role("button", name="Measure on this machine").click()
    page.locator(".curve[data-curve=linear] circle").nth(4).wait_for(state="attached", timeout=60_000)
    heights = [float(dot.get_attribute("cy")) for dot in page.locator(".curve[data-curve=linear] circle").all()]
    assert heights[4] < heights[0]  # more tokens take more time; smaller cy is higher


def generate(page: Any, max_new_tokens: int) -> None:
    page.get_by_label("New tokens").fill(str(max_new_tokens))
    page.locator(".generate-view").get_by_role("button", name="Generate").click()


def test_each_generated_token_shows_the_row_that_predicted_it(site: Site) -> None:
    page = site.page(f"view=generate&layer={LAYER}&head={HEAD}")
    generate(page, 6)
    page.locator(".playback-bar input").wait_for()
    length = len(record_text()[1])
    page.get_by_label("Step", exact=True).fill(str(length + 3))
    page.locator(".selection-title", has_text=f"token {length + 3}").wait_for()
    wait_until_idle(page)
    text = " ".join(line.text_content() for line in page.locator(".token-flow-line").all())
    full_text = SENTENCE + " and the boats went down."
    assert text.replace(" .", ".").split() == full_text.split()
    row = weights(full_text)[length + 2]
    for item in page.locator(".bar-list[data-list='attends to'] li").all():
        key = int(item.get_attribute("data-token"))
        assert float(item.get_attribute("data-value")) == pytest.approx(float(row[key]), abs=1e-4)
    assert 0 < float(page.locator(".sidebar b").get_attribute("data-value")) <= 1
    page.get_by_role("button", name="Play").click()
    page.locator(".selection-title", has_text=f"token {length + 4}").wait_for()
    generate(page, 2)  # during playback
    page.locator(".probability-step").nth(2).wait_for(state="detached")
    page.get_by_role("button", name="Play").click()
    page.get_by_role("button", name="Pause").wait_for()


def test_probability_bars_have_the_right_height_and_open_their_step(site: Site) -> None:
    page = site.page(f"view=generate&layer={LAYER}&head={HEAD}")
    generate(page, 4)
    page.locator(".probability-step").nth(3).wait_for()
    length = len(record_text()[1])
    for n, bar in enumerate(page.locator(".probability-step").all()):
        bar.click()
        page.locator(".selection-title", has_text=f"token {length + n}").wait_for()
        probability = float(page.locator(".sidebar b").get_attribute("data-value"))
        height = bar.locator(".probability-bar").evaluate("(bar) => bar.offsetHeight / bar.parentElement.offsetHeight")
        assert height == pytest.approx(probability, abs=0.03)  # a pixel is 1/60 of the bar
        assert bar.get_attribute("aria-current") == "true"


def test_two_texts_are_compared_with_a_shared_cursor(site: Site) -> None:
    page = site.page(f"view=compare&layer={LAYER}&head={HEAD}")
    page.get_by_label("Another text").fill(OTHER)
    page.get_by_role("button", name="Compare", exact=True).click()
    page.locator(".comparison-panel[data-panel=difference] canvas[data-frame]").wait_for()
    wait_until_idle(page)
    page.mouse.move(*cell_center(page, 16, 5))
    wait_until_idle(page)
    values = {
        name: float(page.locator(f"[data-panel-value={name}]").get_attribute("data-value"))
        for name in ("first", "second", "difference")
    }
    first, second = float(weights()[16, 5]), float(weights(OTHER)[16, 5])
    assert values["first"] == pytest.approx(first, abs=1e-5)
    assert values["second"] == pytest.approx(second, abs=1e-5)
    assert values["difference"] == pytest.approx(first - second, abs=1e-5)
    changed = record_text()[0].compare(record_text(OTHER)[0]).head_differences[0]
    row = page.locator(".changed-heads tbody tr").first
    assert row.locator("button").text_content() == f"{changed['layer']}.{changed['head']}"
    assert parse_number(row.locator("td").nth(1).text_content()) == pytest.approx(changed["total_variation"], abs=1e-3)


def test_texts_of_different_lengths_are_compared_by_relative_position(site: Site) -> None:
    page = site.page(f"view=compare&layer={LAYER}&head={HEAD}")
    page.get_by_label("Another text").fill("The captain saw the whale")
    page.get_by_role("button", name="Compare", exact=True).click()
    page.get_by_text("by relative position").wait_for()
    page.locator(".comparison-panel[data-panel=difference] canvas[data-frame]").wait_for()
    wait_until_idle(page)
    assert page.locator(".compare-view .boxed").text_content() != ""
