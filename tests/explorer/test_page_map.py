"""The Map view of a long text: pooling, zoom and pan by wheel, drag, touch and keys, down to single weights."""

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tests.chromium import needs_chromium
from tests.explorer.browser import (
    HEAD,
    LAYER,
    SENTENCE,
    Site,
    cell_center,
    is_close,
    read_frame,
    wait_until_idle,
    weights,
)

pytestmark = needs_chromium
LONG_TEXT = SENTENCE * 56  # about 1,000 tokens
VIEW = f"view=map&layer={LAYER}&head={HEAD}"


@pytest.fixture(scope="module")
def shared_site(shared_site: Site) -> Site:
    return shared_site.with_text(LONG_TEXT)


@pytest.fixture
def page(site: Site) -> Iterator[Any]:
    page = site.page(VIEW)
    wait_until_idle(page)
    yield page
    page.close()


def read_cell(page: Any, query: int, key: int) -> tuple[str, str]:
    """Point at a cell; return the number and the caption of the readout."""
    page.mouse.move(*cell_center(page, query, key))
    wait_until_idle(page)
    return page.locator(".readout output").text_content(), page.locator(".readout .weight-caption").text_content()


def weights_around(query: int, key: int, size: int) -> torch.Tensor:
    """Return the weights of the pooled cell that contains a query and a key."""
    i, j = query // size * size, key // size * size
    return weights(LONG_TEXT)[i : i + size, j : j + size]


@pytest.mark.parametrize("pooling", ["Mean", "Max"])
def test_cells_of_the_whole_map_are_pooled(page: Any, pooling: str) -> None:
    page.get_by_role("button", name=pooling, exact=True).click()
    wait_until_idle(page)
    size = 2 ** read_frame(page).level
    assert size >= 2
    value, caption = read_cell(page, 700, 100)
    cell = weights_around(700, 100, size)
    assert caption == f"{pooling.lower()} of {size} × {size} weights"
    assert is_close(value, float(cell.mean() if pooling == "Mean" else cell.max()))


def test_wheel_zooms_to_exact_weights(page: Any) -> None:
    page.mouse.move(*cell_center(page, 700, 683))
    while read_frame(page).pixels_per_token < 40:
        page.mouse.wheel(0, -400)
        wait_until_idle(page)
    assert read_frame(page).level == 0
    query, key = largest_visible_cell(page)
    assert abs(query - 700) < 12  # a pixel of the whole map is two or three tokens
    assert weights(LONG_TEXT)[query, key] > 0.02
    value, caption = read_cell(page, query, key)
    assert caption == "weight"
    assert is_close(value, float(weights(LONG_TEXT)[query, key]))
    item = page.locator(f".shaded-text [data-query='{query}'] li").first
    largest = weights(LONG_TEXT)[query].max()  # several keys may have it
    assert weights(LONG_TEXT)[query, int(item.get_attribute("data-token"))] == pytest.approx(float(largest), abs=1e-5)
    assert is_close(item.locator(".bar-value").text_content(), float(largest))


def largest_visible_cell(page: Any) -> tuple[int, int]:
    """Return the visible cell with the largest weight off the diagonal."""
    frame = read_frame(page)
    count = 380 / frame.pixels_per_token
    rows, columns = (range(int(first) + 1, int(first + count)) for first in (frame.query, frame.key))
    cells = [(i, j) for i in rows for j in columns if i != j]
    return max(cells, key=lambda cell: float(weights(LONG_TEXT)[cell]))


def test_zoom_keeps_the_cell_under_the_cursor(page: Any) -> None:
    page.mouse.move(*cell_center(page, 500, 300))
    before = cell_center(page, 500, 300)
    page.mouse.wheel(0, -600)
    wait_until_idle(page)
    factor = math.exp(600 * 0.0018)
    assert cell_center(page, 500, 300) == pytest.approx(before, abs=factor)  # cursor positions are integers


def test_drag_pans_the_map_and_click_does_not(page: Any) -> None:
    page.locator("canvas.map").focus()
    for _ in range(6):
        page.keyboard.press("+")
    wait_until_idle(page)
    before = read_frame(page)
    x, y = cell_center(page, before.query + 8, before.key + 8)
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x - 60, y - 40, steps=4)
    page.mouse.up()
    wait_until_idle(page)
    after = read_frame(page)
    assert (after.key - before.key) * after.pixels_per_token == pytest.approx(60, abs=1)
    assert (after.query - before.query) * after.pixels_per_token == pytest.approx(40, abs=1)
    page.mouse.click(x, y)
    wait_until_idle(page)
    assert read_frame(page) == after


