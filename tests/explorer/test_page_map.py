"""The map: from the whole context, pooled, down to single weights; by wheel, hand and keys."""

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tests.explorer.browser import (
    HEAD,
    LAYER,
    SENTENCE,
    Site,
    at,
    frame,
    near,
    needs_chromium,
    settled,
    weights,
)

pytestmark = needs_chromium
LONG = SENTENCE * 56  # a thousand tokens
VIEW = f"view=map&layer={LAYER}&head={HEAD}"


@pytest.fixture(scope="module")
def shared(shared: Site) -> Site:
    return shared.reading(LONG)


@pytest.fixture
def page(site: Site) -> Iterator[Any]:
    made = site.page(VIEW)
    settled(made)
    yield made
    made.context.close()


def told(page: Any, query: int, key: int) -> tuple[str, str]:
    """The number and the words that the map shows for a cell."""
    page.mouse.move(*at(page, query, key))
    settled(page)
    return page.locator(".readout output").text_content(), page.locator(".readout .what").text_content()


def pooled(query: int, key: int, size: int) -> torch.Tensor:
    i, j = query // size * size, key // size * size
    return weights(LONG)[i : i + size, j : j + size]


@pytest.mark.parametrize("pool", ["Mean", "Max"])
def test_the_whole_map_is_pooled_as_mean_or_as_largest(page: Any, pool: str) -> None:
    page.get_by_role("button", name=pool, exact=True).click()
    settled(page)
    size = 2 ** frame(page).level
    assert size >= 2
    shown, words = told(page, 700, 100)
    part = pooled(700, 100, size)
    assert words == f"{pool.lower()} of {size} × {size} weights"
    assert near(shown, float(part.mean() if pool == "Mean" else part.max()))


def test_the_wheel_zooms_down_to_exact_weights_with_tokens_at_the_sides(page: Any) -> None:
    page.mouse.move(*at(page, 700, 683))
    while frame(page).unit < 40:
        page.mouse.wheel(0, -400)
        settled(page)
    assert frame(page).level == 0
    query, key = strongest(page)
    assert abs(query - 700) < 12  # a pixel of the whole map are two or three tokens
    assert weights(LONG)[query, key] > 0.02
    shown, words = told(page, query, key)
    assert words == "weight"
    assert near(shown, float(weights(LONG)[query, key]))
    row = page.locator(f".beside [data-query='{query}'] li").first
    best = weights(LONG)[query].max()  # of several alike
    assert weights(LONG)[query, int(row.get_attribute("data-token"))] == pytest.approx(float(best), abs=1e-5)
    assert near(row.locator(".num").text_content(), float(best))


def strongest(page: Any) -> tuple[int, int]:
    """The cell in view with the largest weight, beside the diagonal."""
    where = frame(page)
    rows, columns = (range(int(first) + 1, int(first + 380 / where.unit)) for first in (where.query, where.key))
    cells = [(i, j) for i in rows for j in columns if i != j]
    return max(cells, key=lambda cell: float(weights(LONG)[cell]))


def test_a_zoom_keeps_what_is_under_the_cursor(page: Any) -> None:
    page.mouse.move(*at(page, 500, 300))
    before = at(page, 500, 300)
    page.mouse.wheel(0, -600)
    settled(page)
    factor = math.exp(600 * 0.0018)
    assert at(page, 500, 300) == pytest.approx(before, abs=factor)  # the cursor stands on whole pixels


def test_dragging_moves_the_map_and_a_click_does_not(page: Any) -> None:
    page.locator("canvas.map").focus()
    for _ in range(6):
        page.keyboard.press("+")
    settled(page)
    before = frame(page)
    x, y = at(page, before.query + 8, before.key + 8)
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x - 60, y - 40, steps=4)
    page.mouse.up()
    settled(page)
    after = frame(page)
    assert (after.key - before.key) * after.unit == pytest.approx(60, abs=1)
    assert (after.query - before.query) * after.unit == pytest.approx(40, abs=1)
    page.mouse.click(x, y)
    settled(page)
    assert frame(page) == after


def test_keys_zoom_and_show_everything_again(page: Any) -> None:
    page.locator("canvas.map").focus()
    whole = frame(page)
    page.keyboard.press("+")
    settled(page)
    assert frame(page).unit == pytest.approx(1.6 * whole.unit)
    page.keyboard.press("-")
    settled(page)
    assert frame(page).unit == pytest.approx(whole.unit)
    page.keyboard.press("+")
    page.keyboard.press("0")
    settled(page)
    assert frame(page) == whole


