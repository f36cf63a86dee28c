"""Take the screenshots of docs/first-look.md and of the README.

    .venv/bin/python docs/first-look/make.py

Needs Chromium on the PATH and the package playwright.
"""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from playwright.sync_api import sync_playwright

HERE = Path(__file__).parent
SENTENCE = " The captain saw the white whale and the boats went down. The captain saw the white whale"
DATE_TEXT = "on friday , the twenty first of march nineteen eighty six"
CELL = {"layer": 1, "head": 5, "query": 16, "key": 5}
VIEWS: dict[str, dict[str, Any]] = {
    "overview": {"view": "overview"},
    "map": {"view": "map", **CELL},
    "text": {"view": "text", **CELL, "pinned": 16},
    "arithmetic": {"view": "arithmetic", **CELL},
    "steps": {"view": "steps"},
    "lines": {"view": "lines", **CELL},
    "dates": {"view": "lines", "layer": 5, "head": 0, "mass": 0.6, "text": DATE_TEXT, "model": "dates"},
    "generate": {"view": "generate", **CELL},
    "theory": {"view": "theory", "experiment": "token_clustering"},
}
READY_SELECTORS = {"dates": "svg.lines path[data-key='10']", "theory": ".verdict"}
VIEWPORT = {"width": 1280, "height": 720}


def main() -> None:
    command = [sys.executable, "-m", "regard.cli", "explore", SENTENCE, "--no-browser"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    address = server.stdout.readline().strip()
    try:
        with sync_playwright() as driver:
            browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            for name, fields in VIEWS.items():
                page = browser.new_page(viewport=VIEWPORT)
                page.goto(f"{address}#{urlencode(fields)}")
                page.wait_for_selector("main > section")
                prepare(page, name)
                page.wait_for_load_state("networkidle")
                page.wait_for_timeout(500)  # until animations have ended
                page.screenshot(path=HERE / f"{name}.png")
                page.close()
            browser.close()
    finally:
        server.terminate()


def prepare(page: Any, name: str) -> None:
    """Bring the page into the state of the screenshot."""
    if name in READY_SELECTORS:
        page.wait_for_selector(READY_SELECTORS[name], state="attached", timeout=120_000)
    if name == "generate":
        page.locator(".generate-view").get_by_role("button", name="Generate").click()
        page.get_by_label("Step", exact=True).fill("21")
    if name == "theory":
        page.get_by_label("Time", exact=True).fill("20")


if __name__ == "__main__":
    main()