def test_keys_zoom_and_fit_the_map(page: Any) -> None:
    page.locator("canvas.map").focus()
    fitted = read_frame(page)
    page.keyboard.press("+")
    wait_until_idle(page)
    assert read_frame(page).pixels_per_token == pytest.approx(1.6 * fitted.pixels_per_token)
    page.keyboard.press("-")
    wait_until_idle(page)
    assert read_frame(page).pixels_per_token == pytest.approx(fitted.pixels_per_token)
    page.keyboard.press("+")
    page.keyboard.press("0")
    wait_until_idle(page)
    assert read_frame(page) == fitted


def test_pinch_zooms(site: Site) -> None:
    page = site.page(VIEW, has_touch=True)
    wait_until_idle(page)
    before = read_frame(page).pixels_per_token
    x, y = cell_center(page, 400, 300)
    cdp = page.context.new_cdp_session(page)
    for event, distance in (
        ("touchStart", 30),
        ("touchMove", 40),
        ("touchMove", 60),
        ("touchMove", 90),
        ("touchEnd", None),
    ):
        points = [] if distance is None else [{"x": x - distance, "y": y}, {"x": x + distance, "y": y}]
        cdp.send("Input.dispatchTouchEvent", {"type": event, "touchPoints": points})
    wait_until_idle(page)
    assert read_frame(page).pixels_per_token == pytest.approx(3 * before, rel=0.2)


def test_click_on_the_minimap_moves_the_map(page: Any) -> None:
    assert page.locator(".minimap").is_hidden()
    page.locator("canvas.map").focus()
    for _ in range(5):
        page.keyboard.press("+")
    wait_until_idle(page)
    box = page.locator(".minimap").bounding_box()
    page.mouse.click(box["x"] + 0.2 * box["width"], box["y"] + 0.8 * box["height"])
    wait_until_idle(page)
    frame = read_frame(page)
    height = page.locator("canvas.map").bounding_box()["height"]
    center_query = frame.query + (height - frame.top) / frame.pixels_per_token / 2
    assert center_query == pytest.approx(0.8 * len(weights(LONG_TEXT)), rel=0.05)


def test_search_goes_to_matching_tokens(page: Any) -> None:
    page.get_by_label("Find a token").fill("boats")
    assert page.locator(".status-text").first.text_content() == "56 matches"
    page.get_by_label("Find a token").press("Enter")
    page.get_by_label("Find a token").press("Enter")
    wait_until_idle(page)
    assert page.locator(".token-search .status-text").text_content() == "2 of 56"
    assert page.locator(".readout .query-color").text_content() == "boats26"
    assert read_frame(page).pixels_per_token >= 11  # large enough for token labels
    assert is_close(page.locator(".readout output").text_content(), float(weights(LONG_TEXT)[26, 26]))
    page.get_by_label("Find a token").fill(".")  # a token that begins with the search text
    page.get_by_label("Find a token").press("Enter")
    wait_until_idle(page)
    assert page.locator(".readout .query-color").text_content() == ".11"


def test_hiding_the_sink_renormalizes_the_rows(site: Site) -> None:
    page = site.page("view=map&layer=2&head=1")
    wait_until_idle(page)
    matrix = weights(LONG_TEXT, 2, 1)
    assert page.locator(".badge").is_hidden()
    page.get_by_label("Hide the sink").check()
    wait_until_idle(page)
    assert page.locator(".badge").is_visible()
    assert page.locator(".badge").text_content().startswith("renormalized without")
    sink = int(page.locator(".checkbox-label").text_content().split("key ")[1].split(",")[0])
    page.locator("canvas.map").focus()
    for _ in range(14):
        page.keyboard.press("+")
    wait_until_idle(page)
    frame = read_frame(page)
    query, key = int(frame.query) + 3, int(frame.key) + 2
    row = matrix[query].clone()
    row[sink] = 0
    value, caption = read_cell(page, query, key)
    assert caption == "weight"
    assert is_close(value, float(row[key] / row.sum()))


@pytest.mark.parametrize("scale", ["Linear", "Log", "Rank"])
def test_larger_weights_are_darker_on_every_scale(page: Any, scale: str) -> None:
    page.get_by_role("button", name=scale, exact=True).click()
    page.mouse.move(5, 5)
    wait_until_idle(page)
    size = 2 ** read_frame(page).level
    cells = [(700, 100), (700, 400), (300, 50), (900, 896)]
    values = [float(weights_around(i, j, size).max()) for i, j in cells]
    brightnesses = [brightness(page, i, j) for i, j in cells]
    order = sorted(range(len(cells)), key=lambda n: values[n])
    assert [brightnesses[n] for n in order] == sorted(brightnesses, reverse=True)
    assert brightnesses[order[0]] > brightnesses[order[-1]]