def test_two_fingers_zoom(site: Site) -> None:
    page = site.page(VIEW, has_touch=True)
    settled(page)
    before = frame(page).unit
    x, y = at(page, 400, 300)
    cdp = page.context.new_cdp_session(page)
    for kind, far in (("touchStart", 30), ("touchMove", 40), ("touchMove", 60), ("touchMove", 90), ("touchEnd", None)):
        points = [] if far is None else [{"x": x - far, "y": y}, {"x": x + far, "y": y}]
        cdp.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
    settled(page)
    assert frame(page).unit == pytest.approx(3 * before, rel=0.2)


def test_the_small_map_shows_where_one_is_and_goes_elsewhere(page: Any) -> None:
    assert page.locator(".minimap").is_hidden()
    page.locator("canvas.map").focus()
    for _ in range(5):
        page.keyboard.press("+")
    settled(page)
    box = page.locator(".minimap").bounding_box()
    page.mouse.click(box["x"] + 0.2 * box["width"], box["y"] + 0.8 * box["height"])
    settled(page)
    where = frame(page)
    middle = page.locator("canvas.map").bounding_box()
    query = where.query + (middle["height"] - where.top) / where.unit / 2
    assert query == pytest.approx(0.8 * len(weights(LONG)), rel=0.05)


def test_a_token_is_found_and_gone_to(page: Any) -> None:
    page.get_by_label("Find a token").fill("boats")
    assert page.locator(".told").first.text_content() == "56 found"
    page.get_by_label("Find a token").press("Enter")
    page.get_by_label("Find a token").press("Enter")
    settled(page)
    assert page.locator(".searching .told").text_content() == "2 of 56"
    assert page.locator(".readout .of-query").text_content() == "boats26"
    assert frame(page).unit >= 11  # tokens can be read at the sides
    assert near(page.locator(".readout output").text_content(), float(weights(LONG)[26, 26]))
    page.get_by_label("Find a token").fill(".")  # a token that begins with what is looked for
    page.get_by_label("Find a token").press("Enter")
    settled(page)
    assert page.locator(".readout .of-query").text_content() == ".11"


def test_a_hidden_sink_is_said_and_the_rest_is_renormalised(site: Site) -> None:
    page = site.page("view=map&layer=2&head=1")
    settled(page)
    right = weights(LONG, 2, 1)
    assert page.locator(".badge").is_hidden()
    page.get_by_label("Hide the sink").check()
    settled(page)
    assert page.locator(".badge").is_visible()
    assert page.locator(".badge").text_content().startswith("renormalised without")
    sink = int(page.locator(".check").text_content().split("key ")[1].split(",")[0])
    page.locator("canvas.map").focus()
    for _ in range(14):
        page.keyboard.press("+")
    settled(page)
    where = frame(page)
    query, key = int(where.query) + 3, int(where.key) + 2
    kept = right[query].clone()
    kept[sink] = 0
    shown, words = told(page, query, key)
    assert words == "weight"
    assert near(shown, float(kept[key] / kept.sum()))


@pytest.mark.parametrize("scale", ["Linear", "Log", "Rank"])
def test_colours_grow_with_the_weight_on_every_scale(page: Any, scale: str) -> None:
    page.get_by_role("button", name=scale, exact=True).click()
    page.mouse.move(5, 5)
    settled(page)
    size = 2 ** frame(page).level
    cells = [(700, 100), (700, 400), (300, 50), (900, 896)]
    values = [float(pooled(i, j, size).max()) for i, j in cells]
    colours = [brightness(page, i, j) for i, j in cells]
    order = sorted(range(len(cells)), key=lambda n: values[n])
    assert [colours[n] for n in order] == sorted(colours, reverse=True)
    assert colours[order[0]] > colours[order[-1]]


