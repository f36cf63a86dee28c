"""The notebooks of the tutorials have the code of the scripts, and they and the pages show the outputs of the code."""

import ast
import base64
import contextlib
import io
import re
import sys
from pathlib import Path
from typing import Any

import matplotlib.image
import nbformat
import numpy as np
import pytest
from nbformat import NotebookNode

from tools.docs import tutorials

ROOT = Path(__file__).parents[2]
INDEX = (tutorials.FOLDER / "index.md").read_text(encoding="utf8")
NUMBER = re.compile(r"(?<![\w.])-?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?")
RELATIVE_TOLERANCE, ABSOLUTE_TOLERANCE = 0.02, 1e-9  # rounding differs between machines and numbers of threads
MAX_PIXEL_DIFFERENCE = 0.02  # mean over all pixels, of 1
SHORT = ["attention-from-scratch"]  # runs in two seconds


def numbers(text: str) -> list[float]:
    return [float(number.replace(",", "")) for number in NUMBER.findall(text)]


def text_differs(saved: str, output: str, varies: bool) -> bool:
    """Return whether two texts differ in a word, or in a number by more than rounding; with `varies`, in a word."""
    if varies:
        return NUMBER.sub("#", saved).split() != NUMBER.sub("#", output).split()
    close = len(numbers(saved)) == len(numbers(output)) and np.allclose(
        numbers(saved), numbers(output), rtol=RELATIVE_TOLERANCE, atol=ABSOLUTE_TOLERANCE
    )
    return not close or NUMBER.sub("#", saved).split() != NUMBER.sub("#", output).split()


def picture_differs(saved: bytes | None, output: bytes | None, varies: bool) -> bool:
    if saved is None or output is None:
        return saved is not output
    before, after = (matplotlib.image.imread(io.BytesIO(picture)) for picture in (saved, output))
    if varies:
        return False
    return before.shape != after.shape or bool(np.abs(before - after).mean() > MAX_PIXEL_DIFFERENCE)


def different_cells(saved: NotebookNode, output: NotebookNode) -> list[str]:
    """Return the code of the cells whose outputs differ."""
    return [
        f"{before.source}\nsaved: {tutorials.cell_stdout(before)}\nnow: {tutorials.cell_stdout(after)}"
        for before, after in zip(saved.cells, output.cells, strict=True)
        if text_differs(tutorials.cell_stdout(before), tutorials.cell_stdout(after), varies(before))
        or picture_differs(tutorials.cell_picture(before), tutorials.cell_picture(after), varies(before))
    ]


def varies(cell: NotebookNode) -> bool:
    return bool(cell.metadata.get("varies", False))


