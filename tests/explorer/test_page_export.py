"""What is taken along: the page as a file that needs neither server nor network, the map as a picture."""

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch

import regard
from regard import weigh
from regard.explorer.packing import plain
from regard.explorer.questions import ask
from regard.worked.examples import example
from tests.explorer.browser import HEAD, LAYER, Site, at, near, needs_chromium, saved, settled, stage, weights
from tests.explorer.recordings import explorer

pytestmark = needs_chromium
CELL = """async ([answers, params]) => {
  const { fileSource } = await import("./static/source.js");
  return (await fileSource(answers).ask("cell", params)).values;
}"""
COLORS = """canvas => {
  const { data } = canvas.getContext("2d").getImageData(200, 200, 300, 300);
  const found = new Set();
  for (let n = 0; n < data.length; n += 4) found.add((data[n] << 16) + (data[n + 1] << 8) + data[n + 2]);
  return found.size;
}"""
VIEW = f"view=map&layer={LAYER}&head={HEAD}"


@pytest.fixture(scope="module")
def file(shared: Site, tmp_path_factory: pytest.TempPathFactory) -> Path:
    page = shared.page(f"view=arithmetic&layer={LAYER}&head={HEAD}&query=16&key=5")
    page.locator(".headline output").wait_for()
    return saved(page, "This page as a file", tmp_path_factory.mktemp("exported"))


def from_disk(site: Site, file: Path, address: str) -> Any:
    """The file in a browser without a network, in which every request is an error."""
    page = site.page(f"{file.as_uri()}#{address}", offline=True)
    page.on("request", lambda request: site.errors.append(request.url) if "blob:" not in request.url else None)
    return page


def test_the_file_shows_the_same_numbers_without_a_network(site: Site, file: Path) -> None:
    page = from_disk(site, file, VIEW)
    settled(page)
    for query, key in ((16, 5), (13, 1), (3, 1)):
        page.mouse.move(*at(page, query, key))
        settled(page)
        assert near(page.locator(".readout output").text_content(), float(weights()[query, key]))


def test_the_file_has_rows_lines_and_heads(site: Site, file: Path) -> None:
    page = from_disk(site, file, f"view=text&layer={LAYER}&head={HEAD}&locked=16")
    page.locator(".looks li").first.wait_for()
    item = page.locator(".looks[data-list='looks at'] li").first
    assert near(item.locator(".num").text_content(), float(weights()[16].max()))
    page.get_by_role("link", name="Lines").click()
    path = page.locator("svg.lines path[data-query='16'][data-key='5']")
    path.wait_for(state="attached")
    assert float(path.get_attribute("data-weight")) == pytest.approx(float(weights()[16, 5]), abs=1e-5)
    page.get_by_role("link", name="Overview").click()
    page.locator(".card .chip").first.wait_for()
    assert page.locator("button.card").count() == 32


@pytest.mark.parametrize("query, key", [(16, 5), (12, 0)])
def test_the_file_has_the_arithmetic_of_the_head_that_was_looked_at(
    site: Site, file: Path, query: int, key: int
) -> None:
    page = from_disk(site, file, f"view=arithmetic&layer={LAYER}&head={HEAD}&query={query}&key={key}")
    page.locator(".headline output").wait_for()
    assert near(page.locator(".headline output").text_content(), float(weights()[query, key]))


