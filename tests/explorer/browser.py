"""Helpers that drive the page in Chromium, and the expected values from a recording made without the explorer."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import regard
from regard.explorer import bundle
from regard.models.bundled import language_model
from tests.chromium import open_window
from tests.explorer.server_process import ServerProcess, run_server

SENTENCE = " The captain saw the white whale and the boats went down. The captain saw the white whale"
LAYER, HEAD = 1, 5  # an induction head
VIEWS = re.findall(r'name: "(\w+)"', bundle.read_frontend_file("app/view-list.js").decode())
SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")


@dataclass
class Site:
    """A server and a browser. Pages with the same options share a window; errors of all pages are collected."""

    server: ServerProcess
    browser: Any
    session: int = 0  # the id of the session that pages open
    errors: list[str] = field(default_factory=list)

    def with_text(self, text: str) -> "Site":
        """Return a site of the same server and browser whose pages open another text."""
        session = self.server.request("run_model", text=text, model="language").values["id"]
        return Site(self.server, self.browser, int(session))

    def page(self, address: str = "", *, width: int = 1280, height: int = 720, **options: Any) -> Any:
        """Open a page at a URL, or at the server with this part after "#"."""
        page = open_window(self.browser, width, height, **options).new_page()
        page.set_default_timeout(20_000)
        page.pending_requests = set()
        page.on("request", lambda request: page.pending_requests.add(request) if is_awaited(request.url) else None)
        for event in ("requestfinished", "requestfailed"):
            page.on(event, lambda request: page.pending_requests.discard(request))
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", lambda message: self.errors.append(message.text) if message.type == "error" else None)
        if "://" not in address:
            session = f"session={self.session}&" if self.session else ""
            address = f"{self.server.address}#{session}{address}"
        page.goto(address)
        page.wait_for_selector("main > section")
        return page

    def close_pages(self) -> None:
        """Close all pages; fail if one of them reported an error."""
        for context in self.browser.contexts:
            for page in context.pages[1:]:  # the first one keeps the window open
                page.close()
        errors, self.errors = self.errors, []
        assert not errors, errors

    def ignore_bad_requests(self) -> None:
        """Drop the errors that Chromium logs for responses with status 400."""
        self.errors[:] = [error for error in self.errors if "400" not in error]


def is_awaited(url: str) -> bool:
    """Return whether `wait_until_idle` waits for a request; the table of heads and the progress may come later."""
    return not url.endswith(("api/heads", "api/progress"))


@contextmanager
def open_site(browser: Any, *texts: str) -> Iterator[Site]:
    """Start a server of a text, or of the example, and check its pages for errors at the end."""
    with run_server(*texts) as server:
        site = Site(server, browser)
        yield site
        site.close_pages()


@cache
def record_text(text: str = SENTENCE) -> tuple[regard.Recording, list[str]]:
    """Return a recording of the bundled language model on a text, and the tokens."""
    model, tokenizer = language_model()
    ids = tokenizer.encode(text)
    with torch.no_grad(), regard.record(model) as recording:
        model(torch.tensor([ids]))
    recording.tokens = tokenizer.token_texts(ids)
    return recording, tokenizer.token_texts(ids)


@cache
def weights(text: str = SENTENCE, layer: int = LAYER, head: int = HEAD) -> Tensor:
    """Return the weights of a head, computed by the reference backend from the recorded call."""
    call = record_text(text)[0].layer_named(layer).merged_call
    q, k, v = (x[:1] for x in (call.q, call.k, call.v))
    result = regard.attention_with_weights(q, k, v, **call.options, backend="reference")
    return result.weights.to_dense()[0, head].float()


def parse_number(text: str) -> float:
    """Parse a number in the format of the page, such as "−0.25" or "1.1·10⁻⁵"."""
    plain = text.strip().replace("−", "-").replace(",", "")
    match = re.fullmatch(r"(-?[\d.]+)(?:·10([⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+))?", plain)
    assert match is not None, text
    return float(match[1]) * 10.0 ** int(match[2].translate(SUPERSCRIPTS) if match[2] else 0)


def is_close(displayed: str | float, expected: float) -> bool:
    """Return whether a displayed number equals the expected one, up to the displayed digits."""
    value = parse_number(displayed) if isinstance(displayed, str) else displayed
    return abs(value - expected) <= 0.6e-4 + 0.06 * min(abs(expected), 1e-3)


@dataclass(frozen=True)
class Frame:
    """The position of a map on its canvas: the corner of the plot, and the first visible key and query."""

    left: float
    top: float
    key: float
    query: float
    pixels_per_token: float
    level: int


def read_frame(page: Any, canvas: str = "canvas.map") -> Frame:
    """Return the frame of the last drawing of a map."""
    page.wait_for_selector(f"{canvas}[data-frame]", state="attached")
    values = page.locator(canvas).first.get_attribute("data-frame").split()
    return Frame(*map(float, values[:5]), int(values[5]))


def cell_center(page: Any, query: float, key: float, canvas: str = "canvas.map") -> tuple[float, float]:
    """Return the position of a cell's center on the screen."""
    box, frame = page.locator(canvas).first.bounding_box(), read_frame(page, canvas)
    x = box["x"] + frame.left + (key + 0.5 - frame.key) * frame.pixels_per_token
    y = box["y"] + frame.top + (query + 0.5 - frame.query) * frame.pixels_per_token
    return x, y


def wait_until_idle(page: Any) -> None:
    """Wait until the page has had no pending request for a tenth of a second, and has drawn."""
    idle_polls = 0
    while idle_polls < 5:
        page.wait_for_timeout(20)
        idle_polls = 0 if page.pending_requests else idle_polls + 1
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def stage_values(page: Any, name: str) -> list[list[float]]:
    """Return the matrix of a stage of the Steps view at full precision."""
    rows = page.locator(f".stage-card[data-stage='{name}'] tbody tr")
    texts = rows.evaluate_all("rows => rows.map((row) => [...row.querySelectorAll('td')].map((cell) => cell.title))")
    return [[float(text) for text in row] for row in texts]


def export_file(page: Any, item: str, folder: Path) -> Path:
    """Choose an item of the export menu; return the downloaded file."""
    page.get_by_text("Export", exact=True).click()
    with page.expect_download(timeout=120_000) as download:
        page.get_by_role("button", name=item).click()
    path = folder / download.value.suggested_filename
    download.value.save_as(path)
    return path
