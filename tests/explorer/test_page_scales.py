"""Color scales and bars: one scale from 0 to 1 for all heads and all lists."""

from typing import Any

import pytest
import torch

import regard
from regard.explorer.api.registry import dispatch
from regard.explorer.explorer import Explorer
from regard.explorer.session_from_recording import session_from_recording
from regard.recording.recorded_call import copy_call
from tests.chromium import needs_chromium
from tests.explorer.browser import HEAD, LAYER, Site, wait_until_idle, weights

pytestmark = needs_chromium

MAX_DARKNESS = """canvas => {
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  const cells = [];
  for (let n = 0; n < data.length; n += 4) cells.push(data[n + 3] ? 765 - data[n] - data[n + 1] - data[n + 2] : 0);
  return Math.max(...cells);
}"""

RANK_FRACTIONS = """async (values) => {
  const { colorScale } = await import("./frontend/lib/color/color-scale.js");
  const toFraction = colorScale("rank", Math.max(...values), [Float32Array.from(values)]);
  return values.map((w) => toFraction(Math.fround(w)));
}"""


def explorer_of_two_heads() -> Explorer:
    """Return an explorer of a head with uniform weights and a head that attends to one key."""
    n, recording = 16, regard.Recording()
    q = torch.zeros(1, 2, n, n)
    q[0, 1] = 60 * torch.eye(n)
    k = torch.eye(n).expand(1, 2, n, n)
    recording.get_or_add_layer("layer.0", 0, None).add(
        copy_call({"q": q, "k": k, "v": k}, None, lambda tensor: tensor, "test")
    )
    return Explorer(session_from_recording(recording))


@pytest.fixture(scope="module")
def two_heads_url(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("two-heads") / "two-heads.html"
    path.write_bytes(dispatch(explorer_of_two_heads(), "export", {"session": 0}).arrays["html"].tobytes())
    return path.as_uri()


def test_a_uniform_head_is_fainter_than_a_head_with_one_key(site: Site, two_heads_url: str) -> None:
    page = site.page(f"{two_heads_url}#view=overview&theme=light", offline=True)
    page.locator(".head-card .head-kinds .chip").first.wait_for()
    uniform, single_key = (
        page.locator(f".head-card[data-head='{head}'] canvas").evaluate(MAX_DARKNESS) for head in (0, 1)
    )
    assert uniform < 0.5 * single_key  # the square root of 1/16 is a quarter of the scale
    legend = page.locator(".weight-legend").text_content()
    assert "0" in legend and "1" in legend and "the same scale for every head" in legend


def bar_widths(page: Any, title: str) -> list[tuple[float, float]]:
    """Return the value of each bar of a list, and its fraction of the track."""
    return [
        (
            float(item.get_attribute("data-value")),
            item.locator(".bar-fill").evaluate("bar => parseFloat(bar.style.width) / 100"),
        )
        for item in page.locator(f".bar-list[data-list='{title}'] li").all()
    ]


def test_the_width_of_a_bar_is_its_weight_in_every_list(site: Site) -> None:
    key = int(weights().amax(0).argmin())  # a key with small weights only
    page = site.page(f"view=text&layer={LAYER}&head={HEAD}&pinned={key}")
    page.locator(".bar-list").first.wait_for()
    wait_until_idle(page)
    bars = bar_widths(page, "attends to") + bar_widths(page, "attended to by")
    assert len(bars) > 3
    for value, fraction in bars:
        assert fraction == pytest.approx(min(1.0, value), abs=1e-6)


def test_a_very_small_weight_has_no_shading(site: Site) -> None:
    page = site.page(f"view=text&layer={LAYER}&head={HEAD}&pinned=3")
    page.locator(".bar-list").first.wait_for()
    wait_until_idle(page)
    for token, weight in enumerate(weights()[:, 3].tolist()):
        shade = page.locator(f".token[data-token='{token}']").evaluate("token => token.style.boxShadow")
        assert bool(shade) == (weight > 0.003), (token, weight)


def test_a_rank_is_the_fraction_of_smaller_values(site: Site) -> None:
    page = site.page("view=steps")
    values = [1e-30, 1e-20, 1e-12, 1e-10, 1e-9, 1e-3, 0.5, 0.9]
    fractions = page.evaluate(RANK_FRACTIONS, values)
    assert fractions == pytest.approx([0.04 + 0.96 * n / 7 for n in range(8)])
    assert page.evaluate(RANK_FRACTIONS, [0.25] * 9) == pytest.approx([0.04] * 9)  # all values are equal
    assert page.evaluate(RANK_FRACTIONS, [0.1, 0.1, 0.1, 0.2]) == pytest.approx([0.04, 0.04, 0.04, 1.0])
