"""The Theory view: experiments with their claims, charts and animation."""

import json
from pathlib import Path
from typing import Any

import pytest

from regard.explorer.api.experiments import experiment_payload
from regard.explorer.api.registry import dispatch
from regard.theory import get_experiment, list_experiments
from tests.chromium import needs_chromium
from tests.explorer.api.test_experiments import make_result
from tests.explorer.browser import Site
from tests.explorer.recordings import make_explorer

pytestmark = needs_chromium
NAME = "rank_collapse"  # the fastest experiment
QUICK_SETTINGS = dict(get_experiment(NAME).quick_settings)


def max_errors(page: Any) -> list[float]:
    """Return the max_errors of all claims."""
    return [float(item.get_attribute("data-max-error")) for item in page.locator(".claims li").all()]


def test_an_experiment_shows_its_claims_and_charts(site: Site) -> None:
    page = site.page(f"view=theory&experiment={NAME}")
    page.locator(".verdict").wait_for(timeout=60_000)
    expected = get_experiment(NAME).run(**QUICK_SETTINGS)
    names = [item.get_attribute("data-experiment") for item in page.locator("[data-experiment]").all()]
    assert names == [experiment.name for experiment in list_experiments()]
    assert page.locator(".verdict").get_attribute("data-is-consistent") == "true"
    claims = (*expected.claims, *expected.false_claims)
    assert max_errors(page) == pytest.approx([claim.max_error for claim in claims], rel=1e-6)
    figures = page.locator(".theory-panel")
    assert figures.count() == len(expected.panels)
    for figure, panel in zip(figures.all(), expected.panels, strict=True):
        assert figure.locator("figcaption").text_content() == panel.title
        num_points = sum(len(series.x) for series in panel.series if series.style == "points")
        assert figure.locator("circle title").count() == num_points
        labels = [item.text_content() for item in figure.locator(".chart-legend li").all()]
        assert labels == [series.label for series in panel.series if series.label]


def test_an_experiment_runs_with_its_slider_values_and_seed(site: Site) -> None:
    page = site.page(f"view=theory&experiment={NAME}")
    page.locator(".verdict").wait_for(timeout=60_000)
    before = max_errors(page)
    page.get_by_label("num_tokens", exact=True).fill("12")
    page.get_by_label("Seed").fill("5")
    page.get_by_role("region", name="Theory").get_by_role("button", name="Run", exact=True).click()
    page.locator(".experiment-result.is-loading").wait_for()
    page.locator(".experiment-result:not(.is-loading)").wait_for(timeout=60_000)
    expected = get_experiment(NAME).run(**{**QUICK_SETTINGS, "num_tokens": 12}, seed=5)
    claims = (*expected.claims, *expected.false_claims)
    assert max_errors(page) == pytest.approx([claim.max_error for claim in claims], rel=1e-6)
    assert max_errors(page) != before


@pytest.fixture
def animation_page(site: Site, tmp_path: Path) -> Any:
    """An exported file with the result of an experiment whose three points move on a circle."""
    source = make_explorer(4, 4)
    key = json.dumps({"name": "score_scaling", "settings": {"num_keys": 64}, "seed": 2}, sort_keys=True)
    source.experiment_results[key] = experiment_payload(make_result())
    path = tmp_path / "theory.html"
    path.write_bytes(dispatch(source, "export", {"session": 0}).arrays["html"].tobytes())
    page = site.page(f"{path.as_uri()}#view=theory", offline=True)
    page.locator(".verdict").wait_for()
    return page


def test_a_spread_is_drawn_as_a_band_around_its_curve(animation_page: Any) -> None:
    band, curve = (animation_page.locator(f"[data-curve='mean'] path{kind}") for kind in (".band", ":not(.band)"))
    assert (band.count(), animation_page.locator("path.band").count()) == (1, 1)
    outer, inner = band.bounding_box(), curve.bounding_box()
    assert outer["height"] > 2 * inner["height"]  # from 2.5 to 5, and from 3 to 4
    assert outer["x"] == pytest.approx(inner["x"], abs=2)


def test_a_file_shows_the_experiments_run_before_the_export(animation_page: Any) -> None:
    assert animation_page.locator("[data-experiment]").count() == 1
    assert animation_page.get_by_text("Settings of this run: num_keys = 64, seed = 2.").is_visible()
    assert animation_page.get_by_role("button", name="Run").count() == 0
    assert animation_page.locator("[data-holds=false] b").text_content() == "✓ rejected"
    assert animation_page.get_by_text("0.2500 1.2500 2.2500 3.2500 4.2500 5.2500 … (7 numbers)").is_visible()
    pixel = animation_page.locator("canvas.matrix-image").evaluate(
        "(canvas) => [...canvas.getContext('2d').getImageData(1, 1, 1, 1).data]"
    )
    assert pixel[0] > 150 and pixel[2] < 100  # the largest positive value is red


def is_drawn(page: Any, x: float, y: float) -> bool:
    """Return whether a point of the unit disk is drawn."""
    return bool(
        page.locator("canvas.point-animation").evaluate(
            """(canvas, [x, y]) => {
              const size = (canvas.width / 380) * (190 - 12);
              const [left, top] = [canvas.width / 2 + x * size, canvas.height / 2 - y * size];
              return canvas.getContext("2d").getImageData(left, top, 1, 1).data[3] > 100;
            }""",
            [x, y],
        )
    )


def test_points_move_by_playback_and_by_the_slider(animation_page: Any) -> None:
    points = make_result().animation.points  # type: ignore[union-attr]
    inward = 0.985  # inside a dot, but beside the line of the circle
    assert all(is_drawn(animation_page, *(inward * point)) for point in points[0])
    assert not is_drawn(animation_page, -inward, 0)
    assert animation_page.locator(".theory-panel .slider output").first.text_content() == "t = 0"
    animation_page.get_by_label("Time", exact=True).fill("1")
    assert not is_drawn(animation_page, *(inward * points[0, 0]))
    assert all(is_drawn(animation_page, *(inward * point)) for point in points[1])
    animation_page.get_by_role("button", name="Play").click()  # restarts, because the animation was at its end
    animation_page.wait_for_selector("canvas.point-animation[data-moment='0']")
    animation_page.get_by_role("button", name="Pause").click()
    assert animation_page.get_by_role("button", name="Play").is_visible()


def test_a_file_without_experiments_shows_a_hint(site: Site, tmp_path: Path) -> None:
    path = tmp_path / "none.html"
    path.write_bytes(dispatch(make_explorer(4, 4), "export", {"session": 0}).arrays["html"].tobytes())
    page = site.page(f"{path.as_uri()}#view=theory", offline=True)
    page.get_by_text("This file contains no experiments").wait_for()
