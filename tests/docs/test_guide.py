"""The guide "Attention, step by step": its widgets compute the numbers of Python, offline, from the file system."""

import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import regard
from regard import mask, score
from regard.walkthrough.projection import project
from tests.chromium import needs_chromium, offline_page
from tests.docs import guide_page
from tools.docs.guide import page as guide
from tools.docs.guide.static_tables import TABLES
from tools.docs.guide.widget_data import page_masks

ROOT = Path(__file__).parents[2]
FRONTEND = ROOT / guide.FRONTEND
pytestmark = needs_chromium


@pytest.fixture(scope="module")
def guide_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return guide_page.build(tmp_path_factory.mktemp("guide"))


@pytest.fixture(scope="module")
def initial_page(browser: Any, guide_path: Path) -> Iterator[Any]:
    """A page that no test changes."""
    with offline_page(browser) as page:
        yield open_guide(page, guide_path)


@pytest.fixture(scope="module")
def shared_page(browser: Any) -> Iterator[Any]:
    with offline_page(browser) as page:
        yield page


@pytest.fixture
def page(shared_page: Any, guide_path: Path) -> Any:
    return open_guide(shared_page, guide_path)


def open_guide(page: Any, path: Path) -> Any:
    page.set_default_timeout(20_000)
    page.goto(f"file://{path}")
    page.wait_for_function("document.querySelectorAll('.guide-widget:not([data-ready])').length === 0")
    return page


def stage(page: Any, widget: str, name: str) -> np.ndarray:
    """Return the numbers of a card, at full precision."""
    rows = page.locator(f"[data-widget={widget}] .stage-card[data-stage='{name}'] tbody tr")
    return np.array(rows.evaluate_all("rows => rows.map(r => [...r.querySelectorAll('td')].map(c => Number(c.title)))"))


def values(page: Any, selector: str) -> np.ndarray:
    """Return the numbers of bars, cans or other elements, at full precision."""
    return np.array(page.locator(selector).evaluate_all("nodes => nodes.map(n => Number(n.dataset.value))"))


def row(page: Any, widget: str, name: str, index: int = 0) -> np.ndarray:
    """Return a row of numbers below the words of a sentence."""
    cells = page.locator(f"[data-widget={widget}] table.words").nth(index).locator(f"tr[data-row={name}] td")
    return np.array(cells.evaluate_all("cells => cells.map(c => Number(c.title))"))


def mixture(page: Any) -> np.ndarray:
    return np.array([float(x) for x in page.locator(".mixture output").get_attribute("data-value").split()])


def assert_shows(actual: np.ndarray, expected: Any) -> None:
    # the page and Python compute in float64, with sums in different orders
    np.testing.assert_allclose(actual, np.asarray(expected), rtol=1e-10, atol=1e-12)


def word_steps(x: Any = None, **options: Any) -> regard.walkthrough.steps.Steps:
    words = guide.data()["words"]
    inputs = (project(words["x"] if x is None else x, words[name]) for name in ("w_q", "w_k", "w_v"))
    return regard.steps(*inputs, **options)


def test_the_three_words_start_with_the_numbers_of_the_page(initial_page: Any) -> None:
    variables = guide.variables()
    for name, variable in {"Q": "Q", "weights": "A", "output": "O"}.items():
        assert_shows(stage(initial_page, "steps", name), variables[variable])
    assert_shows(stage(initial_page, "steps", "scaled"), variables["S"] / np.sqrt(2))


def test_masks_start_with_the_numbers_of_the_page(initial_page: Any) -> None:
    variables = guide.variables()
    for widget, masked in {"causal": "masked", "padding": "padded"}.items():
        assert_shows(stage(initial_page, widget, "masked"), variables[masked])
        assert_shows(stage(initial_page, widget, "weights"), variables["softmax"](variables[masked]))
    assert_shows(stage(initial_page, "causal", "output"), variables["causal_output"])