def brightness(page: Any, query: int, key: int) -> float:
    """How bright the canvas is in the middle of a cell."""
    size = 2 ** frame(page).level
    x, y = at(page, query // size * size + size / 2 - 0.5, key // size * size + size / 2 - 0.5)
    return page.evaluate(
        """([x, y]) => {
          const canvas = document.querySelector("canvas.map");
          const box = canvas.getBoundingClientRect();
          const scale = canvas.width / box.width;
          const pen = canvas.getContext("2d");
          const [r, g, b] = pen.getImageData((x - box.left) * scale, (y - box.top) * scale, 1, 1).data;
          return 0.3 * r + 0.59 * g + 0.11 * b;
        }""",
        [x, y],
    )


GROUND = 0.3 * 0xF1 + 0.59 * 0xEF + 0.11 * 0xE9  # how bright the paper is where nothing is drawn


def test_a_coarser_tile_is_shown_until_the_finer_one_arrives(site: Site) -> None:
    page = site.page(VIEW)
    settled(page)
    waiting: list[Any] = []
    page.route("**/ask/tile", lambda route: waiting.append(route))
    page.mouse.move(*at(page, 700, 500))
    page.mouse.wheel(0, -1200)
    page.mouse.move(*at(page, 700, 500))
    page.wait_for_timeout(300)
    assert frame(page).level < 2
    assert page.locator(".readout .what").text_content().startswith("max of")
    assert waiting
    assert abs(brightness(page, 715, 515) - GROUND) > 2  # something is painted there
    for route in waiting:
        route.continue_()
    page.unroute("**/ask/tile")
    page.wait_for_timeout(300)
    settled(page)
    assert page.locator(".readout .what").text_content() in ("weight", "max of 2 × 2 weights")


def test_tiles_are_asked_for_a_few_at_a_time_and_stale_ones_are_dropped_and_bytes_are_limited(site: Site) -> None:
    page = site.page("view=steps")
    found = page.evaluate(
        """async () => {
          const { Tiles } = await import(new URL("static/tiles.js", document.baseURI));
          const asked = [];
          const ask = (name, params, signal) => new Promise((resolve) => asked.push({ params, signal, resolve }));
          const tiles = new Tiles({ ask }, 3 * (2 * 400 + 256 * 256 * 4));
          const question = (n) => ({ key: String(n), name: "tile", params: { n } });
          const viewer = {};
          const array = () => ({ data: new Float32Array(100), shape: [10, 10] });
          const answer = (each) => each.resolve({ arrays: { mean: array(), max: array() } });
          const rest = () => new Promise((done) => setTimeout(done, 5));
          tiles.want(viewer, [1, 2, 3, 4, 5, 6, 7].map(question), () => {});
          const first = asked.length;
          tiles.want(viewer, [6, 7].map(question), () => {});
          const dropped = asked.filter((each) => each.signal.aborted).length;
          asked.filter((each) => !each.signal.aborted).forEach(answer);
          await rest();
          for (const n of [8, 9, 10]) {
            tiles.want(viewer, [question(n)], () => {});
            answer(asked[asked.length - 1]);
            await rest();
          }
          const held = [...tiles.held.keys()];
          const within = tiles.bytes <= tiles.limit;
          return { first, dropped, asked: asked.map((each) => each.params.n), held, within };
        }"""
    )
    assert found["first"] == 4
    assert found["dropped"] == 4
    assert found["asked"] == [1, 2, 3, 4, 6, 7, 8, 9, 10]
    assert found["held"] == ["8", "9", "10"]
    assert found["within"]


def test_a_link_shows_the_same_place_again(site: Site, page: Any) -> None:
    page.mouse.move(*at(page, 600, 200))
    page.mouse.wheel(0, -900)
    page.mouse.click(*at(page, 600, 200))
    page.get_by_role("button", name="Log", exact=True).click()
    settled(page)
    page.wait_for_timeout(300)
    where, said = frame(page), page.locator(".readout").text_content()
    again = site.page(page.url)
    settled(again)
    assert (frame(again).key, frame(again).unit) == pytest.approx((where.key, where.unit), rel=1e-4)
    assert again.locator(".readout").text_content() == said


def test_the_slider_of_a_long_text_is_dragged_all_the_way(site: Site) -> None:
    page = site.page(f"view=lines&layer={LAYER}&head={HEAD}")
    slider = page.get_by_label("From token")
    slider.wait_for()
    settled(page)
    box = slider.bounding_box()
    y = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + 8, y)
    page.mouse.down()
    for share in (0.3, 0.6, 1.0):
        page.mouse.move(box["x"] + share * box["width"], y)
        settled(page)
    page.mouse.up()
    assert int(slider.input_value()) == int(slider.get_attribute("max"))