def code_cells(notebook: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


@pytest.mark.parametrize("name", tutorials.names())
def test_a_notebook_has_the_cells_of_its_script(name: str) -> None:
    cells = [
        [(cell.id, cell.cell_type, cell.source, cell.metadata) for cell in notebook.cells]
        for notebook in (tutorials.saved_notebook(name), tutorials.script_notebook(name))
    ]
    assert cells[0] == cells[1], f"run python -m tools.docs.tutorials {name}"


@pytest.mark.parametrize("name", tutorials.names())
def test_a_notebook_is_valid_and_shows_printed_text_and_pictures_only(name: str) -> None:
    notebook = tutorials.saved_notebook(name)
    nbformat.validate(notebook)
    for cell in code_cells(notebook):
        for output in cell.outputs:
            kind = output.get("name") or next(iter(output.data))
            assert kind in ("stdout", "image/png"), cell.source
        assert (tutorials.cell_picture(cell) is None) == ("alt" not in cell.metadata), cell.source
    covers = [cell for cell in notebook.cells if cell.metadata.get("cover")]
    assert [tutorials.cell_picture(cell) for cell in covers] == [(tutorials.FOLDER / f"{name}.png").read_bytes()]


@pytest.mark.parametrize("name", tutorials.names())
def test_links_of_a_tutorial_lead_to_files(name: str) -> None:
    text = "\n".join(cell.source for cell in tutorials.saved_notebook(name).cells if cell.cell_type == "markdown")
    targets = [target.partition("#")[0] for target in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in target]
    assert targets
    assert [target for target in targets if not (tutorials.FOLDER / target).exists()] == []


@pytest.mark.parametrize("name", tutorials.names())
def test_a_tutorial_needs_the_extra_train_only(name: str) -> None:
    tree = ast.parse((tutorials.FOLDER / f"{name}.py").read_text(encoding="utf8"))
    modules = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    modules += [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    allowed = {"matplotlib", "networkx", "numpy", "regard", "sklearn", "torch", *sys.stdlib_module_names}
    assert {module.partition(".")[0] for module in modules} <= allowed


def test_the_index_and_the_navigation_have_every_tutorial() -> None:
    assert sorted(re.findall(r"\]\(([\w-]+)\.ipynb\)", INDEX)) == tutorials.names()
    assert sorted(re.findall(r"\]\(([\w-]+)\.png\)", INDEX)) == tutorials.names()
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf8")
    assert sorted(re.findall(r"- tutorials/([\w-]+)\.md", navigation)) == sorted(["index", *tutorials.names()])


@pytest.mark.parametrize("name", tutorials.names())
def test_a_page_shows_the_code_the_outputs_and_the_pictures(name: str) -> None:
    files = tutorials.generated_files()
    page = str(files[f"tutorials/{name}.md"])
    notebook = tutorials.saved_notebook(name)
    assert page.startswith("# ")
    assert f'href="{name}.ipynb" download' in page
    for cell in code_cells(notebook):
        assert cell.source.replace("%matplotlib inline\n", "") in page
        assert tutorials.cell_stdout(cell).rstrip() in page
    pictures = re.findall(rf"!\[(.+)\]\(({name}/[\w-]+\.png)\)", page)
    assert len(pictures) == sum(tutorials.cell_picture(cell) is not None for cell in notebook.cells) > 0
    assert all(files[f"tutorials/{path}"] for _, path in pictures)


@pytest.mark.parametrize("name", SHORT)
def test_the_code_prints_what_the_notebook_shows(name: str) -> None:
    namespace: dict[str, Any] = {}
    notebook = tutorials.saved_notebook(name)
    for cell in code_cells(notebook):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(cell.source.replace("%matplotlib inline\n", ""), namespace)
        assert not text_differs(tutorials.cell_stdout(cell), printed.getvalue(), varies(cell)), printed.getvalue()


@pytest.mark.long
@pytest.mark.parametrize("name", tutorials.names())
def test_a_notebook_shows_the_outputs_of_its_code(name: str) -> None:
    notebook = tutorials.script_notebook(name)
    tutorials.run(notebook)
    differences = different_cells(tutorials.saved_notebook(name), notebook)
    assert differences == [], "\n\n".join(differences)


def notebook_with(text: str, level: float = 0.0, **metadata: bool) -> NotebookNode:
    """Return a notebook with one cell that prints a text and shows a gray picture."""
    file = io.BytesIO()
    matplotlib.image.imsave(file, np.full((4, 4, 3), level), format="png")
    png = base64.b64encode(file.getvalue()).decode()
    outputs = [
        nbformat.v4.new_output("stream", text=text),
        nbformat.v4.new_output("display_data", {"image/png": png}),
    ]
    return nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("f()", outputs=outputs, metadata=metadata)])


@pytest.mark.parametrize(
    "saved, output, count",
    [
        (notebook_with("error 3e-16"), notebook_with("error 7e-16"), 0),
        (notebook_with("loss 0.500"), notebook_with("loss 0.504"), 0),
        (notebook_with("loss 0.500"), notebook_with("loss 0.600"), 1),
        (notebook_with("holds: 1"), notebook_with("fails: 1"), 1),
        (notebook_with("1 2"), notebook_with("1"), 1),
        (notebook_with("3.1 s", varies=True), notebook_with("4 s", varies=True), 0),
        (notebook_with("3.1 s", varies=True), notebook_with("3.1 ms", varies=True), 1),
        (notebook_with("", 0.5), notebook_with("", 0.51), 0),
        (notebook_with("", 0.5), notebook_with("", 0.7), 1),
    ],
)
def test_outputs_that_differ_by_more_than_rounding_are_reported(
    saved: NotebookNode, output: NotebookNode, count: int
) -> None:
    assert len(different_cells(saved, output)) == count
