"""The tutorials: scripts in docs/tutorials, notebooks with their outputs, and pages made from the notebooks.

    python -m tools.docs.tutorials [name ...]

runs the scripts and writes the notebooks with their outputs. A script is in jupytext's percent format.
"""

import base64
import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import jupytext
import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode
from traitlets.config import Config

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "tutorials"
TIMEOUT_S = 600  # for one cell
# the alternative text of a picture; whether it is on the index; whether other runs print other numbers
CELL_METADATA = ("alt", "cover", "varies")
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def names() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.py"))


def script_notebook(name: str) -> NotebookNode:
    """Return the notebook of a script, without outputs; the same script gives the same notebook."""
    notebook = jupytext.read(FOLDER / f"{name}.py", fmt="py:percent")
    notebook.metadata = nbformat.from_dict(METADATA)
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"
        cell.metadata = nbformat.from_dict({key: cell.metadata[key] for key in CELL_METADATA if key in cell.metadata})
    return notebook


def saved_notebook(name: str) -> NotebookNode:
    """Return the notebook of a tutorial with its outputs."""
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


def run(notebook: NotebookNode) -> None:
    """Run all cells in a new kernel on one thread and store their outputs in the notebook."""
    # the kernel has another working directory, and imports the same packages as this process
    paths = os.pathsep.join(str(Path(path).resolve()) for path in sys.path)
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    resources = {"metadata": {"path": str(FOLDER)}}
    with TemporaryDirectory() as sockets:
        config = Config(KernelManager={"transport": "ipc", "ip": f"{sockets}/kernel"})  # opens no port
        client = NotebookClient(
            notebook, config=config, kernel_name="python3", timeout=TIMEOUT_S, record_timing=False, resources=resources
        )
        client.execute(env=environment)
    notebook.metadata = nbformat.from_dict(METADATA)


def save(notebook: NotebookNode, name: str) -> None:
    """Write the notebook, and the picture of its cover cell for the index."""
    nbformat.write(notebook, FOLDER / f"{name}.ipynb")
    (cover,) = [picture for cell in notebook.cells if cell.metadata.get("cover") and (picture := cell_picture(cell))]
    (FOLDER / f"{name}.png").write_bytes(cover)


def page_uri(notebook: Path) -> str:
    """Return the path on the site of the page that shows a notebook."""
    return f"tutorials/{notebook.stem}.md"


def generated_files() -> dict[str, str | bytes]:
    """Return the pages of all tutorials and their pictures, by path on the site."""
    files: dict[str, str | bytes] = {}
    for name in names():
        notebook = saved_notebook(name)
        files[f"tutorials/{name}.md"] = page_text(notebook, name)
        for cell in notebook.cells:
            if (picture := cell_picture(cell)) is not None:
                files[f"tutorials/{_picture_name(cell, name)}"] = picture
    return files


def page_text(notebook: NotebookNode, name: str) -> str:
    """Return the Markdown of the page: text, code, and the outputs below their code."""
    title, *cells = notebook.cells
    link = f'<a href="{name}.ipynb" download>Download the notebook</a>, or <a href="index.html">open all tutorials</a>'
    heading, _, introduction = title.source.partition("\n")
    parts = [heading, f'<p class="notebook-link">{link} in Jupyter.</p>', introduction.strip()]
    return "\n\n".join([*parts, *(_cell_text(cell, name) for cell in cells)]) + "\n"


def _cell_text(cell: NotebookNode, name: str) -> str:
    if cell.cell_type == "markdown":
        return cell.source
    code = "\n".join(line for line in cell.source.splitlines() if not line.startswith("%"))
    parts = [f"```python\n{code.strip()}\n```"]
    if text := cell_stdout(cell):
        parts.append(f"```{{ .text .notebook-output }}\n{text.rstrip()}\n```")
    if cell_picture(cell) is not None:
        parts.append(f"![{cell.metadata['alt']}]({_picture_name(cell, name)})")
    return "\n\n".join(parts)


def cell_stdout(cell: NotebookNode) -> str:
    """Return the text that a cell printed."""
    return "".join(output.text for output in cell.get("outputs", ()) if output.get("name") == "stdout")


def cell_picture(cell: NotebookNode) -> bytes | None:
    """Return the picture of a cell, or None."""
    for output in cell.get("outputs", ()):
        if "image/png" in output.get("data", ()):
            return base64.b64decode(output.data["image/png"])
    return None


def _picture_name(cell: NotebookNode, name: str) -> str:
    return f"{name}/{cell.id}.png"


def main(selected: list[str]) -> None:
    for name in selected or names():
        print(f"run {name}")
        notebook = script_notebook(name)
        run(notebook)
        save(notebook, name)


if __name__ == "__main__":
    main(sys.argv[1:])
