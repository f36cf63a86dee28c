"""The order in which the parts of regard may import each other, read from the source without running it.

An import counts wherever it stands: at the top, in a function, under `TYPE_CHECKING`.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "regard"

# A part may import parts of earlier lines; within one line only where the line says so.
APART, TOGETHER = "none imports another", "may import each other"
ORDER = (
    (APART, ("errors", "eager")),
    (APART, ("checks",)),
    (APART, ("files",)),
    (APART, ("argument_types",)),
    (APART, ("spec", "cost")),
    (APART, ("plan",)),
    (APART, ("engine",)),
    (APART, ("again", "traced", "heard")),
    (TOGETHER, ("result", "weights", "measure")),
    (APART, ("attention",)),
    (APART, ("packed", "operators")),
    (APART, ("draw",)),
    (APART, ("mechanism", "nn", "worked")),
    (APART, ("models", "integrations", "distributed")),
    (APART, ("inside", "theory")),
    (APART, ("explorer",)),
    (APART, ("cli",)),
)
RANK = {part: rank for rank, (_, parts) in enumerate(ORDER) for part in parts}
SHARED_BY_ENGINES = {
    "address",
    "merge",
    "gradient",
    "dense",
    "dropout",
    "parts",
    "prepare",
    "sinkhorn_support",
    "threshold",
    "walk",
}
COMPILED = ("_core",)
TALKATIVE = {"cli", "explorer"}
NETWORK = {"aiohttp", "ftplib", "http", "httpx", "requests", "socket", "socketserver", "ssl", "starlette"}
NETWORK |= {"urllib.request", "urllib3", "uvicorn", "websockets", "xmlrpc"}


@dataclass(frozen=True)
class Module:
    """One file: its dotted name below regard as a tuple (`("spec", "term")`; the package itself is `()`)."""

    name: tuple[str, ...]
    is_package: bool
    tree: ast.Module
    path: str

    @property
    def part(self) -> str:
        return self.name[0] if self.name else ""


@dataclass(frozen=True)
class Import:
    """One name brought in: `target` is its place below regard; None for the rest of the world."""

    target: tuple[str, ...] | None
    dotted: str
    name: str
    line: int
    level: int
    at_import_time: bool


def read(source: Path) -> dict[tuple[str, ...], Module]:
    modules = {}
    for path in sorted(source.rglob("*.py")):
        steps = path.relative_to(source).with_suffix("").parts
        is_package = steps[-1] == "__init__"
        name = steps[:-1] if is_package else steps
        tree = ast.parse(path.read_text(encoding="utf8"), str(path))
        modules[name] = Module(name, is_package, tree, path.relative_to(source.parent).as_posix())
    return modules


def imports_of(module: Module, modules: dict[tuple[str, ...], Module]) -> Iterator[Import]:
    later = {id(inner) for outer in ast.walk(module.tree) if _waits(outer) for inner in ast.walk(outer)}
    for node in ast.walk(module.tree):
        now = id(node) not in later
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield _absolute(alias.name.split("."), node.lineno, now)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield _one_from(module, node, alias.name, modules, now)


def _waits(node: ast.AST) -> bool:
    if isinstance(node, ast.If):
        return "TYPE_CHECKING" in ast.unparse(node.test)
    return isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))


def _absolute(steps: list[str], line: int, now: bool) -> Import:
    inside = tuple(steps[1:]) if steps[0] == "regard" else None
    return Import(inside, ".".join(steps), steps[-1], line, 0, now)


def _one_from(
    module: Module, node: ast.ImportFrom, name: str, modules: dict[tuple[str, ...], Module], now: bool
) -> Import:
    steps = node.module.split(".") if node.module else []
    if node.level:
        home = ("regard", *module.name) if module.is_package else ("regard", *module.name[:-1])
        steps = [*home[: max(len(home) - node.level + 1, 0)], *steps]
    found = _absolute([*steps, name] if steps else ["", name], node.lineno, now)
    target = found.target
    # `from regard.spec import Term` names something in a module, `from regard.spec import term` a module.
    if target is not None and target not in modules and target != COMPILED:
        target = target[:-1]
    return replace(found, target=target, level=node.level)


def breaches(source: Path) -> list[str]:
    """A sentence for every import, print or socket that the order forbids."""
    modules = read(source)
    found = []
    for module in modules.values():
        if module.part and module.part not in RANK:
            found.append(f"{module.path}: {module.part} has no place in the order")
            continue
        for each in imports_of(module, modules):
            for reason in _objections(module, each, modules):
                found.append(f"{module.path}:{each.line}: {reason}")
        found.extend(_talk(module))
    return found


def _objections(module: Module, each: Import, modules: dict[tuple[str, ...], Module]) -> Iterator[str]:
    if each.target is None:
        if module.part not in TALKATIVE and _is_network(each.dotted):
            yield f"imports {each.dotted}: only cli and explorer talk to the network"
        return
    dotted = ".".join(("regard", *each.target))
    if each.level > 1:
        yield f"imports {dotted} from above its own package: write the absolute name"
    if each.target[:1] == COMPILED:
        if module.name != ("engine", "native"):
            yield "imports regard._core: only engine/native.py knows the compiled module"
        return
    if not module.name:
        return
    if module.part == "engine" and each.target[:1] == ("engine",):
        shared = len(each.target) > 1 and each.target[1] in SHARED_BY_ENGINES
        if not module.is_package and not shared:
            yield f"imports {dotted}: engines share only {', '.join(sorted(SHARED_BY_ENGINES))}"
        return
    origins = [each.target] if each.target else _shown(each.name, modules)
    if not all(_may(module.part, origin) for origin in origins):
        yield f"{module.part} imports {dotted}, which does not come before it"


def _shown(name: str, modules: dict[tuple[str, ...], Module]) -> list[tuple[str, ...]]:
    """Where the public face has a name from; for the face as a whole, where it has all of its names from."""
    face = [each for each in imports_of(modules[()], modules) if each.target]
    named = [each.target for each in face if each.target and each.name == name]
    return named or [each.target for each in face if each.target]


def _may(part: str, target: tuple[str, ...]) -> bool:
    if target[0] == part:
        return True
    if target[0] not in RANK:
        return False
    if part == "cost":
        return target[0] in ("errors", "checks", "argument_types")
    if RANK[target[0]] == RANK[part]:
        return ORDER[RANK[part]][0] == TOGETHER
    return RANK[target[0]] < RANK[part]


def _is_network(name: str) -> bool:
    steps = name.split(".")
    return any(".".join(steps[:length]) in NETWORK for length in range(1, len(steps) + 1))


def _talk(module: Module) -> Iterator[str]:
    if module.part in TALKATIVE:
        return
    for node in ast.walk(module.tree):
        printing = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
        writing = isinstance(node, ast.Attribute) and ast.unparse(node) in ("sys.stdout", "sys.stderr")
        if isinstance(node, ast.expr) and (printing or writing):
            yield f"{module.path}:{node.lineno}: {ast.unparse(node)}: only cli and explorer print"


def circles(source: Path) -> list[str]:
    """Modules that wait for each other while they are being imported, each circle once."""
    modules = read(source)
    waits_for = {
        name: sorted({i.target for i in imports_of(module, modules) if i.at_import_time and i.target in modules})
        for name, module in modules.items()
    }
    found: list[str] = []
    finished: set[tuple[str, ...]] = set()

    def visit(name: tuple[str, ...], way: list[tuple[str, ...]]) -> None:
        if name in way:
            found.append(" -> ".join(".".join(("regard", *step)) for step in [*way[way.index(name) :], name]))
        elif name not in finished:
            for following in waits_for[name]:
                visit(following, [*way, name])
            finished.add(name)

    for name in waits_for:
        visit(name, [])
    return found


def test_every_import_respects_the_order() -> None:
    assert len(read(SOURCE)) > 1, f"no modules under {SOURCE}"
    assert breaches(SOURCE) == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert circles(SOURCE) == []


def _tree(root: Path, files: dict[str, str]) -> Path:
    source = root / "regard"
    for name, text in {"__init__.py": "", **files}.items():
        path = source / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf8")
    return source


@pytest.mark.parametrize(
    "name, text, expected",
    [
        ("plan/choose.py", "from regard.engine import tiled", "plan imports regard.engine.tiled"),
        ("plan/choose.py", "def f():\n    import regard.engine.tiled", "plan imports regard.engine.tiled"),
        ("plan/choose.py", "from regard import engine", "plan imports regard.engine,"),
        ("plan/choose.py", "if TYPE_CHECKING:\n    import regard.engine", "plan imports regard.engine,"),
        ("errors.py", "import regard.cost", "errors imports regard.cost"),
        ("errors.py", "from regard import attention", "errors imports regard.attention"),
        ("cost.py", "from regard.spec.term import Term", "cost imports regard.spec.term"),
        ("spec/term.py", "from regard import cost", "spec imports regard.cost"),
        ("spec/term.py", "from regard import attend", "spec imports regard,"),
        ("spec/term.py", "import regard", "spec imports regard,"),
        ("spec/term.py", "from ..errors import SpecError", "from above its own package"),
        ("spec/term.py", "import regard.wonder", "spec imports regard.wonder"),
        ("nn/block.py", "from regard import mechanism", "nn imports regard.mechanism"),
        ("engine/tiled.py", "from regard.engine import reference", "engines share only"),
        ("engine/tiled.py", "from .reference import run", "engines share only"),
        ("engine/tiled.py", "from regard._core import forward", "only engine/native.py"),
        ("engine/merge.py", "from regard.engine import tiled", "engines share only"),
        ("wonder.py", "", "wonder has no place in the order"),
        ("measure.py", "def f():\n    print(1)", "only cli and explorer print"),
        ("measure.py", "import sys\nsys.stdout.write('1')", "only cli and explorer print"),
        ("integrations/hub.py", "from urllib.request import urlopen", "talk to the network"),
        ("integrations/hub.py", "import http.client", "talk to the network"),
    ],
)
def test_a_forbidden_import_is_found(tmp_path: Path, name: str, text: str, expected: str) -> None:
    others = dict.fromkeys(
        ["errors.py", "cost.py", "attention.py", "spec/__init__.py", "plan/__init__.py", "spec/term.py"], ""
    )
    others |= dict.fromkeys(["engine/__init__.py", "engine/tiled.py", "engine/reference.py"], "")
    others |= {"mechanism/__init__.py": "", "__init__.py": "from regard.attention import attend"}
    found = breaches(_tree(tmp_path, others | {name: text}))
    assert len(found) == 1, found
    assert f"{name}:" in found[0]
    assert expected in found[0]


def test_what_the_order_allows_is_not_reported(tmp_path: Path) -> None:
    source = _tree(
        tmp_path,
        {
            "__init__.py": "from regard import cost, measure\nfrom regard.attention import attend",
            "errors.py": "",
            "cost.py": "from regard.errors import SpecError",
            "spec/__init__.py": "from .term import Term\nfrom regard.spec import mask",
            "spec/term.py": "from urllib.parse import quote\nfrom regard.errors import SpecError",
            "spec/mask.py": "from . import term",
            "plan/__init__.py": "from regard import cost\nfrom regard.spec.term import Term",
            "engine/__init__.py": "from regard.engine import tiled, native",
            "engine/merge.py": "import torch",
            "engine/tiled.py": "from regard.engine.merge import merge\nfrom regard import cost",
            "engine/native.py": "from regard import _core",
            "measure.py": "from regard.errors import SpecError",
            "weights.py": "from regard.measure import entropy",
            "attention.py": "import regard.plan\nfrom regard.weights import Weights",
            "nn/__init__.py": "from regard import attend\nimport regard.errors",
            "worked/__init__.py": "import regard\nfrom regard import cost",
            "cli.py": "import socket\nprint(socket)",
        },
    )
    assert breaches(source) == []
    assert circles(source) == []


def test_a_circle_is_found_unless_one_side_waits(tmp_path: Path) -> None:
    files = {
        "spec/__init__.py": "",
        "spec/a.py": "from . import b",
        "spec/b.py": "from regard.spec.a import f",
    }
    assert circles(_tree(tmp_path, files)) == ["regard.spec.a -> regard.spec.b -> regard.spec.a"]
    files["spec/b.py"] = "def g():\n    from regard.spec.a import f"
    assert circles(_tree(tmp_path, files)) == []


def test_a_circle_through_the_public_face_is_found(tmp_path: Path) -> None:
    files = {
        "__init__.py": "from regard.attention import attend",
        "attention.py": "from regard import attend",
    }
    assert circles(_tree(tmp_path, files)) == ["regard -> regard.attention -> regard"]
