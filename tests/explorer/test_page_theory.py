"""The theory in the page: experiments with their claims, charts and motion."""

import json
from pathlib import Path
from typing import Any

import pytest

from regard.explorer.experiments import spoken
from regard.explorer.questions import ask
from regard.theory import experiment, experiments
from tests.explorer.browser import Site, needs_chromium
from tests.explorer.recordings import explorer
from tests.explorer.test_experiments import an_outcome

pytestmark = needs_chromium
QUICK = dict(experiment("scaling").quick)


def errors(page: Any) -> list[float]:
    return [float(item.get_attribute("data-error")) for item in page.locator(".claims li").all()]


def test_an_experiment_shows_its_claims_and_charts(site: Site) -> None:
    page = site.page("view=theory&experiment=scaling")
    page.locator(".verdict").wait_for(timeout=60_000)
    right = experiment("scaling").run(**QUICK)
    names = [item.get_attribute("data-experiment") for item in page.locator("[data-experiment]").all()]
    assert names == [each.name for each in experiments()]
    assert page.locator(".verdict").get_attribute("data-agrees") == "true"
    assert errors(page) == pytest.approx([c.error for c in (*right.claims, *right.wrong)], rel=1e-6)
    figures = page.locator(".theory-panel")
    assert figures.count() == len(right.panels)
    for figure, panel in zip(figures.all(), right.panels, strict=True):
        assert figure.locator("figcaption").text_content() == panel.title
        dots = sum(len(series.x) for series in panel.series if series.style == "points")
        assert figure.locator("circle title").count() == dots
        labels = [item.text_content() for item in figure.locator(".chart-legend li").all()]
        assert labels == [series.label for series in panel.series if series.label]


def test_a_slider_and_a_seed_change_what_is_run(site: Site) -> None:
    page = site.page("view=theory&experiment=scaling")
    page.locator(".verdict").wait_for(timeout=60_000)
    before = errors(page)
    page.get_by_label("keys", exact=True).fill("128")
    page.get_by_label("Seed").fill("5")
    page.get_by_role("button", name="Run", exact=True).click()
    page.locator(".outcome.waiting").wait_for()
    page.locator(".outcome:not(.waiting)").wait_for(timeout=60_000)
    right = experiment("scaling").run(**{**QUICK, "keys": 128}, seed=5)
    assert errors(page) == pytest.approx([c.error for c in (*right.claims, *right.wrong)], rel=1e-6)
    assert errors(page) != before


@pytest.fixture
def moving(site: Site, tmp_path: Path) -> Any:
    """A file that holds an outcome in which three points move on a circle."""
    given = explorer(4, 4)
    key = json.dumps({"name": "scaling", "settings": {"keys": 64}, "seed": 2}, sort_keys=True)
    given.outcomes[key] = spoken(an_outcome())
    path = tmp_path / "theory.html"
    path.write_bytes(ask(given, "export", {"shown": 0}).arrays["html"].tobytes())
    page = site.page(f"{path.as_uri()}#view=theory", offline=True)
    page.locator(".verdict").wait_for()
    return page


def test_a_file_shows_what_was_run_before(moving: Any) -> None:
    assert moving.locator("[data-experiment]").count() == 1
    assert moving.get_by_text("As it was run: keys 64, seed 2.").is_visible()
    assert moving.get_by_role("button", name="Run").count() == 0
    assert moving.locator("[data-holds=false] b").text_content() == "✓ rejected"
    assert moving.get_by_text("0.2500 1.2500 2.2500 3.2500 4.2500 5.2500 … (7 numbers)").is_visible()
    corner = moving.locator("canvas.matrix-image").evaluate(
        "(canvas) => [...canvas.getContext('2d').getImageData(1, 1, 1, 1).data]"
    )
    assert corner[0] > 150 and corner[2] < 100  # the largest, of those above 0: red


def covered(page: Any, x: float, y: float) -> bool:
    """Whether something is drawn at a place of the circle of radius 1."""
    return bool(
        page.locator("canvas.motion").evaluate(
            """(canvas, [x, y]) => {
              const size = (canvas.width / 380) * (190 - 12);
              const [left, top] = [canvas.width / 2 + x * size, canvas.height / 2 - y * size];
              return canvas.getContext("2d").getImageData(left, top, 1, 1).data[3] > 100;
            }""",
            [x, y],
        )
    )


def test_points_move_when_played_and_when_the_moment_is_chosen(moving: Any) -> None:
    points = an_outcome().motion.points  # type: ignore[union-attr]
    inward = 0.985  # beside the line of the circle itself, within a dot
    assert all(covered(moving, *(inward * place)) for place in points[0])
    assert not covered(moving, -inward, 0)
    assert moving.locator(".theory-panel .slider output").first.text_content() == "t = 0"
    moving.get_by_label("Moment", exact=True).fill("1")
    assert not covered(moving, *(inward * points[0, 0]))
    assert all(covered(moving, *(inward * place)) for place in points[1])
    moving.get_by_role("button", name="Play").click()  # from the beginning, since it was at the end
    moving.wait_for_selector("canvas.motion[data-moment='0']")
    moving.get_by_role("button", name="Pause").click()
    assert moving.get_by_role("button", name="Play").is_visible()


def test_a_file_made_before_anything_was_run_says_that_python_computes(site: Site, tmp_path: Path) -> None:
    path = tmp_path / "none.html"
    path.write_bytes(ask(explorer(4, 4), "export", {"shown": 0}).arrays["html"].tobytes())
    page = site.page(f"{path.as_uri()}#view=theory", offline=True)
    page.get_by_text("Experiments are computed by Python").wait_for()
