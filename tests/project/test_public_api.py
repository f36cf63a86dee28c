"""The public surface: the names that each public module lists, their annotations and their documentation."""

import inspect
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import is_dataclass
from importlib import import_module
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import numpy as np
import pytest
import tokenizers
import torch
from matplotlib.figure import Figure
from torch.distributed.device_mesh import DeviceMesh

from regard.explorer.widget import ExplorerWidget
from tools.docs.reference import PUBLIC_MODULES

# functions without a doctest, and the reason
NO_EXAMPLE = {
    "regard.explore": "shows a widget in a notebook",
    "regard.models.load_pretrained": "reads a folder of weights",
}


def public_values() -> Iterator[tuple[str, Any]]:
    """Return the dotted name and the value of every listed name that is not a module."""
    for module in [import_module(name) for name in PUBLIC_MODULES]:
        for name in module.__all__:
            value = getattr(module, name, None)
            if value is not None and not inspect.ismodule(value):
                yield f"{module.__name__}.{name}", value


def public_functions() -> dict[str, Callable[..., Any]]:
    return {name: value for name, value in public_values() if inspect.isroutine(value)}


def public_classes() -> dict[str, type]:
    return {name: value for name, value in public_values() if inspect.isclass(value)}


def public_callables() -> dict[str, Callable[..., Any]]:
    """Return functions, and the constructors, public methods and properties that regard defines for public classes."""
    callables = dict(public_functions())
    for class_name, cls in public_classes().items():
        for name in dir(cls):
            member = inspect.getattr_static(cls, name)
            function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
            is_own = str(getattr(function, "__module__", "")).startswith("regard")
            is_public = not name.startswith("_") or name in ("__init__", "__call__", "__getitem__")
            if inspect.isfunction(function) and is_own and is_public:
                callables[f"{class_name}.{name}"] = function
    return callables


FUNCTIONS, CLASSES, CALLABLES = public_functions(), public_classes(), public_callables()


@pytest.mark.parametrize("name", PUBLIC_MODULES)
def test_module_lists_its_public_names_and_dir_shows_only_them(name: str) -> None:
    module = import_module(name)
    assert [missing for missing in module.__all__ if not hasattr(module, missing)] == []
    assert len(set(module.__all__)) == len(module.__all__)
    assert dir(module) == sorted(module.__all__)


@pytest.mark.parametrize("name", PUBLIC_MODULES)
def test_public_name_is_not_imported_from_another_library(name: str) -> None:
    module = import_module(name)
    values = {name: getattr(module, name, None) for name in module.__all__}
    defined_in = {n: v.__name__ if inspect.ismodule(v) else getattr(v, "__module__", None) for n, v in values.items()}
    own = ("regard", "typing", "types", "collections.abc")  # a type alias belongs to the library of its form
    assert {name: owner for name, owner in defined_in.items() if owner and not owner.startswith(own)} == {}


@pytest.mark.parametrize("name", sorted(CALLABLES))
def test_signature_is_annotated_without_any(name: str) -> None:
    function = CALLABLES[name]
    hints = type_hints(function)
    parameters = list(inspect.signature(function).parameters)
    if "." in function.__qualname__ and parameters[:1] in (["self"], ["cls"]):
        parameters = parameters[1:]
    assert [parameter for parameter in parameters if parameter not in hints] == []
    assert "return" in hints
    assert {parameter: hint for parameter, hint in hints.items() if contains_any(hint)} == {}


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_fields_of_a_dataclass_are_annotated_without_any(name: str) -> None:
    cls = CLASSES[name]
    hints = type_hints(cls) if is_dataclass(cls) else {}
    fields = set(inspect.signature(cls).parameters) if hints else set()
    assert {field: hint for field, hint in hints.items() if field in fields and contains_any(hint)} == {}


@pytest.mark.parametrize("name", sorted({**FUNCTIONS, **CLASSES}))
def test_public_function_or_class_has_a_docstring(name: str) -> None:
    value: Any = {**FUNCTIONS, **CLASSES}[name]
    docstring = value.__dict__.get("__doc__") if inspect.isclass(value) else value.__doc__
    assert docstring and docstring.strip()
    assert not docstring.startswith(f"{value.__name__}("), "the docstring that a dataclass generates"


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_public_function_has_an_example(name: str) -> None:
    has_example = ">>>" in (FUNCTIONS[name].__doc__ or "")
    assert has_example != (name in NO_EXAMPLE)


# imported by some modules for type checkers only
TYPE_CHECKING_NAMES = {
    "DeviceMesh": DeviceMesh,
    "ExplorerWidget": ExplorerWidget,
    "Figure": Figure,
    "dist": torch.distributed,
    "tokenizers": tokenizers,
}


def type_hints(value: Any) -> dict[str, Any]:
    """Return the evaluated annotations."""
    return get_type_hints(value if inspect.isclass(value) else inspect.unwrap(value), localns=TYPE_CHECKING_NAMES)


def contains_any(hint: Any) -> bool:
    """Whether a hint is Any, or a union or generic of it. Any is allowed inside of arrays, callables and classes."""
    if hint is Any:
        return True
    if isinstance(hint, TypeVar):
        return any(contains_any(option) for option in (*hint.__constraints__, hint.__bound__))
    if get_origin(hint) in (np.ndarray, Callable, type):
        return False
    return any(contains_any(inner) for inner in get_args(hint))


@pytest.mark.parametrize(
    ("hint", "expected"),
    [
        (Any, True),
        (Any | None, True),
        (list[Any], True),
        (dict[str, tuple[Any, ...]], True),
        (TypeVar("T", bound=Any), True),  # type: ignore[misc]
        (np.ndarray[Any, Any] | None, False),
        (Callable[..., Any], False),
        (int | str, False),
    ],
)
def test_contains_any_finds_nested_hints(hint: Any, expected: bool) -> None:
    assert contains_any(hint) is expected


def test_modules_are_reached_by_importing_regard_alone() -> None:
    script = "import regard; regard.plot.weights; regard.models.language_model; regard.theory.list_experiments"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr


def test_importing_regard_loads_neither_models_nor_plots() -> None:
    script = "import sys, regard; assert not {'matplotlib', 'regard.models', 'regard.plot'} & set(sys.modules)"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