@pytest.mark.parametrize("options", [{}, {"mask": "causal"}, {"mask": "causal", "score": "alibi"}])
def test_the_page_computes_the_same_arithmetic_as_the_server(site: Site, options: dict[str, str]) -> None:
    chosen: dict[str, Any] = {"mask": regard.mask.causal()} if "mask" in options else {}
    if "score" in options:
        chosen["score"] = regard.score.dot().then(regard.score.alibi())
    given = explorer(6, 9, **chosen)
    html = ask(given, "export", {"shown": 0}).arrays["html"].tobytes().decode()
    answers = json.loads(html.split('id="regard-answers">')[1].split("</script>")[0])["answers"]
    page = site.page("view=steps")
    for query, key in ((0, 0), (5, 8), (2, 8), (3, 6)):
        params = {"shown": 0, "layer": 0, "head": 1, "query": query, "key": key}
        right = plain(ask(given, "cell", params).values)
        cell = page.evaluate(CELL, [answers, params])
        assert set(right) <= set(cell)
        for name, value in right.items():
            same = pytest.approx(value, rel=1e-5, abs=1e-6) if isinstance(value, (float, list)) else value
            assert cell[name] == same if name != "statistic" else cell[name]["value"] == pytest.approx(value["value"])


def test_a_long_text_has_a_map_of_every_head(site: Site, tmp_path: Path) -> None:
    given = explorer(1100, 1100, heads=8, key_heads=8)
    for budget, finer in ((3 * 2**20, "8 × 8"), (2**16, "32 × 32")):
        path = tmp_path / f"{budget}.html"
        path.write_bytes(ask(given, "export", {"shown": 0, "budget": budget}).arrays["html"].tobytes())
        page = from_disk(site, path, "view=map&layer=0&head=7&theme=light")
        page.locator(".legend .level").wait_for()
        settled(page)
        legend = page.locator(".legend .level").text_content()
        assert f"{finer} weights a cell; this file holds nothing finer" in legend
        assert page.locator("canvas.map").evaluate(COLORS) > 20, "the map is not blank"
        page.mouse.move(*at(page, 700, 300))
        settled(page)
        size = int(finer.split()[0])
        cell = (
            given.shown[0]
            .head(0, 7)
            .weights(
                slice(700 // size * size, 700 // size * size + size),
                slice(300 // size * size, 300 // size * size + size),
            )
        )
        assert near(page.locator(".readout output").text_content(), float(cell.max()))
        assert not page.locator(".alert").is_visible()


def test_the_file_hides_the_sink_as_a_mask_would(site: Site, file: Path) -> None:
    page = from_disk(site, file, VIEW)
    page.get_by_label("Hide the sink").check()
    page.locator(".badge:not([hidden])").wait_for()
    words = page.locator("label.check").text_content()
    sink = int(words.split("key ")[1].split(",")[0])
    left = weights().clone()
    left[:, sink] = 0
    left = left / left.sum(-1, keepdim=True).clamp(min=1e-30)
    query = int((weights()[:, sink] * (weights()[:, sink] < 0.9)).argmax())  # one that looks at it, and elsewhere
    key = int(left[query].argmax())
    assert left[query, key] > 1.05 * weights()[query, key]
    page.mouse.move(*at(page, query, key))
    settled(page)
    assert near(page.locator(".readout output").text_content(), float(left[query, key]))
    item = page.locator(f".beside [data-query='{query}'] li").first
    assert float(item.get_attribute("data-value")) == pytest.approx(float(left[query, key]), abs=1e-5)


def test_the_file_says_what_it_does_not_hold(site: Site, tmp_path: Path) -> None:
    path = tmp_path / "long.html"
    path.write_bytes(ask(explorer(600, 600), "export", {"shown": 0, "budget": 2**16}).arrays["html"].tobytes())
    page = from_disk(site, path, "view=text&layer=0&head=0&locked=3")
    page.locator(".alert", has_text="This file does not hold that; open the text with regard look.").wait_for()


def test_an_example_in_the_file_is_whole_and_can_be_changed(site: Site, file: Path) -> None:
    page = from_disk(site, file, "view=steps")
    page.get_by_role("button", name="Three tokens").click()
    page.locator(".code-box").first.wait_for()
    assert "torch.exp" in page.locator("pre.code").first.text_content()
    assert stage(page, "weights")[0] == pytest.approx([0.391114, 0.296221, 0.312664], abs=1e-6)
    page.get_by_label("Mask").select_option("causal")
    page.get_by_label("Normaliser").select_option("sparsemax")
    page.get_by_label("X, row 3, column 1").fill("3")
    page.locator(".stage-card[data-stage=tau]").wait_for()
    given = example("three-tokens")
    x = torch.tensor([*given.x[:2], (3.0, *given.x[2][1:])], dtype=torch.float64)
    q, k, v = (x @ torch.tensor(w, dtype=torch.float64) for w in (given.w_q, given.w_k, given.w_v))
    right = regard.attend(q, k, v, mask=regard.mask.causal(), weigh=weigh.sparsemax(), engine="reference")
    page.wait_for_timeout(300)
    assert torch.tensor(stage(page, "output"), dtype=torch.float64) == pytest.approx(right.output, abs=1e-9)
    assert page.locator(".code-box").count() == 0  # these lines would have other numbers
    assert page.get_by_label("Dropout").count() == 0
    assert page.get_by_text("need Python").is_visible()


def test_the_file_has_curves_of_some_models_and_the_times_that_were_measured(site: Site, tmp_path: Path) -> None:
    given = explorer(4, 4)
    given.timed = [
        {"mechanism": name, "n": n, "heads": 8, "width": 64, "seconds": seconds, "runs": 3}
        for name, n, seconds in (("softmax", 256, 0.001), ("softmax", 512, 0.004), ("Nyström", 256, 0.001))
    ]
    path = tmp_path / "cost.html"
    path.write_bytes(ask(given, "export", {"shown": 0}).arrays["html"].tobytes())
    page = from_disk(site, path, "view=cost")
    page.locator(".crossings li[data-length='4608']").first.wait_for()  # 6 D
    assert page.locator(".curve[data-curve=Performer]").count() == 0
    page.locator(".head-chip[data-name=Performer]").click()
    page.locator(".curve[data-curve=Performer]").wait_for(state="attached")
    page.get_by_label("Model").select_option("Llama 2, 7 B")
    page.locator(".crossings li[data-length='4608']").first.wait_for(state="detached")
    page.get_by_role("button", name="Time measured").click()
    page.get_by_text("No times were measured for this model").wait_for()
    page.get_by_label("Model").select_option("BERT base, GPT-2")
    page.locator(".curve[data-curve=softmax] circle").nth(1).wait_for(state="attached")
    assert page.locator(".curve[data-curve='Nyström']").count() == 0  # it is not among those that are chosen
    assert page.get_by_role("button", name="Measure on this machine").count() == 0


def test_the_file_has_no_form_for_what_only_a_server_can_do(site: Site, file: Path) -> None:
    page = from_disk(site, file, VIEW)
    assert page.get_by_role("button", name="Look", exact=True).count() == 0
    page.get_by_text("Export", exact=True).click()
    assert page.get_by_role("button", name="This page as a file").count() == 0


def test_the_map_is_saved_as_a_picture(site: Site, tmp_path: Path) -> None:
    page = site.page(VIEW)
    settled(page)
    data = saved(page, "The map as PNG", tmp_path).read_bytes()
    assert data.startswith(b"\x89PNG")
    assert len(data) > 2000


def test_the_map_is_saved_as_a_drawing_with_every_weight(site: Site, tmp_path: Path) -> None:
    page = site.page(VIEW)
    settled(page)
    svg = ElementTree.parse(saved(page, "The map as SVG", tmp_path)).getroot()
    space = "{http://www.w3.org/2000/svg}"
    cells = [rect for rect in svg.iter(f"{space}rect") if rect.find(f"{space}title") is not None]
    length = len(weights())
    assert len(cells) == length * (length + 1) // 2
    assert [text.text for text in svg.iter(f"{space}text")][:2] == ["The", "captain"]
    first = cells[1].find(f"{space}title")
    assert first is not None
    assert first.text is not None
    assert near(first.text, float(weights()[1, 0]))