def test_the_scale_starts_with_the_numbers_of_the_page(initial_page: Any) -> None:
    variables = guide.variables()
    weights = variables["softmax"](variables["long_keys"] @ variables["long_query"] / 8)
    assert_shows(values(initial_page, "[aria-label=Weights] li"), weights)
    assert_shows(values(initial_page, "[aria-label=Saturation] li"), variables["saturation"](weights)[1:])
    assert initial_page.locator("[data-widget=scale] output").inner_text() == "0.125 = 1/√64"


def test_paint_starts_with_the_numbers_of_the_page(initial_page: Any) -> None:
    variables = guide.variables()
    assert_shows(values(initial_page, ".cans li"), variables["amounts"])
    assert_shows(mixture(initial_page), variables["amounts"] @ variables["paints"])


def test_trained_heads_start_with_the_weights_of_the_recording(initial_page: Any) -> None:
    variables = guide.variables()
    for widget, index, name in (("sentence", 0, "head"), ("heads", 0, "head"), ("heads", 1, "other_head")):
        recorded = variables["head_weights"][variables[name]]
        # the model runs in float32
        np.testing.assert_allclose(row(initial_page, widget, "weight", index), recorded[-1], rtol=1e-5, atol=1e-6)
    assert (
        "“mat” attends most to “cat”, with weight 0.77." in initial_page.locator("[data-widget=sentence]").inner_text()
    )


def test_the_model_shows_its_predictions_and_every_head(page: Any) -> None:
    variables = guide.variables()
    widget = page.locator("[data-widget=model]")
    shown = values(page, "[data-widget=model] .bar-list li")
    assert_shows(shown, [p for _, p in variables["most_likely"](3)])
    widget.get_by_role("button", name="mat", exact=True).click()
    assert "The cat sat on the mat" in widget.locator("figcaption").first.inner_text()
    assert_shows(values(page, "[data-widget=model] .bar-list li"), [p for _, p in variables["most_likely"](5)])
    widget.get_by_role("button", name="Layer 0, head 7").click()
    cells = widget.locator("table.matrix td").evaluate_all("cells => cells.map(c => Number(c.title))")
    recorded = variables["recording"][0].weights[0][7].double().numpy()
    np.testing.assert_allclose(np.reshape(cells, (6, 6)), recorded, atol=0.006)  # two digits are shown
    assert widget.locator(".head-button").count() == 32


def test_an_edited_number_of_x_gives_the_numbers_of_python(page: Any) -> None:
    page.get_by_label("X, row 3, column 1").fill("-1.5")
    x = np.array(guide.data()["words"]["x"])
    x[2, 0] = -1.5
    steps = word_steps(x)
    for name in ("Q", "scaled", "weights", "output"):
        assert_shows(stage(page, "steps", name), steps[name].values)


def test_an_edited_query_changes_its_row_only(page: Any) -> None:
    page.get_by_label("X, row 1, column 2").fill("0,25")  # a decimal comma
    page.get_by_role("button", name="Edit Q").click()
    page.get_by_label("Q, row 2, column 1").fill("3")
    x = np.array(guide.data()["words"]["x"])
    x[0, 1] = 0.25
    q, k, v = (word_steps(x)[name].values.clone() for name in "QKV")
    q[1, 0] = 3
    shown = stage(page, "steps", "weights")
    assert_shows(shown, regard.steps(q, k, v)["weights"].values)
    assert_shows(shown[[0, 2]], word_steps(x)["weights"].values[[0, 2]])
    page.locator("[data-widget=steps]").get_by_role("button", name="Reset").click()
    page.wait_for_selector("[data-widget=steps] [data-stage=Q]")
    assert_shows(stage(page, "steps", "weights"), guide.variables()["A"])


def test_an_invalid_number_is_marked_and_changes_nothing(page: Any) -> None:
    field = page.get_by_label("X, row 1, column 1")
    field.fill("two")
    assert field.get_attribute("aria-invalid") == "true"
    assert_shows(stage(page, "steps", "weights"), guide.variables()["A"])


