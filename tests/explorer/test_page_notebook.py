"""The widget in JupyterLab with a kernel, driven in Chromium."""

import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.chromium import needs_chromium
from tests.explorer.browser import HEAD, LAYER, SENTENCE, cell_center, is_close, weights

pytest.importorskip("jupyterlab", reason="JupyterLab is required: use pip install jupyterlab ipykernel")
pytestmark = needs_chromium

FIRST_CELL = f"""import torch, regard
from regard.models.bundled import language_model
model, tokenizer = language_model()
ids = tokenizer.encode({SENTENCE!r})
with torch.no_grad(), regard.record(model) as recording:
    model(torch.tensor([ids]))
recording.tokens = tokenizer.token_texts(ids)
widget = regard.explore(recording, title="first")
widget"""
CELLS = (FIRST_CELL, 'regard.explore(recording, title="second")', "widget")
KERNEL_TIMEOUT_MS = 120_000  # the kernel imports torch, perhaps on a busy machine


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a JupyterLab with one notebook."""
    folder = tmp_path_factory.mktemp("lab")
    cells = [
        {"cell_type": "code", "id": f"c{n}", "execution_count": None, "metadata": {}, "outputs": [], "source": source}
        for n, source in enumerate(CELLS)
    ]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    notebook = {"cells": cells, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}
    (folder / "explore.ipynb").write_text(json.dumps(notebook))
    import anywidget

    jupyter_path = Path(anywidget.__file__).parents[4] / "share" / "jupyter"  # contains its JupyterLab extension
    folders = {name: str(folder / name.lower()) for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "IPYTHONDIR")}
    command = [
        sys.executable,
        "-m",
        "jupyterlab",
        "--no-browser",
        "--port=0",
        "--allow-root",
        "--IdentityProvider.token=",
    ]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [*command, f"--ServerApp.root_dir={folder}"],
            stdout=log,
            stderr=log,
            env={**os.environ, **folders, "JUPYTER_PATH": str(jupyter_path), "OMP_NUM_THREADS": "1"},
        )
        try:
            yield wait_for_url(folder / "log", process)
        finally:
            process.terminate()
            process.wait(timeout=30)


def wait_for_url(log: Path, process: subprocess.Popen[bytes]) -> str:
    """Wait for the URL in the log of JupyterLab."""
    for _ in range(600):
        match = re.search(r"http://127\.0\.0\.1:\d+/", log.read_text())
        if match:
            urllib.request.urlopen(f"{match[0]}api", timeout=20).close()
            return match[0]
        assert process.poll() is None, log.read_text()
        time.sleep(0.1)
    raise AssertionError(log.read_text())


@pytest.fixture(scope="module")
def notebook(lab: str, browser: Any) -> Iterator[Any]:
    """The page of the notebook after all cells have run."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.errors = []
    page.on("pageerror", lambda error: page.errors.append(str(error)))
    page.goto(f"{lab}lab/tree/explore.ipynb")
    page.locator(".jp-Notebook").wait_for(timeout=KERNEL_TIMEOUT_MS)
    page.get_by_text("Python 3 (ipykernel) | Idle").wait_for(timeout=KERNEL_TIMEOUT_MS)
    choose_menu_item(page, "Run", "Run All Cells")
    page.locator(".regard-widget button.head-card").nth(95).wait_for(
        timeout=KERNEL_TIMEOUT_MS
    )  # three views of 32 heads
    yield page
    assert page.errors == []
    context.close()


def choose_menu_item(page: Any, menu: str, item: str) -> None:
    page.get_by_role("menuitem", name=menu, exact=True).click()
    page.get_by_role("menuitem", name=item, exact=True).click()


def open_map(page: Any, index: int) -> Any:
    """Open the map of a head in a widget; return the widget."""
    widget = page.locator(".regard-widget").nth(index)
    widget.scroll_into_view_if_needed()
    widget.get_by_role("link", name="Overview").click()
    widget.locator(f"button.head-card[data-layer='{LAYER}'][data-head='{HEAD}']").click()
    widget.locator("canvas.map[data-frame]").wait_for()
    page.mouse.wheel(0, 60)  # ends the scrolling of the notebook itself
    page.wait_for_timeout(500)
    return widget


