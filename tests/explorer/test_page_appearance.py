"""Appearance and accessibility of the page: markup as text, themes, narrow screens, contrast, names and focus."""

import re
from dataclasses import dataclass
from typing import Any

import pytest

from regard.explorer import bundle
from tests.chromium import needs_chromium
from tests.explorer.browser import HEAD, LAYER, VIEWS, Site, wait_until_idle

MARKUP = '<img src=x onerror="document.title=1"><b>bold</b> <script>document.title=2</script> &amp; "quoted"'


@pytest.fixture(scope="module")
def shared_site(shared_site: Site) -> Site:
    return shared_site.with_text(MARKUP)


def open_view(page: Any, view: str) -> None:
    """Open another view of the page."""
    page.locator(f"a[data-view={view}]").click()
    page.locator(f"a[data-view={view}][aria-current]").wait_for()
    wait_until_idle(page)


@dataclass(frozen=True)
class Appearance:
    """A view: the title of the page, elements that the text's markup created, pixels beyond the width, and controls."""

    title: str
    num_markup_elements: int
    overflow: int
    num_alerts: int
    unnamed_controls: list[str]


def read_appearances(page: Any) -> dict[str, Appearance]:
    """Open every view of a page and return their appearances."""
    appearances = {}
    for view in VIEWS:
        open_view(page, view)
        appearances[view] = Appearance(
            page.title(),
            page.locator("#regard img, #regard b:text('bold'), #regard script").count(),
            page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"),
            page.locator(".alert:not([hidden])").count(),
            unnamed_controls(page),
        )
    return appearances


@pytest.fixture(scope="module")
def appearances(shared_site: Site) -> dict[str, Appearance]:
    """The views on a wide screen."""
    return read_appearances(shared_site.page(f"view=overview&layer={LAYER}&head={HEAD}&query=5&key=2&pinned=5"))


@pytest.fixture(scope="module")
def phone_appearances(shared_site: Site) -> dict[str, Appearance]:
    """The views on a phone, without a pinned token."""
    return read_appearances(shared_site.page(f"layer={LAYER}&head={HEAD}", width=390, height=844))


@needs_chromium
def test_markup_is_shown_as_text(site: Site, appearances: dict[str, Appearance]) -> None:
    for view, appearance in appearances.items():
        assert appearance.title.startswith("<img") and appearance.title.endswith(" · regard"), view
        assert appearance.num_markup_elements == 0, view


@needs_chromium
def test_tokens_of_markup_are_its_characters(site: Site) -> None:
    page = site.page(f"view=text&layer={LAYER}&head={HEAD}")
    displayed = "".join(token.text_content() for token in page.locator(".token").all())
    assert displayed.replace(" ", "").replace("·", "") == MARKUP.replace(" ", "")  # a token of spaces is shown as dots


@needs_chromium
def test_no_view_scrolls_sideways(
    site: Site, appearances: dict[str, Appearance], phone_appearances: dict[str, Appearance]
) -> None:
    for view, appearance in [*appearances.items(), *phone_appearances.items()]:
        assert appearance.overflow <= 0, view
        assert appearance.num_alerts == 0, view


@needs_chromium
def test_touch_leads_from_overview_to_arithmetic_on_a_phone(site: Site) -> None:
    page = site.page("view=overview", width=390, height=844, has_touch=True, is_mobile=True)
    page.locator(f"button.head-card[data-layer='{LAYER}'][data-head='{HEAD}']").tap()
    page.locator("canvas.map[data-frame]").wait_for()
    wait_until_idle(page)
    box = page.locator("canvas.map").bounding_box()
    page.touchscreen.tap(box["x"] + 0.4 * box["width"], box["y"] + 0.7 * box["height"])
    page.get_by_role("button", name="Show arithmetic").tap()
    page.locator(".arithmetic-headline output").wait_for()


@needs_chromium
def test_theme_follows_the_system_until_one_is_selected(site: Site) -> None:
    page = site.page("view=overview", color_scheme="dark")
    assert page.locator("#regard").get_attribute("data-theme") == "dark"
    page.emulate_media(color_scheme="light")
    page.locator("#regard[data-theme=light]").wait_for()
    page.get_by_label("Theme: System").click()
    page.get_by_label("Theme: Light").click()
    assert page.locator("#regard").get_attribute("data-theme") == "dark"


def luminance(color: str) -> float:
    """Return the relative luminance of a color such as "#102030", as WCAG defines it."""
    parts = [int(color[n : n + 2], 16) / 255 for n in (1, 3, 5)]
    linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("text_color", ["ink", "muted", "query", "key", "value", "negative"])
@pytest.mark.parametrize("background", ["paper", "card"])
def test_text_has_enough_contrast(theme: str, text_color: str, background: str) -> None:
    style = bundle.read_frontend_file("styles/style.css").decode()
    block = re.search(rf'\.regard\[data-theme="{theme}"\] \{{(.*?)\}}', style, re.S)
    assert block is not None
    colors = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", block[1]))
    darker, lighter = sorted((luminance(colors[text_color]), luminance(colors[background])))
    assert (lighter + 0.05) / (darker + 0.05) >= 4.5  # level AA of WCAG


@needs_chromium
def test_every_control_has_an_accessible_name(
    site: Site, appearances: dict[str, Appearance], phone_appearances: dict[str, Appearance]
) -> None:
    for view, appearance in [*appearances.items(), *phone_appearances.items()]:
        assert appearance.unnamed_controls == [], view


def unnamed_controls(page: Any) -> Any:
    """Return the visible controls without an accessible name."""
    return page.evaluate(
        """() => [...document.querySelectorAll("button, a, input, select, textarea, canvas[tabindex]")]
          .filter((node) => node.offsetParent !== null)
          .filter((node) => !(node.getAttribute("aria-label") || node.textContent.trim() || node.labels?.length))
          .map((node) => node.outerHTML)"""
    )


@needs_chromium
def test_focus_is_visible(site: Site) -> None:
    page = site.page("view=overview")
    page.keyboard.press("Tab")
    outlines: list[Any] = []
    for _ in range(12):
        page.keyboard.press("Tab")
        outlines.append(page.evaluate("getComputedStyle(document.activeElement).outlineStyle"))
    assert set(outlines) <= {"solid", "auto"}


@needs_chromium
def test_reduced_motion_turns_off_transitions(site: Site) -> None:
    page = site.page("view=overview", reduced_motion="reduce")
    num_animated = page.evaluate(
        """() => [...document.querySelectorAll("#regard *")]
          .filter((node) => parseFloat(getComputedStyle(node).transitionDuration) > 0).length"""
    )
    assert num_animated == 0


@needs_chromium
def test_back_opens_the_previous_view(site: Site) -> None:
    page = site.page("view=overview")
    page.wait_for_url(re.compile("text="))  # the first address is complete
    page.get_by_role("link", name="Cost").click()
    page.locator(".cost-view").wait_for()
    page.wait_for_url(re.compile("view=cost"))
    page.go_back()
    page.locator(".overview").wait_for()


def test_modules_are_short_documented_and_load_nothing_remote() -> None:
    for path in bundle.frontend_files():
        text = bundle.read_frontend_file(path).decode()
        assert not re.search(r"https?://(?!www\.w3\.org/)", text), path
        if path.endswith(".js"):
            assert text.startswith("// "), f"{path} must begin with a comment"
            assert "innerHTML" not in text, path
            assert len(text.splitlines()) <= 300, path
