"""Chromium, which drives the tests of the explorer's page and of the documentation site."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
CHROMIUM_FLAGS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-dev-shm-usage"
).split()

needs_chromium = pytest.mark.skipif(
    CHROMIUM is None,
    reason="Chromium is required: use apt-get install chromium, or put chromium on the PATH",
)


@contextmanager
def chromium() -> Iterator[Any]:
    """Start Chromium; a process can run one at a time."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is required: use pip install playwright")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, headless=True, args=CHROMIUM_FLAGS)
        try:
            yield browser
        finally:
            browser.close()


@cache
def open_window(browser: Any, width: int, height: int, **options: Any) -> Any:
    """Return a context that keeps an empty page open. Its other pages are tabs, because a window takes half a second.

    Tabs with the same options share a profile, so this is for pages that store nothing in the browser.
    """
    context = browser.new_context(viewport={"width": width, "height": height}, **options)
    context.new_page()
    return context


@contextmanager
def offline_page(browser: Any) -> Iterator[Any]:
    """Open a page of the file system; fail at the end if it used the network or reported an error."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    problems: list[str] = []
    page.on("request", lambda request: request.url.startswith("http") and problems.append(request.url))
    page.on("console", lambda message: message.type == "error" and problems.append(message.text))
    page.on("pageerror", lambda error: problems.append(str(error)))
    yield page
    page.close()
    assert problems == []
