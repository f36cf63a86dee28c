"""The page is checked: its types, its lint, and a unit test for each module without the DOM."""

import json
import posixpath
import re
import subprocess
from functools import cache
from pathlib import Path

from regard.explorer import bundle

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests" / "explorer" / "frontend"
TESTED_IN_THE_BROWSER = {
    "app/page-entry.js",  # entry points and the list of views have no logic
    "app/view-list.js",
    "app/widget-entry.js",
    "app/run-model.js",  # its effects are on the shell; the tests of the page run it
    "app/menu.js",  # these only listen to and draw on the nodes that they are given
    "charts/map/map-input.js",
    "charts/map/map-overlays.js",
    "charts/map/pointer-gestures.js",
    "transport/reconnect.js",  # tested with http-source.js, against real servers
}
DOM = re.compile(
    r"\b(document|window|navigator|location|ResizeObserver|MutationObserver|ImageData|HTMLElement)\b\s*[.(,]"
)


def modules() -> list[str]:
    return [path for path in bundle.frontend_files() if path.endswith(".js")]


@cache
def uses_dom(path: str) -> bool:
    """Return whether a module or one that it imports uses the DOM."""
    text = bundle.read_frontend_file(path).decode()
    code = re.sub(r"/\*\*.*?\*/|//[^\n]*", "", text, flags=re.DOTALL)
    folder = posixpath.dirname(path)
    imports = [posixpath.normpath(posixpath.join(folder, m["path"])) for m in bundle.IMPORT_PATTERN.finditer(text)]
    return bool(DOM.search(code)) or any(uses_dom(name) for name in imports)


def test_every_module_without_the_dom_has_a_unit_test() -> None:
    pure = [path for path in modules() if not uses_dom(path)]
    assert len(pure) > 30
    untested = [path for path in pure if not (TESTS / path.replace(".js", ".test.js")).is_file()]
    assert set(untested) <= TESTED_IN_THE_BROWSER


def test_every_unit_test_has_its_module() -> None:
    tested = {path.relative_to(TESTS).as_posix().replace(".test.js", ".js") for path in TESTS.rglob("*.test.js")}
    assert tested - set(modules()) == set()


def test_types_are_checked_without_exceptions() -> None:
    options = json.loads((ROOT / "tsconfig.json").read_text(encoding="utf8"))["compilerOptions"]
    assert options["strict"] and options["checkJs"] and options["noEmit"]
    for path in modules():
        text = bundle.read_frontend_file(path).decode()
        assert not re.search(r"@ts-(ignore|nocheck|expect-error)|biome-ignore", text), path
        for number, line in enumerate(text.splitlines(), 1):
            if re.search(r"[{<|(:] ?any\b(?=[\[\]>,})|])", line):
                assert "any: " in line or "any: " in text.splitlines()[number], f"{path}:{number} must say why"


def test_the_tools_are_pinned_without_addresses_of_registries() -> None:
    package = json.loads((ROOT / "package.json").read_text(encoding="utf8"))
    assert package["private"] is True
    assert "dependencies" not in package
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", version) for version in package["devDependencies"].values())
    lock = (ROOT / "package-lock.json").read_text(encoding="utf8")
    assert '"resolved"' not in lock
    versions = {name.rpartition("node_modules/")[2]: entry for name, entry in json.loads(lock)["packages"].items()}
    for name, version in package["devDependencies"].items():
        assert versions[name]["version"] == version


def test_only_the_checks_of_the_page_need_node() -> None:
    lines = subprocess.run(
        ["make", "-n", "-B", "explore", "test"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert not re.search(r"\b(npm|node|npx)\b", lines)
    checked = subprocess.run(["make", "-n", "check-js"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert all(f"npm run --silent {name}" in checked for name in ("lint", "types", "test"))


def test_no_tool_is_in_the_package() -> None:
    files = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.split()
    assert not [name for name in files if "node_modules" in name]
    assert "node_modules/" in (ROOT / ".gitignore").read_text(encoding="utf8").split()
