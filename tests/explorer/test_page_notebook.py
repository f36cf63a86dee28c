"""The widget in a real JupyterLab, with a real kernel, driven in Chromium as a person would."""

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

from tests.explorer.browser import HEAD, LAYER, SENTENCE, at, near, needs_chromium, weights

pytest.importorskip("jupyterlab", reason="the widget is tested in JupyterLab: use pip install jupyterlab ipykernel")
pytestmark = needs_chromium

FIRST = f"""import torch, regard
from regard.models.shipped import language_model
model, tokens = language_model()
ids = tokens.encode({SENTENCE!r})
with torch.no_grad(), regard.record(model) as tape:
    model(torch.tensor([ids]))
tape.tokens = tokens.texts(ids)
one = regard.look(tape, title="first")
one"""
CELLS = (FIRST, 'regard.look(tape, title="second")', "one")
SECONDS = 120_000  # milliseconds: a kernel that imports torch on a busy machine


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a JupyterLab with one notebook."""
    folder = tmp_path_factory.mktemp("lab")
    cells = [
        {"cell_type": "code", "id": f"c{n}", "execution_count": None, "metadata": {}, "outputs": [], "source": source}
        for n, source in enumerate(CELLS)
    ]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    notebook = {"cells": cells, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}
    (folder / "look.ipynb").write_text(json.dumps(notebook))
    import anywidget

    shared = Path(anywidget.__file__).parents[4] / "share" / "jupyter"  # where its part for JupyterLab is
    own = {name: str(folder / name.lower()) for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "IPYTHONDIR")}
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
            env={**os.environ, **own, "JUPYTER_PATH": str(shared), "OMP_NUM_THREADS": "1"},
        )
        try:
            yield address(folder / "log", process)
        finally:
            process.terminate()
            process.wait(timeout=30)


def address(log: Path, process: subprocess.Popen[bytes]) -> str:
    for _ in range(600):
        found = re.search(r"http://127\.0\.0\.1:\d+/", log.read_text())
        if found:
            urllib.request.urlopen(f"{found[0]}api", timeout=20).close()
            return found[0]
        assert process.poll() is None, log.read_text()
        time.sleep(0.1)
    raise AssertionError(log.read_text())


@pytest.fixture(scope="module")
def notebook(lab: str, browser: Any) -> Iterator[Any]:
    """The notebook, all cells run."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.errors = []
    page.on("pageerror", lambda error: page.errors.append(str(error)))
    page.goto(f"{lab}lab/tree/look.ipynb")
    page.locator(".jp-Notebook").wait_for(timeout=SECONDS)
    page.get_by_text("Python 3 (ipykernel) | Idle").wait_for(timeout=SECONDS)
    choose(page, "Run", "Run All Cells")
    page.locator(".regard-cell button.card").nth(95).wait_for(timeout=SECONDS)  # three views of 32 heads
    yield page
    assert page.errors == []
    context.close()


def choose(page: Any, menu: str, item: str) -> None:
    page.get_by_role("menuitem", name=menu, exact=True).click()
    page.get_by_role("menuitem", name=item, exact=True).click()


def opened_map(page: Any, number: int) -> Any:
    """The cell, with the map of a head open."""
    cell = page.locator(".regard-cell").nth(number)
    cell.scroll_into_view_if_needed()
    cell.get_by_role("link", name="Overview").click()
    cell.locator(f"button.card[data-layer='{LAYER}'][data-head='{HEAD}']").click()
    cell.locator("canvas.map[data-frame]").wait_for()
    page.mouse.wheel(0, 60)  # the notebook's own scrolling has settled afterwards
    page.wait_for_timeout(500)
    return cell


def pointed(page: Any, number: int, query: int, key: int) -> str:
    """What the map of a cell says about a weight."""
    cell = page.locator(".regard-cell").nth(number)
    cell.locator("canvas.map").scroll_into_view_if_needed()
    page.wait_for_timeout(300)
    page.mouse.move(*at(page, query, key, f":nth-match(.regard-cell, {number + 1}) canvas.map"))
    cell.locator(".readout output:not(:empty)").wait_for()
    page.wait_for_timeout(300)
    return str(cell.locator(".readout output").text_content())


