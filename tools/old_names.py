"""Search the tree for old names in their old role, with the rename map of old_names.tsv.

    python tools/old_names.py            list all findings; exit with 1 if there are any
    python tools/old_names.py TEXT ...   list the findings that contain one of the texts

A name counts by role: `heads` is an ordinary word, but not as the parameter of a function whose parameter is now called
`num_heads`. Containers are matched by their new names. Local variables that are bare participles (`found`, `kept`, ...)
are listed as well. old_names_allowed.txt has the deliberate exceptions, one per line with its reason.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MAP, ALLOWED = ROOT / "tools" / "old_names.tsv", ROOT / "tools" / "old_names_allowed.txt"
SEARCHED = ("src", "csrc", "tests", "benchmarks", "tools", "docs", "examples")
LOCALS = frozenset("found asked told heard said made given kept".split())
PYTHON_KINDS = frozenset("class function method attribute parameter constant".split())


@dataclass
class Scope:
    """The names that a class or module defines, and the parameters of each function by name."""

    members: set[str] = field(default_factory=set)
    parameters: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))


@dataclass(frozen=True)
class Entry:
    kind: str
    old: str
    new: str


def read_map(path: Path = MAP) -> list[Entry]:
    lines = path.read_text(encoding="utf8").splitlines()[1:]
    return [Entry(*line.split("\t")) for line in lines]


def read_scopes(files: Sequence[Path], root: Path) -> tuple[dict[str, Scope], dict[str, Scope]]:
    """Return the scopes of modules by dotted name, and of classes by name."""
    modules: dict[str, Scope] = {}
    classes: dict[str, Scope] = defaultdict(Scope)
    for path in files:
        scope = modules[module_key(path, root)] = Scope()
        for node in ast.parse(path.read_text(encoding="utf8")).body:
            _add_statement(node, scope)
            if isinstance(node, ast.ClassDef):
                _add_class(node, classes[node.name])
    return modules, classes


def module_key(path: Path, root: Path) -> str:
    relative = path.relative_to(root).with_suffix("").as_posix()
    return relative.removeprefix("src/").removesuffix("/__init__").replace("/", ".")


def _add_statement(node: ast.stmt, scope: Scope) -> None:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        scope.members.add(node.name)
        scope.parameters[node.name] |= _parameter_names(node)
    elif isinstance(node, ast.ClassDef):
        scope.members.add(node.name)
    elif isinstance(node, (ast.Assign, ast.AnnAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        for target in targets:
            scope.members |= {name.id for name in ast.walk(target) if isinstance(name, ast.Name)}


def _add_class(node: ast.ClassDef, scope: Scope) -> None:
    for statement in node.body:
        _add_statement(statement, scope)
    for inner in ast.walk(node):
        is_store = isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store)
        if is_store and isinstance(inner.value, ast.Name) and inner.value.id == "self":
            scope.members.add(inner.attr)


def _parameter_names(node: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    arguments = node.args
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return {a.arg for a in [*named, *filter(None, (arguments.vararg, arguments.kwarg))]}


class Renames:
    """New names of modules, classes and functions by their old qualified names."""

    def __init__(self, entries: Sequence[Entry], unmoved: Collection[str]) -> None:
        self.modules = {module: module for module in unmoved}
        self.names: dict[str, str] = {}
        for entry in entries:
            if entry.kind == "module" and entry.old.endswith(".py"):
                self.modules[_dotted(entry.old)] = _dotted(entry.new)
            elif entry.kind in ("class", "function", "method"):
                self.names[entry.old] = entry.new.rpartition(".")[2]

    def split(self, qualified: str) -> tuple[str, list[str]]:
        """Return the new module of an old qualified name, and its new containers with the last name unchanged."""
        parts = qualified.split(".")
        lengths = range(len(parts) - 1, 0, -1)
        length = next((n for n in lengths if ".".join(parts[:n]) in self.modules), 1)
        module, inner = ".".join(parts[:length]), parts[length:]
        renamed = [self.names.get(".".join(parts[: length + n + 1]), name) for n, name in enumerate(inner[:-1])]
        return self.modules.get(module, module), [*renamed, inner[-1]]


def _dotted(path: str) -> str:
    return path.removeprefix("src/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def python_findings(entries: Sequence[Entry], modules: dict[str, Scope], classes: dict[str, Scope]) -> Iterator[str]:
    renames = Renames(entries, modules)
    for entry in entries:
        if entry.kind not in PYTHON_KINDS or not re.fullmatch(r"\w+[.][\w.]+(\([\w, *]+\))?", entry.old):
            continue
        qualified, _, parameter = entry.old.partition("(")
        module, names = renames.split(qualified)
        scope = modules.get(module) if len(names) == 1 else classes.get(names[-2])
        if scope is None:
            continue
        if parameter:
            function = renames.names.get(qualified, names[-1])
            for old in parameter.rstrip(")").replace(" ", "").split(","):
                if old in scope.parameters.get(function, ()) and old != entry.new:
                    yield f"parameter {old} of {function} in {module} (now {entry.new})"
        elif names[-1] in scope.members and names[-1] != entry.new:
            yield f"{entry.kind} {'.'.join(names)} in {module} (now {entry.new})"


def path_findings(entries: Sequence[Entry], root: Path) -> Iterator[str]:
    for entry in entries:
        if entry.kind == "module" and "/" in entry.old and (root / entry.old).is_file():
            yield f"file {entry.old} (now {entry.new})"


def css_findings(entries: Sequence[Entry], root: Path) -> Iterator[str]:
    text = "\n".join(path.read_text(encoding="utf8") for path in (root / "src").rglob("*.css"))
    classes = set(re.findall(r"\.([A-Za-z][\w-]*)", text))
    for entry in entries:
        if entry.kind == "css" and entry.old.startswith(".") and entry.old[1:] in classes:
            yield f"CSS class {entry.old} (now {entry.new})"


def declaration_findings(entries: Sequence[Entry], root: Path) -> Iterator[str]:
    """Yield old names that JavaScript and C++ files still declare."""
    files = {entry.old: entry.new for entry in entries if entry.kind == "module"}
    for entry in entries:
        if entry.kind not in ("js", "cpp") or ":" not in entry.old:
            continue
        file, _, qualified = entry.old.partition(":")
        if "." in qualified:  # members are ordinary words, which other functions of the file may use
            continue
        old_file = f"src/regard/explorer/{file}" if entry.kind == "js" else file
        path, name = root / files.get(old_file, old_file), qualified
        if not path.is_file() or not name.isidentifier() or name == entry.new.rpartition(".")[2]:
            continue
        if _declares(path.read_text(encoding="utf8"), name):
            yield f"{entry.kind} {qualified} in {path.relative_to(root).as_posix()} (now {entry.new})"


def _declares(text: str, name: str) -> bool:
    code = re.sub(r"//[^\n]*|/\*.*?\*/|\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*'", "", text, flags=re.DOTALL)
    keyword = rf"\b(?:function|const|let|var|class|struct|enum|auto|static|async)\s+{name}\b"
    typed = rf"[\w>&*]\s+[&*]?{name}\s*(?:[;={{\[,)]|\([^;]*\)\s*(?:const\s*)?\{{)"
    method = rf"(?m)^\s*(?:async\s+|static\s+|get\s+)?{name}\s*\([^;]*?\)\s*\{{"
    return any(re.search(pattern, code) for pattern in (keyword, typed, method))


def local_findings(files: Sequence[Path], root: Path) -> Iterator[str]:
    word = re.compile(rf"\b_*(?:{'|'.join(LOCALS)})\b")
    for path in files:
        text = path.read_text(encoding="utf8")
        for node in ast.walk(ast.parse(text)) if word.search(text) else ():
            name = ""
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                name = node.id
            elif isinstance(node, ast.arg):
                name = node.arg
            elif isinstance(node, ast.FunctionDef):
                name = node.name
            if name.lstrip("_") in LOCALS:
                yield f"{path.relative_to(root).as_posix()}:{node.lineno}: the name {name}"
    declaration = re.compile(rf"\b(?:const|let|var|auto|int|float|bool|int64_t|size_t)\s+({'|'.join(LOCALS)})\b")
    for folder, suffixes in (("csrc", (".h", ".cpp")), ("src", (".js",))):
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in suffixes:
                for number, line in enumerate(path.read_text(encoding="utf8").splitlines(), 1):
                    if match := declaration.search(line):
                        yield f"{path.relative_to(root).as_posix()}:{number}: the name {match[1]}"


def findings(root: Path = ROOT) -> list[str]:
    """Return the old names in the tree below `root`, without the allowed exceptions."""
    entries = read_map()
    files = [path for folder in SEARCHED for path in sorted((root / folder).rglob("*.py"))]
    modules, classes = read_scopes(files, root)
    lines = [
        *path_findings(entries, root),
        *python_findings(entries, modules, classes),
        *css_findings(entries, root),
        *declaration_findings(entries, root),
    ]
    allowed = set()
    if ALLOWED.is_file():
        exceptions = ALLOWED.read_text(encoding="utf8").splitlines()
        allowed = {line.partition("  #")[0].strip() for line in exceptions if line.strip() and not line.startswith("#")}
    return [line for line in [*dict.fromkeys(lines), *local_findings(files, root)] if line not in allowed]


def main(arguments: Sequence[str]) -> int:
    lines = [line for line in findings() if not arguments or any(part in line for part in arguments)]
    print("\n".join([*lines, f"{len(lines)} old names"]))
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