def read_weight(page: Any, index: int, query: int, key: int) -> str:
    """Point at a cell of a widget's map; return the displayed weight."""
    widget = page.locator(".regard-widget").nth(index)
    widget.locator("canvas.map").scroll_into_view_if_needed()
    page.wait_for_timeout(300)
    page.mouse.move(*cell_center(page, query, key, f":nth-match(.regard-widget, {index + 1}) canvas.map"))
    widget.locator(".readout output:not(:empty)").wait_for()
    page.wait_for_timeout(300)
    return str(widget.locator(".readout output").text_content())


def test_a_widget_shows_exact_weights_and_arithmetic(notebook: Any) -> None:
    widget = open_map(notebook, 0)
    assert is_close(read_weight(notebook, 0, 16, 5), float(weights()[16, 5]))
    notebook.mouse.click(*cell_center(notebook, 16, 5, ":nth-match(.regard-widget, 1) canvas.map"))
    widget.get_by_role("button", name="Show arithmetic").click()
    widget.locator(".arithmetic-headline output").wait_for()
    assert is_close(widget.locator(".arithmetic-headline output").text_content(), float(weights()[16, 5]))


def test_several_widgets_and_two_views_of_one_are_independent(notebook: Any) -> None:
    open_map(notebook, 1)
    open_map(notebook, 2)
    assert is_close(read_weight(notebook, 1, 13, 1), float(weights()[13, 1]))
    assert is_close(read_weight(notebook, 2, 15, 4), float(weights()[15, 4]))
    titles = notebook.locator(".regard-widget .session-title").all_text_contents()
    assert [title.strip() for title in titles] == ["first", "second", "first"]


def test_keys_on_the_map_do_not_reach_the_notebook(notebook: Any) -> None:
    widget = open_map(notebook, 0)
    widget.locator("canvas.map").focus()
    for key in ["0", "0", "x", "d", "d", *["ArrowDown"] * 3, "ArrowRight"]:
        notebook.keyboard.press(key)
    notebook.wait_for_timeout(500)
    assert notebook.locator(".jp-Dialog").count() == 0  # 0 0 restarts the kernel in JupyterLab
    assert notebook.locator(".regard-widget").count() == 3  # D D deletes a cell
    assert "token 1" in widget.locator("[aria-live]").text_content()


def test_the_widget_fits_its_cell_and_follows_the_theme_of_the_notebook(notebook: Any) -> None:
    widget = notebook.locator(".regard-widget").first
    scroll_width, width, height = widget.evaluate("(node) => [node.scrollWidth, node.clientWidth, node.clientHeight]")
    assert scroll_width <= width
    assert height == 720
    assert widget.get_attribute("data-theme") == "light"
    notebook.evaluate("document.body.dataset.jpThemeLight = 'false'")
    notebook.wait_for_selector(".regard-widget[data-theme='dark']")
    notebook.evaluate("document.body.dataset.jpThemeLight = 'true'")


def test_running_a_cell_again_replaces_its_widget(notebook: Any) -> None:
    notebook.locator(".jp-Cell").nth(1).locator(".jp-InputArea").click()
    notebook.keyboard.press("Control+Enter")
    notebook.locator(".regard-widget").nth(1).locator("button.head-card").nth(31).wait_for()
    notebook.wait_for_timeout(500)
    assert notebook.locator(".regard-widget").count() == 3
    open_map(notebook, 1)
    assert is_close(read_weight(notebook, 1, 16, 5), float(weights()[16, 5]))


def test_a_missing_kernel_is_reported(notebook: Any) -> None:
    choose_menu_item(notebook, "Kernel", "Shut Down Kernel")
    widget = notebook.locator(".regard-widget").first
    widget.get_by_role("link", name="Lines").click()
    notebook.locator(".regard-kernel-notice:not([hidden])").first.wait_for()


def test_a_saved_notebook_has_a_text_output_with_instructions(notebook: Any, lab: str) -> None:
    notebook.keyboard.press("Control+s")
    notebook.wait_for_timeout(1500)
    content = json.loads(urllib.request.urlopen(f"{lab}api/contents/explore.ipynb", timeout=20).read())
    outputs = [output["data"]["text/plain"] for cell in content["content"]["cells"] for output in cell["outputs"]]
    assert "regard.explore: first, 4 layers. Run this cell to explore it." in "".join(outputs[0])
