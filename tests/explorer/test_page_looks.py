"""How the page looks and to whom it speaks: markup as text, light and dark, narrow screens, contrast."""

import re
from importlib.resources import files
from typing import Any

import pytest

from tests.explorer.browser import HEAD, LAYER, Site, needs_chromium, settled

VIEWS = ["overview", "map", "text", "lines", "arithmetic", "generate", "compare", "steps", "cost", "theory"]
MARKUP = '<img src=x onerror="document.title=1"><b>bold</b> <script>document.title=2</script> &amp; "quoted"'
STATIC = files("regard.explorer") / "static"


@pytest.fixture(scope="module")
def shared(shared: Site) -> Site:
    return shared.reading(MARKUP)


def go(page: Any, view: str) -> None:
    """To another view of the same page."""
    page.locator(f"a[data-view={view}]").click()
    page.locator(f"a[data-view={view}][aria-current]").wait_for()
    settled(page)


@needs_chromium
def test_markup_is_shown_as_text(site: Site) -> None:
    page = site.page(f"view=overview&layer={LAYER}&head={HEAD}&query=5&key=2&locked=5")
    for view in VIEWS:
        go(page, view)
        assert page.title() == "regard", view
        assert page.locator("#regard img, #regard b:text('bold'), #regard script").count() == 0, view


@needs_chromium
def test_markup_is_read_letter_by_letter(site: Site) -> None:
    page = site.page(f"view=text&layer={LAYER}&head={HEAD}")
    shown = "".join(t.text_content() for t in page.locator(".token").all())
    assert shown.replace(" ", "").replace("·", "") == MARKUP.replace(" ", "")  # a space of its own is shown as a dot


@needs_chromium
@pytest.mark.parametrize("width", [1280, 390])
def test_every_view_fits_its_screen(site: Site, width: int) -> None:
    page = site.page(f"layer={LAYER}&head={HEAD}", width=width, height=720 if width > 400 else 844)
    for view in VIEWS:
        go(page, view)
        wide = page.evaluate("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
        assert wide[0] <= wide[1], view
        assert page.locator(".alert:not([hidden])").count() == 0, view


@needs_chromium
def test_a_finger_finds_its_way_on_a_phone(site: Site) -> None:
    page = site.page("view=overview", width=390, height=844, has_touch=True, is_mobile=True)
    page.locator(f"button.card[data-layer='{LAYER}'][data-head='{HEAD}']").tap()
    page.locator("canvas.map[data-frame]").wait_for()
    settled(page)
    box = page.locator("canvas.map").bounding_box()
    page.touchscreen.tap(box["x"] + 0.4 * box["width"], box["y"] + 0.7 * box["height"])
    page.get_by_role("button", name="Show the arithmetic").tap()
    page.locator(".headline output").wait_for()


@needs_chromium
def test_the_theme_follows_the_system_until_somebody_chooses(site: Site) -> None:
    page = site.page("view=overview", color_scheme="dark")
    assert page.locator("#regard").get_attribute("data-theme") == "dark"
    page.emulate_media(color_scheme="light")
    page.locator("#regard[data-theme=light]").wait_for()
    page.get_by_label("Colours: As the system").click()
    page.get_by_label("Colours: Light").click()
    assert page.locator("#regard").get_attribute("data-theme") == "dark"


def luminance(colour: str) -> float:
    parts = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
    linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("ink", ["ink", "soft", "query", "key", "value", "less"])
@pytest.mark.parametrize("paper", ["paper", "card"])
def test_every_ink_reads_on_every_paper(theme: str, ink: str, paper: str) -> None:
    style = (STATIC / "style.css").read_text()
    block = re.search(rf'\.regard\[data-theme="{theme}"\] \{{(.*?)\}}', style, re.S)
    assert block is not None
    colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", block[1]))
    one, other = sorted((luminance(colours[ink]), luminance(colours[paper])))
    assert (other + 0.05) / (one + 0.05) >= 4.5  # what WCAG calls AA


@needs_chromium
def test_everything_that_can_be_pressed_has_a_name(site: Site) -> None:
    page = site.page(f"layer={LAYER}&head={HEAD}")
    for view in VIEWS:
        go(page, view)
        assert nameless(page) == [], view


def nameless(page: Any) -> Any:
    """What a reader of screens could not name."""
    return page.evaluate(
        """() => [...document.querySelectorAll("button, a, input, select, textarea, canvas[tabindex]")]
          .filter((node) => node.offsetParent !== null)
          .filter((node) => !(node.getAttribute("aria-label") || node.textContent.trim() || node.labels?.length))
          .map((node) => node.outerHTML)"""
    )


@needs_chromium
def test_focus_is_seen(site: Site) -> None:
    page = site.page("view=overview")
    page.keyboard.press("Tab")
    outlines: list[Any] = []
    for _ in range(12):
        page.keyboard.press("Tab")
        outlines.append(page.evaluate("getComputedStyle(document.activeElement).outlineStyle"))
    assert set(outlines) <= {"solid", "auto"}


@needs_chromium
def test_nothing_moves_for_those_who_do_not_want_it(site: Site) -> None:
    page = site.page("view=overview", reduced_motion="reduce")
    moving = page.evaluate(
        """() => [...document.querySelectorAll("#regard *")]
          .filter((node) => parseFloat(getComputedStyle(node).transitionDuration) > 0).length"""
    )
    assert moving == 0


@needs_chromium
def test_going_back_goes_to_the_view_before(site: Site) -> None:
    page = site.page("view=overview")
    page.get_by_role("link", name="Cost").click()
    page.locator(".cost-view").wait_for()
    page.wait_for_timeout(300)
    page.go_back()
    page.locator(".overview").wait_for()


def test_modules_are_small_say_what_they_are_and_ask_for_nothing_remote() -> None:
    for file in STATIC.iterdir():
        text = file.read_text()
        assert not re.search(r"https?://(?!www\.w3\.org/)", text), file.name
        if file.name.endswith(".js"):
            assert text.startswith("// "), f"{file.name} must open with a sentence"
            assert "innerHTML" not in text, file.name
            assert len(text.splitlines()) <= 300, file.name
