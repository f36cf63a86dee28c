"""Private names of torch: all of them are in the table, and a missing one raises an error that names it."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from regard.errors import UnsupportedVersionError
from regard.torch_ops.private_names import PRIVATE_NAMES, TESTED_TORCH, check_private_names

ROOT = Path(__file__).parents[2]
NAMES = [(module, name) for module, names in PRIVATE_NAMES.items() for name in names]
PRIVATE_ATTRIBUTES_OF_TENSORS = {name for name in dir(torch.Tensor) if name.startswith("_") and name[1] != "_"}
WITHOUT_ONE_NAME = """
import importlib
import torch
owner = importlib.import_module({module!r})
delattr(owner, {name!r})
import regard
"""


def private_uses(source: str) -> Iterator[str]:
    """The dotted private names of torch that a module uses: imports, attributes of modules, methods of tensors."""
    tree = ast.parse(source)
    aliases = {"torch": "torch"}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch":
            for alias in node.names:
                dotted = f"{node.module}.{alias.name}"
                aliases[alias.asname or alias.name] = dotted
                if is_private(dotted):
                    yield dotted
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            root, _, rest = ast.unparse(node).partition(".")
            if "(" in rest:  # an attribute of a result
                continue
            if root in aliases and is_private(node.attr) and not is_private(aliases[root]):
                yield f"{aliases[root]}.{rest}"
            elif node.attr in PRIVATE_ATTRIBUTES_OF_TENSORS and root != "self":
                yield f"torch.Tensor.{node.attr}"
            elif root == "torch" and is_private(rest):
                yield f"torch.{rest}"


def is_private(dotted: str) -> bool:
    return any(part.startswith("_") and not part.startswith("__") for part in dotted.split("."))


def test_the_table_has_every_private_name_that_the_source_uses() -> None:
    uses = {
        use: path.relative_to(ROOT).as_posix()
        for path in sorted((ROOT / "src" / "regard").rglob("*.py"))
        for use in private_uses(path.read_text(encoding="utf8"))
    }
    listed = {f"{module}.{name}" for module, name in NAMES}
    # the source of `torch._C._x.y` also contains its prefixes
    unlisted = {use: path for use, path in uses.items() if not any(f"{name}.".startswith(f"{use}.") for name in listed)}
    assert unlisted == {}
    assert listed - set(uses) == set()


def test_the_scan_finds_imports_attributes_and_methods() -> None:
    source = "import torch\nfrom torch._C import A\nfrom torch.autograd import forward_ad\n"
    source += "torch._C._f()\nforward_ad._level\nx._is_zerotensor()\nself._private\n"
    expected = {"torch._C.A", "torch._C", "torch._C._f", "torch.autograd.forward_ad._level"}
    assert set(private_uses(source)) == expected | {"torch.Tensor._is_zerotensor"}


def test_the_installed_torch_has_all_names() -> None:
    check_private_names()


# imports in a subprocess take seconds: one of each kind
@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("torch._C", "_are_functorch_transforms_active"),
        pytest.param("torch._C", "DispatchKeySet", marks=pytest.mark.long),
        pytest.param("torch._functorch.utils", "enable_single_level_autograd_function", marks=pytest.mark.long),
    ],
)
def test_import_without_a_private_name_raises_an_error_that_names_it(module: str, name: str) -> None:
    program = WITHOUT_ONE_NAME.format(module=module, name=name)
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert process.returncode != 0
    error = process.stderr.splitlines()[-1]
    oldest, newest = TESTED_TORCH
    assert error.startswith("regard.errors.UnsupportedVersionError: regard needs private names of torch")
    assert f"torch {torch.__version__} does not have: {module}.{name}. It is tested with torch {oldest} to" in error
    assert error.endswith(f"Use pip install 'torch>={oldest},<={newest}'.")


@pytest.mark.parametrize(("module", "name"), NAMES)
def test_every_name_is_checked(monkeypatch: pytest.MonkeyPatch, module: str, name: str) -> None:
    monkeypatch.setitem(PRIVATE_NAMES, module, (f"{name}_of_another_version",))
    with pytest.raises(UnsupportedVersionError, match=f"does not have: {module}.{name}_of_another_version"):
        check_private_names()
