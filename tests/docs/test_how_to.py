"""The how-to pages name every function of their modules, and their code makes their pictures and runs on two ranks."""

import re
import runpy
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from tests.distributed.launch import free_port
from tests.docs.test_documents import python_blocks

DOCS = Path(__file__).parents[2] / "docs"
FIGURES = DOCS / "how-to" / "figures"
PAGE_BY_MODULE = {
    "regard.cost": "how-to/cost.md",
    "regard.models": "layers.md",
    "regard.nn": "layers.md",
    "regard.plot": "how-to/figures.md",
}


@pytest.mark.parametrize("name", PAGE_BY_MODULE)
def test_a_page_uses_every_name_of_its_module(name: str) -> None:
    words = set(re.findall(r"\w+", (DOCS / PAGE_BY_MODULE[name]).read_text(encoding="utf8")))
    assert [entry for entry in import_module(name).__all__ if entry not in words] == []


def test_the_pictures_of_the_page_of_figures_are_small_and_made_by_its_code() -> None:
    pictures = runpy.run_path(str(FIGURES / "make.py"))["PICTURES"]
    assert sorted(path.name for path in FIGURES.glob("*.png")) == sorted(pictures)
    code = (DOCS / "how-to" / "figures.md").read_text(encoding="utf8")
    for name in pictures:
        assert f'savefig("{name}"' in code
        assert (FIGURES / name).stat().st_size < 150_000


@pytest.mark.long
def test_the_code_of_the_page_of_ranks_runs_on_two_ranks(tmp_path: Path) -> None:
    blocks = python_blocks((DOCS / "how-to" / "ranks.md").read_text(encoding="utf8"))
    code = "\n".join(block.code for block in blocks if not block.code.startswith(">>> "))
    script = tmp_path / "script.py"
    report = "import os, pathlib\npathlib.Path(os.environ['RANK']).write_text(str(o.shape))\n"
    script.write_text(f"{code}\n{report}os._exit(0)\n")  # threads of gloo may crash while Python shuts down
    launch = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(free_port())]
    command = [sys.executable, *launch, str(script)]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stderr
    assert [(tmp_path / rank).read_text() for rank in "01"] == ["torch.Size([1, 8, 1, 64])"] * 2
