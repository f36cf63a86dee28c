"""The environment of `make explore` and `make setup`, and the install lines of the README, in new environments."""

import os
import re
import signal
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path
from shutil import copyfile
from urllib.request import urlopen

import pytest
from packaging.requirements import Requirement

from tools import environment

ROOT = Path(__file__).parents[2]


def names(extra: str) -> set[str]:
    return {Requirement(line).name for line in environment.requirements(extra)}


def test_the_explorer_needs_no_package_of_tests_or_documentation() -> None:
    assert names("explorer") == {
        *("torch", "numpy", "rich", "typer"),
        *("anywidget", "starlette", "uvicorn", "tokenizers"),
    }


def test_the_development_environment_includes_all_other_extras_except_bench() -> None:
    assert names("dev") > names("explorer") | names("docs") | names("hf") | names("train")
    assert "jax" not in names("dev")


def test_the_page_on_installation_describes_every_extra_and_the_pinned_torch() -> None:
    page = (ROOT / "docs" / "get-started" / "install.md").read_text(encoding="utf8")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf8"))["project"]
    assert re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE) == list(project["optional-dependencies"])
    (torch,) = re.findall(r"^torch==.*$", (ROOT / "constraints.txt").read_text(encoding="utf8"), re.MULTILINE)
    assert f"pip install {torch} --index-url https://download.pytorch.org/whl/cpu" in page


@pytest.mark.long
def test_a_failed_step_shows_the_end_of_the_log(tmp_path: Path) -> None:
    (tmp_path / "tools").mkdir()
    for name in ("tools/environment.py", "constraints.txt", "pyproject.toml"):
        copyfile(ROOT / name, tmp_path / name)
    command = [sys.executable, "tools/environment.py", "explorer"]
    variables = {**os.environ, "PIP_NO_INDEX": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert re.search(r"setup: +\d+ s  create \.venv done", done.stdout)
    assert "No matching distribution found" in done.stderr or "ResolutionImpossible" in done.stderr
    assert re.search(r"setup: could not .*; the log is \.venv/(core|torch)\.log\.", done.stderr)
    assert not (tmp_path / ".venv" / ".explorer").exists()


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The committed files, without anything that is built."""
    folder = tmp_path_factory.mktemp("fresh") / "regard"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder)], check=True)
    return folder


def open_page(command: list[str | Path], folder: Path) -> str:
    """Run a command that serves the explorer, open its page once, stop it, and return what it printed."""
    variables = {name: text for name, text in os.environ.items() if not name.startswith(("PYTHON", "MAKE", "MFLAGS"))}
    variables["BROWSER"] = "true"  # a program that opens nothing
    server = subprocess.Popen(
        command,
        cwd=folder,
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert server.stdout is not None
    lines = []
    try:
        address = ""
        for line in server.stdout:
            lines.append(line)
            if line.startswith("http"):
                address = line.strip()
                break
        assert address, "".join(lines)
        with urlopen(address, timeout=30) as response:
            assert b"regard" in response.read()
    finally:
        os.killpg(server.pid, signal.SIGINT)
        server.wait(30)
    return "".join(lines)


@pytest.mark.long  # a minute: installs torch and builds the core
def test_make_explore_opens_the_page_in_a_fresh_clone(clone: Path) -> None:
    printed = open_page(["make", "explore", f"PYTHON={sys.base_prefix}/bin/python3"], clone)
    assert re.search(r"^setup: +\d+ s  install torch==", printed, re.MULTILINE)
    packages = {path.name for path in clone.glob(".venv/lib/python*/site-packages/*")}
    assert {"torch", "starlette"} <= packages
    assert not {"pytest", "mypy", "transformers", "mkdocs", "matplotlib"} & packages
    assert list((clone / "src" / "regard").glob("_core*.so"))


@pytest.mark.long  # minutes: installs torch and builds the core
def test_pip_installs_a_clone_with_the_explorer_in_a_new_environment(clone: Path, tmp_path: Path) -> None:
    subprocess.run([f"{sys.base_prefix}/bin/python3", "-m", "venv", str(tmp_path / "venv")], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    variables = {name: text for name, text in os.environ.items() if not name.startswith("PYTHON")}
    (torch,) = re.findall(r"^torch==.*$", (ROOT / "constraints.txt").read_text(encoding="utf8"), re.MULTILINE)
    for requirement in (torch, f"{clone}[explorer]"):
        subprocess.run(
            [python, "-m", "pip", "install", "--quiet", requirement], env=variables, cwd=tmp_path, check=True
        )
    program = (
        "import torch, regard; q = torch.randn(1, 2, 8, 4); "
        "print(regard.__file__, regard.attention_with_weights(q, q, q).plan.backend)"
    )
    path, backend = subprocess.check_output([python, "-c", program], env=variables, cwd=tmp_path, text=True).split()
    assert Path(path).resolve().is_relative_to(tmp_path.resolve()) and backend == "native"
    subprocess.run([python.with_name("regard"), "doctor"], env=variables, cwd=tmp_path, check=True)
    open_page([python.with_name("regard"), "explore", "--no-browser"], tmp_path)


@pytest.mark.long  # each builds the core
@pytest.mark.parametrize("source", ["folder", "archive"])
def test_pip_installs_a_clone_and_an_archive(source: str, clone: Path, tmp_path: Path) -> None:
    """The new environment uses the dependencies of this one, which are the pinned ones."""
    target = clone
    if source == "archive":
        target = tmp_path / "regard.tar.gz"
        command = ["git", "archive", "--prefix=regard/", f"--output={target}", "HEAD"]
        subprocess.run(command, cwd=clone, check=True)
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True)
    variables = {name: text for name, text in os.environ.items() if not name.startswith("PYTHON")}
    variables["PIP_CONSTRAINT"] = str(ROOT / "constraints.txt")
    subprocess.run(
        [python, "-m", "pip", "install", "--quiet", "--no-deps", str(target)], env=variables, cwd=tmp_path, check=True
    )
    (packages,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    (packages / "outer.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf8")
    regard = python.with_name("regard")
    doctor = subprocess.run(
        [regard, "doctor"], env=variables, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert doctor.returncode == 0, doctor.stdout + doctor.stderr
    assert list((packages / "regard").glob("_core*.so"))
