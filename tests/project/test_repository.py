"""The repository: small files, no paths of one machine, valid links, complete version pins."""

import os
import re
import subprocess
import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
MAX_FILE_BYTES = 1_000_000
MACHINE = re.compile(r"(?<![\w.~-])/(?:farm|home|opt|root|tmp|work)(?![\w-])")
PIN = re.compile(r"(?P<name>[a-z0-9-]+)==(?P<version>[0-9][0-9.]*(?:post[0-9]+)?)")
ACCELERATOR = re.compile("nvidia-|cuda-|triton")  # dependencies of torch builds for an accelerator
FENCE = re.compile(r"^ *(```|~~~).*?^ *\1 *$", re.MULTILINE | re.DOTALL)
INLINE_CODE = re.compile(r"`[^`\n]*`")
LINK = re.compile(r"\]\(\s*<?([^)\s>]+)|^ *\[[^\]]+\]:\s*<?([^\s>]+)|(?:src|href)=[\"']([^\"']+)", re.MULTILINE)
OUTSIDE = re.compile(r"[a-z][a-z0-9+.-]*:|//", re.IGNORECASE)


def files(root: Path) -> list[Path]:
    """Return the files that git tracks or would add; without git, all files except build outputs."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    if (root / ".git").exists():
        listed = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
        if listed.returncode == 0:
            paths = {root / name for name in listed.stdout.split("\0") if name}
            return sorted(path for path in paths if path.is_file())
    return sorted(_walk(root))


def _walk(root: Path) -> Iterator[Path]:
    for folder, inner, names in os.walk(root):
        inner[:] = [name for name in inner if name == ".ci" or not _is_generated(name)]
        yield from (Path(folder) / name for name in names)


def _is_generated(folder: str) -> bool:
    generated = {"build", "dist", "node_modules", "__pycache__"}
    return folder.startswith(".") or folder in generated or folder.endswith(".egg-info")


def texts(root: Path) -> Iterator[tuple[str, str]]:
    for path in files(root):
        try:
            yield path.relative_to(root).as_posix(), path.read_text(encoding="utf8")
        except UnicodeDecodeError:
            continue  # a picture or an array


def machine_paths(root: Path) -> list[str]:
    return [
        f"{name}:{number}: {line.strip()}"
        for name, text in texts(root)
        for number, line in enumerate(text.splitlines(), 1)
        if MACHINE.search(line)
    ]


def dead_links(root: Path) -> list[str]:
    return [
        f"{name}: {target}"
        for name, text in texts(root)
        if name.endswith(".md")
        for target in _targets(text)
        if not _resolves(root, root / name, target)
    ]


def _targets(text: str) -> Iterator[str]:
    prose = INLINE_CODE.sub("", FENCE.sub("", text))
    for match in LINK.finditer(prose):
        target = next(group for group in match.groups() if group)
        if not OUTSIDE.match(target):
            yield target


def _resolves(root: Path, document: Path, target: str) -> bool:
    name, _, anchor = target.partition("#")
    path = (document.parent / name).resolve() if name else document
    if not path.exists() or not path.is_relative_to(root.resolve()):
        return False
    return not anchor or path.suffix != ".md" or anchor in _anchors(path.read_text(encoding="utf8"))


def _anchors(text: str) -> set[str]:
    """Return the anchors of the headings: lower case, without punctuation, with hyphens for spaces."""
    headings = re.findall(r"^#+ +(.*?) *#* *$", FENCE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def pins(extra: str = "") -> dict[str, str]:
    """Return all pinned versions, or those below the line that names `extra`."""
    text = (ROOT / "constraints.txt").read_text(encoding="utf8")
    lines = text[text.index(f"# Only with the extra `{extra}`") if extra else 0 :].splitlines()
    matches = [PIN.fullmatch(line) for line in lines if line and not line.startswith("#")]
    assert all(matches), "every line of constraints.txt must be name==version, without a local build suffix"
    return {match["name"]: match["version"] for match in matches if match}


def installed(name: str, extras: frozenset[str], versions: dict[str, str]) -> dict[str, str]:
    """Return the installed versions of `name[extras]` and all its dependencies."""
    package = distribution(name)
    is_known = canonicalize_name(name) in versions
    versions[canonicalize_name(name)] = package.version.partition("+")[0]
    for line in () if is_known and not extras else package.requires or ():
        need = Requirement(line)
        if need.marker is None or any(need.marker.evaluate({"extra": extra}) for extra in {"", *extras}):
            installed(need.name, frozenset(need.extras), versions)
    return versions


def test_only_trained_weights_are_larger_than_a_megabyte() -> None:
    assert len(files(ROOT)) > 10
    large = [path for path in files(ROOT) if path.stat().st_size > MAX_FILE_BYTES]
    assert [path.name for path in large if path.parent != ROOT / "src" / "regard" / "models" / "weights"] == []


def test_no_file_names_a_path_of_one_machine() -> None:
    assert machine_paths(ROOT) == []


def test_every_relative_link_of_a_document_is_valid() -> None:
    assert dead_links(ROOT) == []


def test_a_machine_path_is_reported_and_a_url_is_not(tmp_path: Path) -> None:
    folder = "/" + "tmp"
    (tmp_path / "a.py").write_text(f"read('{folder}/x')\ncd {folder}\n", encoding="utf8")
    (tmp_path / "b.md").write_text(f"https://example.org{folder}/x, a{folder}/x, {folder}orary", encoding="utf8")
    assert [line.split(": ")[0] for line in machine_paths(tmp_path)] == ["a.py:1", "a.py:2"]


def test_a_dead_link_is_reported_and_a_valid_link_is_not(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "tour.md").write_text("# The tour\n\n## What `q` is, here\n", encoding="utf8")
    valid = "[a](docs/tour.md) [b](docs/tour.md#what-q-is-here) [c](https://example.org) [d](docs) `[e](no)`\n"
    code = "```text\n[f](no.md)\n```\n"
    (tmp_path / "README.md").write_text(valid + code, encoding="utf8")
    assert dead_links(tmp_path) == []
    dead = ["gone.md", "docs/tour.md#gone", "gone.svg", "../outside.md", "gone.png"]
    (tmp_path.parent / "outside.md").touch()
    text = "[a]({}) [b]({}) ![c]({}) [d]({})\n<img src='{}'>\n".format(*dead)
    (tmp_path / "README.md").write_text(text, encoding="utf8")
    assert dead_links(tmp_path) == [f"README.md: {target}" for target in dead]


def test_the_constraints_pin_every_dependency() -> None:
    needed = installed("regard", frozenset({"dev"}), {})
    del needed["regard"]
    pinned = pins()
    assert len(needed) > 20
    assert {name for name in needed if name not in pinned and not ACCELERATOR.match(name)} == set()
    assert {name: version for name, version in needed.items() if pinned.get(name, version) != version} == {}


def test_the_constraints_pin_only_dependencies() -> None:
    needed = installed("regard", frozenset({"dev"}), {})
    builders = {"setuptools"}
    assert set(pins()) - set(pins("bench")) - set(needed) - builders == set()


def test_the_constraints_pin_the_dependencies_of_benchmarks() -> None:
    try:
        needed = installed("regard", frozenset({"bench"}), {})
    except PackageNotFoundError:
        pytest.skip("make bench installs the libraries for comparison")
    del needed["regard"]
    pinned = pins()
    assert {name for name in needed if pinned.get(name) != needed[name] and not ACCELERATOR.match(name)} == set()
    assert set(pins("bench")) - set(needed) == set()


def test_the_pinned_torch_is_within_the_supported_range() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf8"))["project"]
    ranges = {need.name: need.specifier for need in map(Requirement, project["dependencies"])}
    assert pins()["torch"] == "2.13.0"
    assert ranges["torch"].contains("2.13.0")


@pytest.mark.parametrize(
    "target",
    [
        *("setup", "check", "check-js", "test", "test-long", "test-clang", "test-arm64", "compile-commands"),
        *("sanitize", "bench", "mutants", "wheel"),
    ],
)
def test_make_lists_its_targets(target: str) -> None:
    listed = subprocess.run(["make"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert f"make {target} " in listed


def test_ci_runs_the_tests_and_the_long_tests() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    lines = script.read_text(encoding="utf8").splitlines()
    assert "set -euo pipefail" in lines
    targets = ["check-js", "test-clang-core", "test", "test-long"]
    assert [line for line in lines if line.startswith("make")] == [f"make {target}" for target in targets]
