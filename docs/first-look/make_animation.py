"""Record the moving picture of the README: a sentence, all heads, an induction head, and the arithmetic of one weight.

    .venv/bin/python docs/first-look/make_animation.py

Needs Chromium on the PATH and the package playwright.
"""

import io
import shutil
import subprocess
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

HERE = Path(__file__).parent
SENTENCE = "The captain saw the white whale and the boats went down. The captain saw the white whale"
VIEWPORT = {"width": 1280, "height": 720}
WHITE_TO_WHALE = 218, 603  # pixels of the cell of the second "white" and the first "whale"
MAX_BYTES = 1_000_000


class Film:
    """Pictures of a page, each with the time for which it is shown."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.frames: list[Image.Image] = []
        self.durations_ms: list[int] = []

    def show(self, duration_ms: int) -> None:
        picture = Image.open(io.BytesIO(self.page.screenshot())).convert("RGB")
        self.frames.append(picture)
        self.durations_ms.append(duration_ms)

    def save(self, path: Path) -> None:
        first, *others = self.frames
        first.save(
            path, save_all=True, append_images=others, duration=self.durations_ms, loop=0, quality=72, method=6, kmax=40
        )


def main() -> None:
    command = [sys.executable, "-m", "regard.cli", "explore", " The captain", "--no-browser"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    address = server.stdout.readline().strip()
    try:
        with sync_playwright() as driver:
            browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            page = browser.new_page(viewport=VIEWPORT, reduced_motion="reduce")
            page.goto(address)
            page.wait_for_selector("main > section")
            film = Film(page)
            act(page, film)
            film.save(HERE / "explorer.webp")
            browser.close()
    finally:
        server.terminate()
    size = (HERE / "explorer.webp").stat().st_size
    assert size < MAX_BYTES


def act(page: Page, film: Film) -> None:
    """Type the sentence, run the model, and open an induction head, one of its weights and the arithmetic."""
    text = page.get_by_label("Text for the model")
    words = SENTENCE.split()
    for count in range(2, len(words) + 1):
        text.fill(" " + " ".join(words[:count]))
        film.show(120)
    page.get_by_role("button", name="Run").click()
    page.get_by_text(f"{len(words) + 1} tokens").wait_for()  # the full stop is a token
    settle(page)
    film.show(2500)
    page.locator(".chip-group .chip[data-kind=induction]").click()
    settle(page)
    film.show(1500)
    page.get_by_role("button", name="Layer 1, head 5").click()
    settle(page)
    film.show(1200)
    page.mouse.click(*WHITE_TO_WHALE)
    page.get_by_text("0.9420").first.wait_for()
    settle(page)
    film.show(2600)
    page.get_by_role("button", name="Show arithmetic").click()
    settle(page)
    film.show(4000)


def settle(page: Page) -> None:
    """Wait until the page has loaded its data and its animations have ended."""
    page.wait_for_load_state("networkidle")
    page.wait_for_timeout(600)


if __name__ == "__main__":
    main()
