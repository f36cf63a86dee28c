"""The order in which the parts of regard may import each other, read from the source without running it.

All imports count: at the top of a file, in a function, under `TYPE_CHECKING`.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "regard"

# A part may import the parts of earlier lines, and those of its own line only if the line says so. A part is a module
# or package below regard, or a single module of a package whose other modules come later.
SEPARATE, TOGETHER = "no part imports another", "parts may import each other"
ORDER = (
    (SEPARATE, ("errors", "cache", "catalog_entry", "stage_spec", "torch_ops.compile_guard")),
    (SEPARATE, ("checks", "optional_imports", "torch_ops.private_names", "warning_location")),
    (SEPARATE, ("argument_types",)),
    (SEPARATE, ("files", "tensors", "cost")),
    (SEPARATE, ("expr",)),
    (SEPARATE, ("mask", "score", "normalizers")),
    (SEPARATE, ("feature_map",)),
    (SEPARATE, ("normalizer",)),
    (SEPARATE, ("call",)),
    (SEPARATE, ("plan.tiling", "hooks")),
    (SEPARATE, ("backends.shared.dropout",)),
    (SEPARATE, ("backends.shared.dense",)),
    (SEPARATE, ("backends.shared.weight_tiles",)),
    (SEPARATE, ("backends.protocol",)),
    (SEPARATE, ("plan",)),
    (SEPARATE, ("backends",)),
    (TOGETHER, ("result", "weights", "measure")),
    (SEPARATE, ("torch_ops",)),
    (SEPARATE, ("attention", "varlen")),
    (SEPARATE, ("plot",)),
    (SEPARATE, ("mechanisms", "nn", "walkthrough")),
    (SEPARATE, ("models", "integrations", "distributed")),
    (SEPARATE, ("recording", "theory")),
    (SEPARATE, ("explorer",)),
    (SEPARATE, ("cli",)),
)
RANK = {part: rank for rank, (_, parts) in enumerate(ORDER) for part in parts}
# backends import these, and nothing else from each other
SHARED_BY_BACKENDS = {"shared", "protocol"}
BACKEND_USERS = {"registry", "execute", "fast_path"}  # these run the backends
COMPILED = ("_core",)
COMPILED_IMPORTER = ("backends", "native", "abi")
PRINTING_PARTS = {"cli", "explorer"}
NETWORK = {"aiohttp", "ftplib", "http", "httpx", "requests", "socket", "socketserver", "ssl", "starlette"}
NETWORK |= {"urllib.request", "urllib3", "uvicorn", "websockets", "xmlrpc"}

Name = tuple[str, ...]


@dataclass(frozen=True)
class Module:
    """One file. `name` is its dotted name below regard as a tuple, `("expr", "ir")`; regard itself is `()`."""

    name: Name
    is_package: bool
    tree: ast.Module
    path: str


@dataclass(frozen=True)
class Import:
    """One imported name. `target` is its module below regard, None for modules of other packages."""

    target: Name | None
    dotted: str
    name: str
    line: int
    level: int
    at_import_time: bool


def part_of(name: Name) -> str:
    """The part that a module belongs to: the longest prefix of its name in ORDER, else its first component."""
    prefixes = (".".join(name[:length]) for length in range(len(name), 0, -1))
    return next((prefix for prefix in prefixes if prefix in RANK), name[0] if name else "")


@cache
def read_modules(source: Path) -> dict[Name, Module]:
    modules = {}
    for path in sorted(source.rglob("*.py")):
        parts = path.relative_to(source).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        name = parts[:-1] if is_package else parts
        tree = ast.parse(path.read_text(encoding="utf8"), str(path))
        modules[name] = Module(name, is_package, tree, path.relative_to(source.parent).as_posix())
    return modules


def imports_of(module: Module, modules: dict[Name, Module]) -> Iterator[Import]:
    for node, at_import_time in _import_statements(module.tree, at_import_time=True):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield _absolute_import(alias.name.split("."), node.lineno, at_import_time)
        else:
            for alias in node.names:
                yield _import_from(module, node, alias.name, modules, at_import_time)


def _import_statements(node: ast.AST, *, at_import_time: bool) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    """Yield each import statement, and whether it runs when the module is imported."""
    at_import_time = at_import_time and not _is_deferred(node)
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child, at_import_time
        elif isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
            yield from _import_statements(child, at_import_time=at_import_time)


def _is_deferred(node: ast.AST) -> bool:
    if isinstance(node, ast.If):
        return "TYPE_CHECKING" in ast.unparse(node.test)
    return isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))


def _absolute_import(parts: list[str], line: int, at_import_time: bool) -> Import:
    target = tuple(parts[1:]) if parts[0] == "regard" else None
    return Import(target, ".".join(parts), parts[-1], line, 0, at_import_time)


def _import_from(
    module: Module, node: ast.ImportFrom, name: str, modules: dict[Name, Module], at_import_time: bool
) -> Import:
    parts = node.module.split(".") if node.module else []
    if node.level:
        package = ("regard", *module.name) if module.is_package else ("regard", *module.name[:-1])
        parts = [*package[: max(len(package) - node.level + 1, 0)], *parts]
    imported = _absolute_import([*parts, name] if parts else ["", name], node.lineno, at_import_time)
    target = imported.target
    # `from regard.expr import ir` imports a module, `from regard.expr.ir import Expr` a name of a module
    if target is not None and target not in modules and target != COMPILED:
        target = target[:-1]
    return replace(imported, target=target, level=node.level)


def violations(source: Path) -> list[str]:
    """A sentence for each import, print and socket that the order forbids."""
    modules = read_modules(source)
    messages = []
    for module in modules.values():
        if module.name and part_of(module.name) not in RANK:
            messages.append(f"{module.path}: {module.name[0]} has no place in the order")
            continue
        for imported in imports_of(module, modules):
            for reason in _import_violations(module, imported, modules):
                messages.append(f"{module.path}:{imported.line}: {reason}")
        messages.extend(_print_violations(module))
    return messages


def _import_violations(module: Module, imported: Import, modules: dict[Name, Module]) -> Iterator[str]:
    if imported.target is None:
        if module.name[:1] not in {(part,) for part in PRINTING_PARTS} and _is_network(imported.dotted):
            yield f"imports {imported.dotted}: only cli and explorer use the network"
        return
    dotted = ".".join(("regard", *imported.target))
    if imported.level > 1:
        yield f"imports {dotted} from above its own package: write the absolute name"
    if imported.target[:1] == COMPILED:
        if module.name != COMPILED_IMPORTER:
            yield "imports regard._core: only backends/native/abi.py imports the compiled module"
        return
    if not module.name:
        return
    if module.name[0] == "backends" == (imported.target or ("",))[0]:
        yield from _backend_violations(module.name, imported.target, dotted)
    origins = [imported.target] if imported.target else _public_origins(imported.name, modules)
    if not all(_may_import(module.name, origin) for origin in origins):
        yield f"{part_of(module.name)} imports {dotted}, which does not come before it"


def _backend_violations(importer: Name, target: Name, dotted: str) -> Iterator[str]:
    """A backend imports its own package and what backends share."""
    importer_name, target_name = (name[1] if len(name) > 1 else "" for name in (importer, target))
    if importer_name in BACKEND_USERS or target_name == importer_name or target_name in SHARED_BY_BACKENDS:
        return
    yield f"imports {dotted}: backends share only {', '.join(sorted(SHARED_BY_BACKENDS))}"


def _public_origins(name: str, modules: dict[Name, Module]) -> list[Name]:
    """The module that a public name comes from; for `import regard`, the modules of all public names."""
    public = [imported for imported in imports_of(modules[()], modules) if imported.target]
    named = [imported.target for imported in public if imported.target and imported.name == name]
    return named or [imported.target for imported in public if imported.target]


def _may_import(importer: Name, target: Name) -> bool:
    own, other = part_of(importer), part_of(target)
    if own == other:
        return True
    if other not in RANK:
        return False
    if RANK[own] == RANK[other]:
        return ORDER[RANK[own]][0] == TOGETHER
    return RANK[other] < RANK[own]


def _is_network(dotted: str) -> bool:
    parts = dotted.split(".")
    return any(".".join(parts[:length]) in NETWORK for length in range(1, len(parts) + 1))


def _print_violations(module: Module) -> Iterator[str]:
    if module.name and module.name[0] in PRINTING_PARTS:
        return
    for node in ast.walk(module.tree):
        prints = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
        writes = (
            isinstance(node, ast.Attribute) and node.attr in ("stdout", "stderr") and ast.unparse(node.value) == "sys"
        )
        if isinstance(node, ast.expr) and (prints or writes):
            yield f"{module.path}:{node.lineno}: {ast.unparse(node)}: only cli and explorer print"


def import_cycles(source: Path) -> list[str]:
    """Each cycle of modules that import each other at import time."""
    modules = read_modules(source)
    targets = {
        name: sorted({i.target for i in imports_of(module, modules) if i.at_import_time and i.target in modules})
        for name, module in modules.items()
    }
    cycles: list[str] = []
    finished: set[Name] = set()

    def visit(name: Name, path: list[Name]) -> None:
        if name in path:
            cycles.append(" -> ".join(".".join(("regard", *step)) for step in [*path[path.index(name) :], name]))
        elif name not in finished:
            for target in targets[name]:
                visit(target, [*path, name])
            finished.add(name)

    for name in targets:
        visit(name, [])
    return cycles


def test_every_import_respects_the_order() -> None:
    assert len(read_modules(SOURCE)) > 1, f"no modules under {SOURCE}"
    assert violations(SOURCE) == []


def test_there_are_no_import_cycles() -> None:
    assert import_cycles(SOURCE) == []


def _write_tree(root: Path, files: dict[str, str]) -> Path:
    source = root / "regard"
    for name, text in {"__init__.py": "", **files}.items():
        path = source / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf8")
    return source


@pytest.mark.parametrize(
    "name, text, expected",
    [
        ("plan/choose.py", "from regard.backends import tiled", "plan imports regard.backends.tiled"),
        ("plan/choose.py", "def f():\n    import regard.backends.tiled", "plan imports regard.backends.tiled"),
        ("plan/choose.py", "from regard import backends", "plan imports regard.backends,"),
        ("plan/choose.py", "if TYPE_CHECKING:\n    import regard.backends", "plan imports regard.backends,"),
        ("plan/tiling.py", "from regard.plan import choose", "plan.tiling imports regard.plan.choose"),
        ("backends/protocol.py", "from regard.backends import tiled", "backends share only"),
        ("errors.py", "import regard.cost", "errors imports regard.cost"),
        ("errors.py", "from regard import attention", "errors imports regard.attention"),
        ("cost.py", "from regard.expr.ir import Expr", "cost imports regard.expr.ir"),
        ("expr/ir.py", "from regard import mask", "expr imports regard.mask"),
        ("expr/ir.py", "from regard import explain", "expr imports regard,"),
        ("expr/ir.py", "import regard", "expr imports regard,"),
        ("expr/ir.py", "from ..errors import ArgumentError", "from above its own package"),
        ("expr/ir.py", "import regard.nonesuch", "expr imports regard.nonesuch"),
        ("nn/block.py", "from regard import mechanisms", "nn imports regard.mechanisms"),
        ("backends/tiled.py", "from regard.backends import reference", "backends share only"),
        ("backends/tiled.py", "from .reference import run", "backends share only"),
        ("backends/tiled.py", "from regard._core import forward", "only backends/native/abi.py"),
        ("backends/shared/merge.py", "from regard.backends import tiled", "backends share only"),
        ("nonesuch.py", "", "nonesuch has no place in the order"),
        ("measure.py", "def f():\n    print(1)", "only cli and explorer print"),
        ("measure.py", "import sys\nsys.stdout.write('1')", "only cli and explorer print"),
        ("integrations/hub.py", "from urllib.request import urlopen", "use the network"),
        ("integrations/hub.py", "import http.client", "use the network"),
    ],
)
def test_a_forbidden_import_is_found(tmp_path: Path, name: str, text: str, expected: str) -> None:
    files = dict.fromkeys(["errors.py", "cost.py", "mask.py", "attention.py", "expr/__init__.py", "expr/ir.py"], "")
    files |= dict.fromkeys(["plan/__init__.py", "plan/choose.py", "backends/__init__.py", "backends/tiled.py"], "")
    files |= {"backends/reference.py": "", "mechanisms/__init__.py": ""}
    files |= {"__init__.py": "from regard.attention import explain"}
    messages = violations(_write_tree(tmp_path, files | {name: text}))
    assert any(f"{name}:" in message and expected in message for message in messages), messages
    assert all(f"{name}:" in message for message in messages), messages


def test_allowed_imports_are_not_reported(tmp_path: Path) -> None:
    source = _write_tree(
        tmp_path,
        {
            "__init__.py": "from regard import cost, measure\nfrom regard.attention import explain",
            "errors.py": "",
            "cost.py": "from regard.errors import ArgumentError",
            "expr/__init__.py": "from .ir import Expr\nfrom regard.expr import trace",
            "expr/ir.py": "from urllib.parse import quote\nfrom regard.errors import ArgumentError",
            "expr/trace.py": "from . import ir",
            "plan/__init__.py": "from regard import cost\nfrom regard.expr.ir import Expr",
            "plan/tiling.py": "from regard.expr.ir import Expr",
            "plan/choose.py": "from regard.backends.protocol import Backend\nfrom regard.plan.tiling import Tiling",
            "backends/__init__.py": "",
            "backends/protocol.py": "from regard.plan.tiling import Tiling",
            "backends/registry.py": "from regard.backends import tiled",
            "backends/shared/merge.py": "import torch",
            "backends/tiled.py": "from regard.backends.shared.merge import merge\nfrom regard import cost",
            "backends/native/abi.py": "from regard import _core",
            "backends/native/backend.py": "from regard.backends.native.abi import core",
            "measure.py": "from regard.errors import ArgumentError",
            "weights.py": "from regard.measure import entropy",
            "attention.py": "import regard.plan\nfrom regard.weights import AttentionWeights",
            "nn/__init__.py": "from regard import explain\nimport regard.errors",
            "walkthrough/__init__.py": "import regard\nfrom regard import cost",
            "cli.py": "import socket\nprint(socket)",
        },
    )
    assert violations(source) == []
    assert import_cycles(source) == []


def test_a_cycle_is_found_unless_one_import_is_deferred(tmp_path: Path) -> None:
    files = {"expr/__init__.py": "", "expr/a.py": "from . import b", "expr/b.py": "from regard.expr.a import f"}
    assert import_cycles(_write_tree(tmp_path / "cycle", files)) == ["regard.expr.a -> regard.expr.b -> regard.expr.a"]
    files["expr/b.py"] = "def g():\n    from regard.expr.a import f"
    assert import_cycles(_write_tree(tmp_path / "deferred", files)) == []


def test_a_cycle_through_the_public_names_is_found(tmp_path: Path) -> None:
    files = {
        "__init__.py": "from regard.attention import explain",
        "attention.py": "from regard import explain",
    }
    assert import_cycles(_write_tree(tmp_path / "cycle", files)) == ["regard -> regard.attention -> regard"]