def test_masks_are_switched(page: Any) -> None:
    widget = page.locator("[data-widget=causal]")
    widget.get_by_role("button", name="No mask").click()
    widget.locator("[data-stage=scaled]").wait_for()
    assert_shows(stage(page, "causal", "weights"), guide.variables()["A"])
    widget.get_by_role("button", name="Causal mask").press("Enter")
    widget.locator("[data-stage=masked]").wait_for()
    assert_shows(stage(page, "causal", "weights"), word_steps(mask=mask.causal())["weights"].values)
    assert "1.0000, 1.0000, 1.0000" in widget.get_by_role("status").inner_text()
    page.get_by_role("button", name="Causal and padding").click()
    expected = word_steps(mask=mask.causal() & mask.padding([2]))
    page.locator("[data-widget=padding] [data-stage=visible]").get_by_text("j < 2").wait_for()
    for name in ("masked", "weights", "output"):
        assert_shows(stage(page, "padding", name), expected[name].values)


def test_the_scale_is_set_with_the_keyboard(page: Any) -> None:
    variables = guide.variables()
    page.get_by_role("slider", name="Scale").press("End")
    steps = regard.steps(
        [variables["long_query"].tolist()],
        np.array(variables["long_keys"]).tolist(),
        [[0.0]] * 8,
        score=score.scaled_dot(2.0),
    )
    weights = steps["weights"].values[0]
    assert_shows(values(page, "[aria-label=Weights] li"), weights)
    derivatives = torch.autograd.functional.jacobian(lambda s: s.softmax(-1), steps["scaled"].values[0])
    assert_shows(values(page, "[aria-label=Saturation] li"), [-(weights * weights.log()).sum(), derivatives.norm()])


def test_the_query_of_the_paints_is_dragged_and_set_with_the_keyboard(page: Any) -> None:
    wheel = page.locator(".wheel")
    wheel.scroll_into_view_if_needed()
    box = wheel.bounding_box()
    assert box is not None
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x + 20, y)
    page.mouse.down()
    page.mouse.move(x - 40, y - 40)
    page.mouse.up()
    page.mouse.move(x, y + 40)  # without a pressed button: the query stays
    assert page.get_by_label("Direction").input_value() == "135"
    length = float(page.get_by_label("Length").input_value())
    amounts = expected_amounts(135, length)
    assert amounts.argmax() == guide.data()["paint"]["cans"].index("green")
    assert_shows(values(page, ".cans li"), amounts)
    page.get_by_label("Direction").press("ArrowRight")
    page.get_by_label("Length").press("Home")
    assert_shows(values(page, ".cans li"), expected_amounts(136, 0))
    assert_shows(mixture(page), guide.variables()["paints"].mean(axis=0))


def expected_amounts(angle: float, length: float) -> np.ndarray:
    variables = guide.variables()
    query = length * np.array([np.cos(np.deg2rad(angle)), np.sin(np.deg2rad(angle))])
    output = regard.attention_with_weights(query[None], variables["labels"], variables["paints"].astype(float))
    return np.asarray(output.weights[0])


def test_swapped_paints_change_the_mixture_but_not_the_amounts(page: Any) -> None:
    variables = guide.variables()
    paints = variables["paints"][[0, 3, 2, 1, 4, 5]]
    page.get_by_label("Swap the paints").check()
    assert_shows(values(page, ".cans li"), variables["amounts"])
    assert_shows(mixture(page), variables["amounts"] @ paints)
    color = page.locator(".swatch").evaluate("node => getComputedStyle(node).backgroundColor")
    assert [int(n) for n in re.findall(r"\d+", color)] == [round(x) for x in variables["amounts"] @ paints]


