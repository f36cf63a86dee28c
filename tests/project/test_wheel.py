"""The wheel that `make wheel` builds, installed into an empty environment and used there."""

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


WITHOUT = """
import regard, torch
x = torch.randn(1, 2, 20, 8)
plan = regard.attend(x, x, x, mask=regard.mask.causal()).plan
print(regard.__file__, plan.engine, *plan.objections["native"], sep=chr(10))
"""


pytestmark = pytest.mark.long  # two minutes: the core is built twice, and an environment made


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    # The environment that runs this test builds; -o keeps make from preparing another one under it.
    return _built(folder)


def _built(folder: Path, **surroundings: str) -> Path:
    prepared = ("-o", ".venv/.installed", "-o", ".venv/.core")
    _run("make", *prepared, "wheel", f"PY={sys.executable}", f"DIST={folder}", cwd=ROOT, **surroundings)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new environment with the wheel in it, which finds torch and numpy where this one has them."""
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
    # Paths of a .pth file come last, and the .pth files in them are not read: this environment's own
    # installation of regard stays out of sight.
    (packages / "outer.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf8")
    return folder


def test_the_installed_wheel_computes_attention(environment: Path, tmp_path: Path) -> None:
    printed = _run(str(environment / "bin" / "python"), "-c", PROGRAM, cwd=tmp_path)
    place, version = printed.splitlines()
    assert Path(place).resolve().is_relative_to(environment.resolve())
    assert version == _metadata_of_source("version")


def test_the_installed_wheel_is_the_only_regard_in_sight(environment: Path, tmp_path: Path) -> None:
    ask = "import sys; from pathlib import Path; print([p for p in sys.path if (Path(p) / 'regard').exists()])"
    (place,) = ast.literal_eval(_run(str(environment / "bin" / "python"), "-c", ask, cwd=tmp_path))
    assert Path(place).resolve().is_relative_to(environment.resolve())


def test_the_wheel_holds_every_file_of_the_package_and_nothing_else(wheel: Path) -> None:
    source = ROOT / "src"
    expected = {
        path.relative_to(source).as_posix()
        for path in (source / "regard").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert "regard/py.typed" in held
    assert held == expected


def test_the_wheel_says_what_it_is(wheel: Path) -> None:
    metadata = _metadata_of_wheel(wheel)
    assert metadata["Name"] == "regard"
    assert metadata["Version"] == _metadata_of_source("version")
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["License-File"] == "LICENSE"
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["Summary"] == _metadata_of_source("description")


def test_without_a_compiler_everything_else_is_built_and_works(tmp_path: Path) -> None:
    built = _built(tmp_path / "dist", CC="no-such-compiler", CXX="no-such-compiler")
    zipfile.ZipFile(built).extractall(tmp_path / "plain")

    # The folder itself is where Python looks first.
    said = _run(sys.executable, "-c", WITHOUT, cwd=tmp_path / "plain")

    assert not list((tmp_path / "plain" / "regard").glob("_core*.so"))
    place, engine, objection = said.splitlines()
    assert Path(place).resolve().is_relative_to(tmp_path.resolve())
    assert engine == "tiled"
    failure = "the build failed with: no-such-compiler: No such file or directory"
    assert objection == f"the compiled core is missing: {failure}"


def test_the_command_of_the_installed_wheel_answers(environment: Path, tmp_path: Path) -> None:
    printed = _run(str(environment / "bin" / "regard"), "mechanisms", "sparsemax", cwd=tmp_path)
    assert printed.startswith("sparsemax\nformula")


def test_the_wheel_needs_only_torch_and_numpy_and_what_its_command_is_made_of(wheel: Path) -> None:
    needs = _metadata_of_wheel(wheel).get_all("Requires-Dist") or []
    always = sorted(Requirement(need).name for need in needs if "extra ==" not in need)
    assert always == ["numpy", "rich", "torch", "typer"]


def _metadata_of_wheel(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return message_from_string(archive.read(name).decode("utf8"))


def _metadata_of_source(field: str) -> str:
    return str(tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf8"))["project"][field])


def _run(*command: str, cwd: Path | None = None, **surroundings: str) -> str:
    # A path given to this process must not lead the new one back to the source.
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "MAKE", "MFLAGS"))}
    done = subprocess.run(command, cwd=cwd, env=clean | surroundings, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
    return done.stdout
