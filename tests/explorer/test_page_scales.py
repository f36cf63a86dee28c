"""Colors and bars mean the same number everywhere: one scale from 0 to 1 for all heads and all lists."""

from typing import Any

import pytest
import torch

import regard
from regard.explorer.explorer import Explorer
from regard.explorer.questions import ask
from regard.explorer.recorded import of_tape
from regard.inside.take import taken
from tests.explorer.browser import HEAD, LAYER, Site, needs_chromium, settled, weights

pytestmark = needs_chromium

DARKNESS = """canvas => {
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  const cells = [];
  for (let n = 0; n < data.length; n += 4) cells.push(data[n + 3] ? 765 - data[n] - data[n + 1] - data[n + 2] : 0);
  return [Math.max(...cells), cells.reduce((sum, x) => sum + x, 0) / cells.length];
}"""

RANKS = """async (values) => {
  const { scaleOf } = await import("./static/scale.js");
  const share = scaleOf("rank", Math.max(...values), [Float32Array.from(values)]);
  return values.map((w) => share(Math.fround(w)));
}"""


def two_heads() -> Explorer:
    """A head that attends to every key alike, and one that attends to one key."""
    n, tape = 16, regard.Tape()
    q = torch.zeros(1, 2, n, n)
    q[0, 1] = 60 * torch.eye(n)
    k = torch.eye(n).expand(1, 2, n, n)
    tape.layer("layer.0", 0, None).add(taken({"q": q, "k": k, "v": k}, None, lambda tensor: tensor, "test"))
    return Explorer(of_tape(tape))


@pytest.fixture(scope="module")
def uniform(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("uniform") / "uniform.html"
    path.write_bytes(ask(two_heads(), "export", {"shown": 0}).arrays["html"].tobytes())
    return path.as_uri()


def test_a_uniform_head_is_fainter_than_one_that_attends_to_one_key(site: Site, uniform: str) -> None:
    page = site.page(f"{uniform}#view=overview&theme=light", offline=True)
    page.locator(".card .kinds .chip").first.wait_for()
    (uniform_top, _), (single_top, _) = (
        page.locator(f".card[data-head='{head}'] canvas").evaluate(DARKNESS) for head in (0, 1)
    )
    assert uniform_top < 0.5 * single_top  # 1/16 has a quarter of the scale, by its root
    legend = page.locator(".root-legend").text_content()
    assert "0" in legend and "1" in legend and "the same scale for every head" in legend


def widths(page: Any, title: str) -> list[tuple[float, float]]:
    """Of each bar of a list its value and its share of the track."""
    return [
        (
            float(item.get_attribute("data-value")),
            item.locator(".bar-of").evaluate("bar => parseFloat(bar.style.width) / 100"),
        )
        for item in page.locator(f".looks[data-list='{title}'] li").all()
    ]


def test_a_bar_is_as_long_as_its_weight_in_every_list(site: Site) -> None:
    key = int(weights().amax(0).argmin())  # the key that the largest weight on it is smallest of
    page = site.page(f"view=text&layer={LAYER}&head={HEAD}&locked={key}")
    page.locator(".looks").first.wait_for()
    settled(page)
    bars = widths(page, "looks at") + widths(page, "is looked at by")
    assert len(bars) > 3
    for value, share in bars:
        assert share == pytest.approx(min(1.0, value), abs=1e-6)


def test_a_weight_that_is_next_to_nothing_has_no_shade(site: Site) -> None:
    page = site.page(f"view=text&layer={LAYER}&head={HEAD}&locked=3")
    page.locator(".looks").first.wait_for()
    settled(page)
    for place, weight in enumerate(weights()[:, 3].tolist()):
        shade = page.locator(f".token[data-token='{place}']").evaluate("token => token.style.boxShadow")
        assert bool(shade) == (weight > 0.003), (place, weight)


def test_a_rank_is_the_share_of_smaller_values_however_small_they_are(site: Site) -> None:
    page = site.page("view=steps")
    values = [1e-30, 1e-20, 1e-12, 1e-10, 1e-9, 1e-3, 0.5, 0.9]
    shares = page.evaluate(RANKS, values)
    assert shares == pytest.approx([0.04 + 0.96 * n / 7 for n in range(8)])
    assert page.evaluate(RANKS, [0.25] * 9) == pytest.approx([0.04] * 9)  # none is smaller than another
    assert page.evaluate(RANKS, [0.1, 0.1, 0.1, 0.2]) == pytest.approx([0.04, 0.04, 0.04, 1.0])