def test_words_are_selected_by_keyboard_and_pointer(page: Any) -> None:
    variables = guide.variables()
    recorded = variables["head_weights"][variables["head"]]
    words = page.locator("[data-widget=sentence] button.word")
    words.nth(2).focus()
    page.keyboard.press("Tab")  # to "on"
    np.testing.assert_allclose(row(page, "sentence", "weight"), recorded[3], rtol=1e-5, atol=1e-6)
    assert row(page, "sentence", "score")[4] == -np.inf
    assert words.nth(3).get_attribute("aria-pressed") == "true"
    words.nth(1).hover()
    np.testing.assert_allclose(row(page, "sentence", "weight"), recorded[1], rtol=1e-5, atol=1e-6)
    page.locator("[data-widget=heads] button.word").nth(8).click()  # "sat" in the second table selects it in both
    for index, name in enumerate(("head", "other_head")):
        expected = variables["head_weights"][variables[name]][2]
        np.testing.assert_allclose(row(page, "heads", "weight", index), expected, rtol=1e-5, atol=1e-6)


def test_the_page_reads_without_javascript(browser: Any, guide_path: Path) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"file://{guide_path}")
    text = page.locator("[data-widget=causal]").inner_text()
    assert "−∞" in text and "0.6175" in text and "0.8088" in text
    assert "Try it" not in text
    assert page.locator("[data-widget=model] table").count() == 6
    context.close()


def test_the_page_fits_a_phone_in_dark_colors_without_motion(browser: Any, guide_path: Path) -> None:
    context = browser.new_context(viewport={"width": 400, "height": 800}, reduced_motion="reduce", has_touch=True)
    page = open_guide(context.new_page(), guide_path)
    page.evaluate("document.body.dataset.mdColorScheme = 'slate'")
    page.wait_for_selector(".guide-widget[data-theme=dark]")
    assert page.evaluate("document.documentElement.scrollWidth") == 400
    wide = "nodes => nodes.filter(n => n.scrollWidth > n.clientWidth + 1).map(n => n.dataset.widget)"
    assert page.locator(".guide-widget").evaluate_all(wide) == []
    assert page.locator(".bar-fill").first.evaluate("node => getComputedStyle(node).transitionDuration") == "0s"
    page.locator("[data-widget=sentence] button.word").nth(3).tap()
    assert page.locator("[data-widget=sentence] button.word").nth(3).get_attribute("aria-pressed") == "true"
    context.close()


def test_every_control_has_a_name(initial_page: Any) -> None:
    controls = initial_page.locator(".guide-widget :is(button, input)")
    names = controls.evaluate_all(
        "nodes => nodes.map(n => n.getAttribute('aria-label') ?? n.labels?.[0]?.textContent ?? n.textContent)"
    )
    assert len(names) > 50
    assert [name for name in names if not name.strip()] == []


def test_every_widget_is_on_the_page() -> None:
    names = [match["name"] for match in guide.WIDGET.finditer(guide.SOURCE.read_text(encoding="utf8"))]
    script = (FRONTEND / "main.js").read_text(encoding="utf8")
    listed = re.findall(r"^  (\w+):", script[script.index("const WIDGETS") : script.index("};")], re.MULTILINE)
    assert sorted(names) == sorted(listed) == sorted(TABLES)


def test_the_padding_of_the_widget_is_that_of_the_page() -> None:
    assert torch.equal(page_masks()["padding"].to_dense(3, 3), mask.padding([2]).to_dense(3, 3))


def test_pictures_are_those_that_their_script_draws(tmp_path: Path) -> None:
    runpy.run_path(str(guide.SOURCE.parent / "make.py"))["main"](tmp_path)
    drawn = {path.name: path.read_text(encoding="utf8") for path in tmp_path.glob("*.svg")}
    assert drawn == {path.name: path.read_text(encoding="utf8") for path in guide.SOURCE.parent.glob("*.svg")}


def test_modules_without_the_dom_have_unit_tests() -> None:
    pure = [path.stem for path in FRONTEND.glob("*.js") if not re.search(r"element\.js|document", path.read_text())]
    assert sorted(pure) == sorted(
        path.name.removesuffix(".test.js") for path in Path(__file__).parent.glob("guide/*.js")
    )
