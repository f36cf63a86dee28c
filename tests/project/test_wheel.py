"""The wheel that `make wheel` builds, installed in a new environment."""

import ast
import os
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from email import message_from_string
from email.message import Message
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
PROGRAM = """
import importlib.metadata, sys, regard, torch
q, k, v = torch.randn(3, 2, 4, 6, 8).unbind()
expected = torch.softmax(q @ k.transpose(-1, -2) / 8**0.5, -1) @ v
assert torch.allclose(regard.attention(q, k, v), expected, atol=1e-5)
sys.stdout.write(regard.__file__ + "\\n" + importlib.metadata.version("regard"))
"""


WITHOUT_CORE = """
import regard, torch
x = torch.randn(1, 2, 20, 8)
plan = regard.attention_with_weights(x, x, x, mask=regard.mask.causal()).plan
print(regard.__file__, plan.backend, *plan.unsupported_reasons["native"], sep=chr(10))
"""


pytestmark = pytest.mark.long  # two minutes: builds the core twice and creates an environment


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    # -o keeps make from creating another environment below the one that runs this test.
    return _build_wheel(folder)


def _build_wheel(folder: Path, **variables: str) -> Path:
    prepared = ("-o", ".venv/.installed", "-o", ".venv/.core")
    _run("make", *prepared, "wheel", f"PY={sys.executable}", f"DIST={folder}", cwd=ROOT, **variables)
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new environment with the wheel, which uses the torch and numpy of this environment."""
    folder = tmp_path_factory.mktemp("empty") / "venv"
    _run(sys.executable, "-m", "venv", str(folder))
    _run(
        str(folder / "bin" / "python"),
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        str(wheel),
    )
    (packages,) = folder.glob("lib/python*/site-packages")
    # Paths of a .pth file come last, and .pth files below them are not read, so an editable installation of regard
    # in this environment is not visible.
    (packages / "outer.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf8")
    return folder


def test_the_installed_wheel_computes_attention(environment: Path, tmp_path: Path) -> None:
    printed = _run(str(environment / "bin" / "python"), "-c", PROGRAM, cwd=tmp_path)
    path, version = printed.splitlines()
    assert Path(path).resolve().is_relative_to(environment.resolve())
    assert version == _metadata_of_source("version")


def test_the_installed_wheel_is_the_only_regard_on_the_path(environment: Path, tmp_path: Path) -> None:
    script = "import sys; from pathlib import Path; print([p for p in sys.path if (Path(p) / 'regard').exists()])"
    (path,) = ast.literal_eval(_run(str(environment / "bin" / "python"), "-c", script, cwd=tmp_path))
    assert Path(path).resolve().is_relative_to(environment.resolve())


def test_the_wheel_contains_exactly_the_files_of_the_package(wheel: Path) -> None:
    source = ROOT / "src"
    expected = {
        path.relative_to(source).as_posix()
        for path in (source / "regard").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert "regard/py.typed" in names
    assert names == expected


def test_the_wheel_has_the_metadata_of_the_project(wheel: Path) -> None:
    metadata = _metadata_of_wheel(wheel)
    assert metadata["Name"] == "regard"
    assert metadata["Version"] == _metadata_of_source("version")
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["License-File"] == "LICENSE"
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["Summary"] == _metadata_of_source("description")


def test_without_a_compiler_the_wheel_has_no_core_and_works(tmp_path: Path) -> None:
    wheel = _build_wheel(tmp_path / "dist", CC="no-such-compiler", CXX="no-such-compiler")
    zipfile.ZipFile(wheel).extractall(tmp_path / "plain")

    # Python searches the current folder first.
    output = _run(sys.executable, "-c", WITHOUT_CORE, cwd=tmp_path / "plain")

    assert not list((tmp_path / "plain" / "regard").glob("_core*.so"))
    path, backend, reason = output.splitlines()
    assert Path(path).resolve().is_relative_to(tmp_path.resolve())
    assert backend == "tiled"
    failure = "the build failed with: no-such-compiler: No such file or directory"
    assert reason == f"the compiled core is missing: {failure}"


def test_the_command_of_the_installed_wheel_runs(environment: Path, tmp_path: Path) -> None:
    printed = _run(str(environment / "bin" / "regard"), "mechanisms", "sparsemax", cwd=tmp_path)
    assert printed.startswith("sparsemax\nidea")


def test_the_wheel_requires_only_torch_numpy_and_the_packages_of_its_command(wheel: Path) -> None:
    needs = _metadata_of_wheel(wheel).get_all("Requires-Dist") or []
    always = sorted(Requirement(need).name for need in needs if "extra ==" not in need)
    assert always == ["numpy", "rich", "torch", "typer"]


def _metadata_of_wheel(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return message_from_string(archive.read(name).decode("utf8"))


def _metadata_of_source(field: str) -> str:
    return str(tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf8"))["project"][field])


def _run(*command: str, cwd: Path | None = None, **variables: str) -> str:
    # PYTHONPATH of this process must not lead the subprocess back to the source.
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "MAKE", "MFLAGS"))}
    done = subprocess.run(command, cwd=cwd, env=clean | variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
    return done.stdout
