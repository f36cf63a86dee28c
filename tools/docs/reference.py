"""The reference pages: one page for each public module, with an entry for every name that the module lists."""

import ast
import inspect
from functools import cache
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from types import ModuleType

from tools.docs.docstring_examples import fence_examples

ROOT = Path(__file__).parents[2]
# Modules that users import, in the order of the navigation. tests/project/test_public_api.py checks their names.
PUBLIC_MODULES = [
    "regard",
    "regard.score",
    "regard.mask",
    "regard.normalizer",
    "regard.feature_map",
    "regard.measure",
    "regard.mechanisms",
    "regard.nn",
    "regard.models",
    "regard.recording.patching",
    "regard.recording.metrics.relations",
    "regard.recording.metrics.token_groups",
    "regard.plot",
    "regard.theory",
    "regard.cost",
    "regard.distributed",
    "regard.integrations",
    "regard.integrations.huggingface",
    "regard.integrations.onnx",
    "regard.integrations.torch_sdpa",
    "regard.errors",
]


def navigation() -> list[str | dict[str, str]]:
    return [
        "reference/index.md",
        *({name: page_path(name)} for name in PUBLIC_MODULES),
        {"Command line": "reference/command-line.md"},
        {"The output of explain": "reference/explain.md"},
    ]


def page_path(module_name: str) -> str:
    return f"reference/{module_name}.md"


def pages_by_source() -> dict[Path, str]:
    """Return the path of each page by the file or folder that it documents, relative to the repository."""
    package = Path("src", "regard")
    folders = {package: "reference/index.md", package / "cli": "reference/command-line.md"}
    return folders | {_source(name): page_path(name) for name in PUBLIC_MODULES}


def _source(module_name: str) -> Path:
    path = Path("src", *module_name.split("."))
    return path / "__init__.py" if (ROOT / path).is_dir() else path.with_suffix(".py")


def pages() -> dict[str, str]:
    """Return the text of each page by its path."""
    return {"reference/index.md": _index(), **{page_path(name): _module_page(name) for name in PUBLIC_MODULES}}


def _index() -> str:
    rows = ["| module | contents |", "|---|---|"]
    for name in PUBLIC_MODULES:
        rows.append(f"| [`{name}`]({name}.md) | {_cell(_first_paragraph(inspect.getdoc(import_module(name))))} |")
    others = (
        "[The command line](command-line.md) lists every command and option. "
        "[The output of `explain`](explain.md) describes each field.\n"
    )
    return "# Reference\n\nEvery public name, generated from its docstring.\n\n" + "\n".join(rows) + "\n\n" + others


def _module_page(module_name: str) -> str:
    module = import_module(module_name)
    values = {name: getattr(module, name) for name in module.__all__}
    rows, entries = [], []
    for name, value in values.items():
        path = f"{module_name}.{name}"
        if inspect.ismodule(value):
            rows.append(f"| [`{name}`]({value.__name__}.md) | {_cell(summary(module, name))} |")
            continue
        rows.append(f"| [`{name}`][{_definition(path, value)}] | {_cell(summary(module, name))} |")
        entries.append(_entry(path, value))
    table = "| name | contents |\n|---|---|\n" + "\n".join(rows)
    return (
        f"# {module_name}\n\n{fence_examples(inspect.getdoc(module) or '')}\n\n{table}\n\n"
        + "\n\n".join(entries)
        + "\n"
    )


def _entry(path: str, value: object) -> str:
    definition = _definition(path, value)
    options = "" if definition == path else f'\n    options:\n      heading: "{path}"'
    return f"::: {definition}{options}"


def _definition(path: str, value: object) -> str:
    """Return the path by which Griffe finds an object: that of its definition if the public path is also a module."""
    definition = f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', '')}"
    return definition if definition.startswith(f"{path}.") else path


def summary(module: ModuleType, name: str) -> str:
    """Return the first paragraph of the docstring of a public name, "" if it has none."""
    value = getattr(module, name)
    if inspect.ismodule(value) or inspect.isclass(value) or inspect.isroutine(value):
        return _first_paragraph(inspect.getdoc(value))
    return _first_paragraph(_constant_docstrings(module).get(name))


@cache
def _constant_docstrings(module: ModuleType) -> dict[str, str]:
    """Return the strings that follow the assignments of a module, by the assigned name."""
    body = ast.parse(inspect.getsource(module)).body
    docstrings = {}
    for statement, following in pairwise(body):
        if isinstance(statement, ast.Assign | ast.AnnAssign) and isinstance(following, ast.Expr):
            target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
            if isinstance(target, ast.Name) and isinstance(following.value, ast.Constant):
                docstrings[target.id] = str(following.value.value)
    return docstrings


def _first_paragraph(docstring: str | None) -> str:
    return " ".join((docstring or "").partition("\n\n")[0].split())


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