def brightness(page: Any, query: int, key: int) -> float:
    """Return the brightness of the canvas at the center of a cell."""
    size = 2 ** read_frame(page).level
    x, y = cell_center(page, query // size * size + size / 2 - 0.5, key // size * size + size / 2 - 0.5)
    return page.evaluate(
        """([x, y]) => {
          const canvas = document.querySelector("canvas.map");
          const box = canvas.getBoundingClientRect();
          const scale = canvas.width / box.width;
          const context = canvas.getContext("2d");
          const [r, g, b] = context.getImageData((x - box.left) * scale, (y - box.top) * scale, 1, 1).data;
          return 0.3 * r + 0.59 * g + 0.11 * b;
        }""",
        [x, y],
    )


BACKGROUND = 0.3 * 0xF1 + 0.59 * 0xEF + 0.11 * 0xE9  # brightness of masked cells


def test_a_coarser_tile_is_drawn_until_the_finer_one_arrives(site: Site) -> None:
    page = site.page(VIEW)
    wait_until_idle(page)
    held_requests: list[Any] = []
    page.route("**/api/tile", lambda route: held_requests.append(route))
    page.mouse.move(*cell_center(page, 700, 500))
    page.mouse.wheel(0, -1200)
    page.mouse.move(*cell_center(page, 700, 500))
    page.wait_for_timeout(300)
    assert read_frame(page).level < 2
    assert page.locator(".readout .weight-caption").text_content().startswith("max of")
    assert held_requests
    assert abs(brightness(page, 715, 515) - BACKGROUND) > 2  # the coarser tile is drawn
    for route in held_requests:
        route.continue_()
    page.unroute("**/api/tile")
    page.wait_for_timeout(300)
    wait_until_idle(page)
    assert page.locator(".readout .weight-caption").text_content() in ("weight", "max of 2 × 2 weights")


def test_tile_cache_limits_requests_and_bytes_and_cancels_stale_requests(site: Site) -> None:
    page = site.page("view=steps")
    result = page.evaluate(
        """async () => {
          const { TileCache } = await import(new URL("frontend/transport/tile-cache.js", document.baseURI));
          const sent = [];
          const request = (name, params, signal) => new Promise((resolve) => sent.push({ params, signal, resolve }));
          const tiles = new TileCache({ request }, 3 * (2 * 400 + 256 * 256 * 4));
          const tileRequest = (n) => ({ key: String(n), name: "tile", params: { n } });
          const viewer = {};
          const array = () => ({ data: new Float32Array(100), shape: [10, 10] });
          const respond = (sentRequest) => sentRequest.resolve({ arrays: { mean: array(), max: array() } });
          const pause = () => new Promise((done) => setTimeout(done, 5));
          tiles.setViewerTiles(viewer, [1, 2, 3, 4, 5, 6, 7].map(tileRequest), () => {});
          const concurrent = sent.length;
          tiles.setViewerTiles(viewer, [6, 7].map(tileRequest), () => {});
          const cancelled = sent.filter(({ signal }) => signal.aborted).length;
          sent.filter(({ signal }) => !signal.aborted).forEach(respond);
          await pause();
          for (const n of [8, 9, 10]) {
            tiles.setViewerTiles(viewer, [tileRequest(n)], () => {});
            respond(sent[sent.length - 1]);
            await pause();
          }
          const cached = [...tiles.tiles.keys()];
          const isWithinLimit = tiles.bytes <= tiles.limit;
          return { concurrent, cancelled, sent: sent.map(({ params }) => params.n), cached, isWithinLimit };
        }"""
    )
    assert result["concurrent"] == 4
    assert result["cancelled"] == 4
    assert result["sent"] == [1, 2, 3, 4, 6, 7, 8, 9, 10]
    assert result["cached"] == ["8", "9", "10"]
    assert result["isWithinLimit"]


def test_a_link_restores_the_viewport(site: Site, page: Any) -> None:
    page.mouse.move(*cell_center(page, 600, 200))
    page.mouse.wheel(0, -900)
    page.mouse.click(*cell_center(page, 600, 200))
    page.get_by_role("button", name="Log", exact=True).click()
    wait_until_idle(page)
    page.wait_for_timeout(300)
    expected, readout = read_frame(page), page.locator(".readout").text_content()
    reopened = site.page(page.url)
    wait_until_idle(reopened)
    frame = read_frame(reopened)
    assert frame.key == pytest.approx(expected.key, rel=1e-4)
    assert frame.pixels_per_token == pytest.approx(expected.pixels_per_token, rel=1e-4)
    assert reopened.locator(".readout").text_content() == readout


def test_the_scroll_slider_of_lines_can_be_dragged_to_the_end(site: Site) -> None:
    page = site.page(f"view=lines&layer={LAYER}&head={HEAD}")
    slider = page.get_by_label("Tokens", exact=True)
    slider.wait_for()
    wait_until_idle(page)
    box = slider.bounding_box()
    y = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + 8, y)
    page.mouse.down()
    for fraction in (0.3, 0.6, 1.0):
        page.mouse.move(box["x"] + fraction * box["width"], y)
        wait_until_idle(page)
    page.mouse.up()
    assert int(slider.input_value()) == int(slider.get_attribute("max"))