def test_a_cell_shows_the_map_and_its_exact_weights(notebook: Any) -> None:
    cell = opened_map(notebook, 0)
    assert near(pointed(notebook, 0, 16, 5), float(weights()[16, 5]))
    notebook.mouse.click(*at(notebook, 16, 5, ":nth-match(.regard-cell, 1) canvas.map"))
    cell.get_by_role("button", name="Show the arithmetic").click()
    cell.locator(".headline output").wait_for()
    assert near(cell.locator(".headline output").text_content(), float(weights()[16, 5]))


def test_several_widgets_and_two_views_of_one_do_not_disturb_each_other(notebook: Any) -> None:
    opened_map(notebook, 1)
    opened_map(notebook, 2)
    assert near(pointed(notebook, 1, 13, 1), float(weights()[13, 1]))
    assert near(pointed(notebook, 2, 15, 4), float(weights()[15, 4]))
    titles = notebook.locator(".regard-cell .title").all_text_contents()
    assert [title.strip() for title in titles] == ["first", "second", "first"]


def test_keys_on_the_map_are_not_the_notebooks(notebook: Any) -> None:
    cell = opened_map(notebook, 0)
    cell.locator("canvas.map").focus()
    for key in ["0", "0", "x", "d", "d", *["ArrowDown"] * 3, "ArrowRight"]:
        notebook.keyboard.press(key)
    notebook.wait_for_timeout(500)
    assert notebook.locator(".jp-Dialog").count() == 0  # twice 0 restarts the kernel in JupyterLab
    assert notebook.locator(".regard-cell").count() == 3  # twice d takes a cell away
    assert "token 1" in cell.locator("[aria-live]").text_content()


def test_the_page_fits_its_cell_and_follows_the_notebooks_theme(notebook: Any) -> None:
    cell = notebook.locator(".regard-cell").first
    wide = cell.evaluate("(node) => [node.scrollWidth, node.clientWidth, node.clientHeight]")
    assert wide[0] <= wide[1]
    assert wide[2] == 720
    assert cell.get_attribute("data-theme") == "light"
    notebook.evaluate("document.body.dataset.jpThemeLight = 'false'")
    notebook.wait_for_selector(".regard-cell[data-theme='dark']")
    notebook.evaluate("document.body.dataset.jpThemeLight = 'true'")


def test_a_cell_that_is_run_again_is_a_page_of_its_own(notebook: Any) -> None:
    notebook.locator(".jp-Cell").nth(1).locator(".jp-InputArea").click()
    notebook.keyboard.press("Control+Enter")
    notebook.locator(".regard-cell").nth(1).locator("button.card").nth(31).wait_for()
    notebook.wait_for_timeout(500)
    assert notebook.locator(".regard-cell").count() == 3
    opened_map(notebook, 1)
    assert near(pointed(notebook, 1, 16, 5), float(weights()[16, 5]))


def test_a_kernel_that_is_gone_is_said(notebook: Any) -> None:
    choose(notebook, "Kernel", "Shut Down Kernel")
    cell = notebook.locator(".regard-cell").first
    cell.get_by_role("link", name="Lines").click()
    notebook.locator(".regard-late:not([hidden])").first.wait_for()


def test_a_saved_notebook_without_a_kernel_says_what_to_do(notebook: Any, lab: str) -> None:
    notebook.keyboard.press("Control+s")
    notebook.wait_for_timeout(1500)
    saved = json.loads(urllib.request.urlopen(f"{lab}api/contents/look.ipynb", timeout=20).read())
    outputs = [output["data"]["text/plain"] for cell in saved["content"]["cells"] for output in cell["outputs"]]
    assert "regard.look: first, 4 layers. Run this cell to look into it." in "".join(outputs[0])
