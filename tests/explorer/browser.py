"""The page in a real Chromium, on a real server; and what it should show, from a recording made here."""

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import regard
from regard.models.shipped import language_model
from tests.explorer.served import Served, serving

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
HOW = "the page is tested in Chromium, which is not here: use apt-get install chromium, or put chromium on the PATH"
FLAGS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-dev-shm-usage"
).split()
SENTENCE = " The captain saw the white whale and the boats went down. The captain saw the white whale"
LAYER, HEAD = 1, 5  # a head that looks for what followed the last time
SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")

needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason=HOW)


@dataclass
class Site:
    """A server and a browser; each page has a profile of its own, and no error of it goes unheard."""

    server: Served
    browser: Any
    shown: int = 0  # the number of the text that its pages show
    errors: list[str] = field(default_factory=list)

    def reading(self, text: str) -> "Site":
        """The same server and browser with another text."""
        return Site(self.server, self.browser, int(self.server.ask("run", text=text, model="language").values["id"]))

    def page(self, address: str = "", *, width: int = 1280, height: int = 720, **options: Any) -> Any:
        """A page at an address after "#", or at a whole one."""
        context = self.browser.new_context(viewport={"width": width, "height": height}, **options)
        page = context.new_page()
        page.set_default_timeout(20_000)
        page.waiting = set()
        page.on("request", lambda request: page.waiting.add(request) if is_short(request.url) else None)
        for over in ("requestfinished", "requestfailed"):
            page.on(over, lambda request: page.waiting.discard(request))
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", lambda said: self.errors.append(said.text) if said.type == "error" else None)
        if "://" not in address:
            shown = f"shown={self.shown}&" if self.shown else ""
            address = f"{self.server.address}#{shown}{address}"
        page.goto(address)
        page.wait_for_selector("main > section")
        return page

    def rest(self) -> None:
        """Closes what is open; nothing may have gone wrong in it."""
        for context in self.browser.contexts:
            context.close()
        errors, self.errors = self.errors, []
        assert not errors, errors


def is_short(address: str) -> bool:
    """Whether a view cannot be drawn without this: a table of all heads comes when it comes."""
    return not address.endswith(("ask/heads", "ask/progress"))


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser; a process can have one at a time."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="the page is driven by playwright: use pip install playwright"
    )
    with playwright.sync_playwright() as driver:
        made = driver.chromium.launch(executable_path=CHROMIUM, headless=True, args=FLAGS)
        try:
            yield made
        finally:
            made.close()


@contextmanager
def opened(browser: Any, *texts: str) -> Iterator[Site]:
    """A site that shows a text, or the example."""
    with serving(*texts) as server:
        site = Site(server, browser)
        yield site
        site.rest()


@cache
def recorded(text: str = SENTENCE) -> tuple[regard.Tape, list[str]]:
    """What the shipped model attends to, without the explorer; and the tokens."""
    model, tokens = language_model()
    ids = tokens.encode(text)
    with torch.no_grad(), regard.record(model) as tape:
        model(torch.tensor([ids]))
    tape.tokens = tokens.texts(ids)
    return tape, tokens.texts(ids)


@cache
def weights(text: str = SENTENCE, layer: int = LAYER, head: int = HEAD) -> Tensor:
    """A head's matrix by `regard.attend` on what was recorded."""
    take = recorded(text)[0].find_layer(layer).take
    q, k, v = (x[:1] for x in (take.q, take.k, take.v))
    return regard.attend(q, k, v, **take.options, engine="reference").weights.dense()[0, head].float()


def number(text: str) -> float:
    """A number as the page writes it."""
    plain = text.strip().replace("−", "-").replace("\u202f", "")
    found = re.fullmatch(r"(-?[\d.]+)(?:·10([⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+))?", plain)
    assert found is not None, text
    return float(found[1]) * 10.0 ** int(found[2].translate(SUPERSCRIPTS) if found[2] else 0)


def near(shown: str | float, right: float) -> bool:
    """Whether a shown number is the right one, to the digits that are shown."""
    value = number(shown) if isinstance(shown, str) else shown
    return abs(value - right) <= 0.6e-4 + 0.06 * min(abs(right), 1e-3)


@dataclass(frozen=True)
class Frame:
    """Where a map lies on its canvas: the plot's corner, the first key and query in view, pixels a token, its level."""

    left: float
    top: float
    key: float
    query: float
    unit: float
    level: int


def frame(page: Any, canvas: str = "canvas.map") -> Frame:
    page.wait_for_selector(f"{canvas}[data-frame]", state="attached")
    found = page.locator(canvas).first.get_attribute("data-frame").split()
    return Frame(*map(float, found[:5]), int(found[5]))


def at(page: Any, query: float, key: float, canvas: str = "canvas.map") -> tuple[float, float]:
    """The middle of a cell on the screen."""
    box, where = page.locator(canvas).first.bounding_box(), frame(page, canvas)
    x = box["x"] + where.left + (key + 0.5 - where.key) * where.unit
    y = box["y"] + where.top + (query + 0.5 - where.query) * where.unit
    return x, y


def settled(page: Any) -> None:
    """Waits until the page has asked for nothing for a tenth of a second, and has drawn what it got."""
    quiet = 0
    while quiet < 5:
        page.wait_for_timeout(20)
        quiet = 0 if page.waiting else quiet + 1
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def stage(page: Any, name: str) -> list[list[float]]:
    """The matrix of a stage of Steps, in full."""
    rows = page.locator(f".stage-card[data-stage='{name}'] tbody tr").all()
    return [[float(cell.get_attribute("title")) for cell in row.locator("td").all()] for row in rows]


def saved(page: Any, choice: str, folder: Path) -> Path:
    """What the menu of exports lets the browser save."""
    page.get_by_text("Export", exact=True).click()
    with page.expect_download(timeout=120_000) as coming:
        page.get_by_role("button", name=choice).click()
    path = folder / coming.value.suggested_filename
    coming.value.save_as(path)
    return path
