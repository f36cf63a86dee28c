"""Exports: the page as a file that needs no server and no network, the map as PNG and SVG."""

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch

import regard
from regard import normalizer
from regard.explorer.api.registry import dispatch
from regard.files.json_values import to_json_value
from regard.walkthrough.examples import get_example
from tests.chromium import needs_chromium
from tests.explorer.browser import (
    HEAD,
    LAYER,
    VIEWS,
    Site,
    cell_center,
    export_file,
    is_close,
    stage_values,
    wait_until_idle,
    weights,
)
from tests.explorer.recordings import make_explorer

pytestmark = needs_chromium
REQUEST_CELL_STEPS = """async ([responses, params]) => {
  const { fileSource } = await import("./frontend/transport/file-source.js");
  return (await fileSource(responses).request("cell_steps", params)).values;
}"""
COUNT_COLORS = """canvas => {
  const { data } = canvas.getContext("2d").getImageData(200, 200, 300, 300);
  const colors = new Set();
  for (let n = 0; n < data.length; n += 4) colors.add((data[n] << 16) + (data[n + 1] << 8) + data[n + 2]);
  return colors.size;
}"""
VIEW = f"view=map&layer={LAYER}&head={HEAD}"


@pytest.fixture(scope="module")
def file(shared_site: Site, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An exported page."""
    page = shared_site.page(f"view=arithmetic&layer={LAYER}&head={HEAD}&query=16&key=5")
    page.locator(".arithmetic-headline output").wait_for()
    return export_file(page, "Page as HTML", tmp_path_factory.mktemp("exported"))


def open_file(site: Site, file: Path, address: str) -> Any:
    """Open the file in a browser without a network; every request is an error."""
    page = site.page(f"{file.as_uri()}#{address}", offline=True)
    page.on("request", lambda request: site.errors.append(request.url) if "blob:" not in request.url else None)
    return page


def test_file_shows_the_weights_without_a_network(site: Site, file: Path) -> None:
    page = open_file(site, file, VIEW)
    wait_until_idle(page)
    for query, key in ((16, 5), (13, 1), (3, 1)):
        page.mouse.move(*cell_center(page, query, key))
        wait_until_idle(page)
        assert is_close(page.locator(".readout output").text_content(), float(weights()[query, key]))


def test_file_has_text_lines_and_overview(site: Site, file: Path) -> None:
    page = open_file(site, file, f"view=text&layer={LAYER}&head={HEAD}&pinned=16")
    page.locator(".bar-list li").first.wait_for()
    item = page.locator(".bar-list[data-list='attends to'] li").first
    assert is_close(item.locator(".bar-value").text_content(), float(weights()[16].max()))
    page.get_by_role("link", name="Lines").click()
    path = page.locator("svg.lines path[data-query='16'][data-key='5']")
    path.wait_for(state="attached")
    assert float(path.get_attribute("data-weight")) == pytest.approx(float(weights()[16, 5]), abs=1e-5)
    page.get_by_role("link", name="Overview").click()
    page.locator(".head-card .chip").first.wait_for()
    assert page.locator("button.head-card").count() == 32


@pytest.mark.parametrize("query, key", [(16, 5), (12, 0)])
def test_file_has_the_arithmetic_of_the_exported_head(site: Site, file: Path, query: int, key: int) -> None:
    page = open_file(site, file, f"view=arithmetic&layer={LAYER}&head={HEAD}&query={query}&key={key}")
    page.locator(".arithmetic-headline output").wait_for()
    assert is_close(page.locator(".arithmetic-headline output").text_content(), float(weights()[query, key]))


@pytest.mark.parametrize("options", [{}, {"mask": "causal"}, {"mask": "causal", "score": "alibi"}])
def test_page_and_server_compute_the_same_arithmetic(site: Site, options: dict[str, str]) -> None:
    arguments: dict[str, Any] = {"mask": regard.mask.causal()} if "mask" in options else {}
    if "score" in options:
        arguments["score"] = regard.score.dot().then(regard.score.alibi())
    source = make_explorer(6, 9, **arguments)
    html = dispatch(source, "export", {"session": 0}).arrays["html"].tobytes().decode()
    responses = json.loads(html.split('id="regard-responses">')[1].split("</script>")[0])["responses"]
    page = site.page("view=steps")
    for query, key in ((0, 0), (5, 8), (2, 8), (3, 6)):
        params = {"session": 0, "layer": 0, "head": 1, "query": query, "key": key}
        expected = to_json_value(dispatch(source, "cell_steps", params).values)
        cell = page.evaluate(REQUEST_CELL_STEPS, [responses, params])
        assert set(expected) <= set(cell)
        for name, value in expected.items():
            if name == "statistic":
                assert cell[name]["value"] == pytest.approx(value["value"])
            elif isinstance(value, (float, list)):
                assert cell[name] == pytest.approx(value, rel=1e-5, abs=1e-6)
            else:
                assert cell[name] == value


def test_file_of_a_long_text_has_a_map_of_every_head(site: Site, tmp_path: Path) -> None:
    source = make_explorer(1100, 1100, num_heads=8, num_kv_heads=8)
    for max_bytes, size in ((3 * 2**20, 8), (2**16, 32)):
        path = tmp_path / f"{max_bytes}.html"
        path.write_bytes(dispatch(source, "export", {"session": 0, "max_bytes": max_bytes}).arrays["html"].tobytes())
        page = open_file(site, path, "view=map&layer=0&head=7&theme=light")
        page.locator(".legend .level-note").wait_for()
        wait_until_idle(page)
        legend = page.locator(".legend .level-note").text_content()
        assert f"{size} × {size} weights per cell; this file contains no finer level" in legend
        assert page.locator("canvas.map").evaluate(COUNT_COLORS) > 20, "the map is not blank"
        page.mouse.move(*cell_center(page, 700, 300))
        wait_until_idle(page)
        cell = (
            source.sessions[0]
            .head(0, 7)
            .weights(
                slice(700 // size * size, 700 // size * size + size),
                slice(300 // size * size, 300 // size * size + size),
            )
        )
        assert is_close(page.locator(".readout output").text_content(), float(cell.max()))
        assert not page.locator(".alert").is_visible()


def test_file_hides_the_sink_as_a_mask_does(site: Site, file: Path) -> None:
    page = open_file(site, file, VIEW)
    page.get_by_label("Hide the sink").check()
    page.locator(".badge:not([hidden])").wait_for()
    label = page.locator("label.checkbox-label").text_content()
    sink = int(label.split("key ")[1].split(",")[0])
    expected = weights().clone()
    expected[:, sink] = 0
    expected = expected / expected.sum(-1, keepdim=True).clamp(min=1e-30)
    query = int((weights()[:, sink] * (weights()[:, sink] < 0.9)).argmax())  # has weight on the sink and on other keys
    key = int(expected[query].argmax())
    assert expected[query, key] > 1.05 * weights()[query, key]
    page.mouse.move(*cell_center(page, query, key))
    wait_until_idle(page)
    assert is_close(page.locator(".readout output").text_content(), float(expected[query, key]))
    item = page.locator(f".shaded-text [data-query='{query}'] li").first
    assert float(item.get_attribute("data-value")) == pytest.approx(float(expected[query, key]), abs=1e-5)


def test_file_reports_missing_data(site: Site, tmp_path: Path) -> None:
    path = tmp_path / "long.html"
    path.write_bytes(
        dispatch(make_explorer(600, 600), "export", {"session": 0, "max_bytes": 2**16}).arrays["html"].tobytes()
    )
    page = open_file(site, path, "view=text&layer=0&head=0&pinned=3")
    page.locator(
        ".alert", has_text="This file does not contain this data. Open the text with regard explore."
    ).wait_for()


def test_walkthrough_in_the_file_is_complete_and_editable(site: Site, file: Path) -> None:
    page = open_file(site, file, "view=steps")
    page.get_by_role("button", name="Three tokens").click()
    page.locator(".code-box").first.wait_for()
    assert "torch.exp" in page.locator("pre.code").first.text_content()
    assert stage_values(page, "weights")[0] == pytest.approx([0.391114, 0.296221, 0.312664], abs=1e-6)
    page.get_by_label("Mask").select_option("causal")
    page.get_by_label("Normalizer").select_option("sparsemax")
    page.get_by_label("X, row 3, column 1").fill("3")
    page.locator(".stage-card[data-stage=tau]").wait_for()
    source = get_example("three-tokens")
    x = torch.tensor([*source.x[:2], (3.0, *source.x[2][1:])], dtype=torch.float64)
    q, k, v = (x @ torch.tensor(w, dtype=torch.float64) for w in (source.w_q, source.w_k, source.w_v))
    expected = regard.attention_with_weights(
        q, k, v, mask=regard.mask.causal(), normalizer=normalizer.sparsemax(), backend="reference"
    )
    page.wait_for_timeout(300)
    assert torch.tensor(stage_values(page, "output"), dtype=torch.float64) == pytest.approx(expected.output, abs=1e-9)
    assert page.locator(".code-box").count() == 0  # the exported code has other numbers
    assert page.get_by_label("Dropout").count() == 0
    assert page.get_by_text("need Python").is_visible()


def test_file_has_cost_curves_and_measured_times(site: Site, tmp_path: Path) -> None:
    source = make_explorer(4, 4)
    source.timings = [
        {"mechanism": name, "seq_len": n, "num_heads": 8, "head_dim": 64, "seconds": seconds, "num_runs": 3}
        for name, n, seconds in (("softmax", 256, 0.001), ("softmax", 512, 0.004), ("Nyström", 256, 0.001))
    ]
    path = tmp_path / "cost.html"
    path.write_bytes(dispatch(source, "export", {"session": 0}).arrays["html"].tobytes())
    page = open_file(site, path, "view=cost")
    page.locator(".crossover-list li[data-length='4608']").first.wait_for()  # 6 D
    assert page.locator(".curve[data-curve=Performer]").count() == 0
    page.locator(".head-chip[data-name=Performer]").click()
    page.locator(".curve[data-curve=Performer]").wait_for(state="attached")
    page.get_by_label("Model").select_option("Llama 2 7B")
    page.locator(".crossover-list li[data-length='4608']").first.wait_for(state="detached")
    page.get_by_role("button", name="Measured time").click()
    page.get_by_text("This file contains no measured times for this model").wait_for()
    page.get_by_label("Model").select_option("BERT base, GPT-2")
    page.locator(".curve[data-curve=softmax] circle").nth(1).wait_for(state="attached")
    assert page.locator(".curve[data-curve='Nyström']").count() == 0  # not selected
    assert page.get_by_role("button", name="Measure on this machine").count() == 0


@pytest.mark.parametrize("view", VIEWS)
def test_every_view_of_the_file_opens_without_an_error(site: Site, file: Path, view: str) -> None:
    page = open_file(site, file, f"view={view}&layer={LAYER}&head={HEAD}&query=16&key=5")
    page.locator("main section.view").wait_for()
    wait_until_idle(page)
    assert page.locator("[role=alert]:visible").all_text_contents() == []


def test_file_has_no_controls_that_need_a_server(site: Site, file: Path) -> None:
    page = open_file(site, file, VIEW)
    assert page.get_by_role("button", name="Run", exact=True).count() == 0
    page.get_by_text("Export", exact=True).click()
    assert page.get_by_role("button", name="Page as HTML").count() == 0


def test_map_is_exported_as_png(site: Site, tmp_path: Path) -> None:
    page = site.page(VIEW)
    wait_until_idle(page)
    data = export_file(page, "Map as PNG", tmp_path).read_bytes()
    assert data.startswith(b"\x89PNG")
    assert len(data) > 2000


def test_map_is_exported_as_svg_with_every_weight(site: Site, tmp_path: Path) -> None:
    page = site.page(VIEW)
    wait_until_idle(page)
    svg = ElementTree.parse(export_file(page, "Map as SVG", tmp_path)).getroot()
    namespace = "{http://www.w3.org/2000/svg}"
    cells = [rect for rect in svg.iter(f"{namespace}rect") if rect.find(f"{namespace}title") is not None]
    length = len(weights())
    assert len(cells) == length * (length + 1) // 2
    assert [text.text for text in svg.iter(f"{namespace}text")][:2] == ["The", "captain"]
    first = cells[1].find(f"{namespace}title")
    assert first is not None
    assert first.text is not None
    assert is_close(first.text, float(weights()[1, 0]))
