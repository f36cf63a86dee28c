"""The dotted names of all public callables of regard: functions, classes and methods with arguments."""

import inspect
from collections.abc import Iterator
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import get_origin

from regard import mechanisms

# module -> the name under which users import it
MODULES = {
    "regard": "regard",
    "regard.mask": "regard.mask",
    "regard.score": "regard.score",
    "regard.normalizer": "regard.normalizer",
    "regard.feature_map": "regard.feature_map",
    "regard.recording.patching": "regard.recording.patching",
    "regard.recording.metrics.token_groups": "regard.recording.metrics.token_groups",
    "regard.recording.metrics.relations": "regard.recording.metrics.relations",
    **{f"regard.{name}": f"regard.{name}" for name in ("measure", "cost", "nn", "distributed", "plot", "theory")},
    **{
        f"regard.mechanisms.{module.name}": f"regard.mechanisms.{module.name}"
        for module in iter_modules(mechanisms.__path__)
    },
    **{
        f"regard.models.{name}": f"regard.models.{name}"
        for name in (
            "audio", "bundled", "graph", "language", "multimodal", "pretrained", "rnn_translation", "speech",
            "state_dict", "text_encoder", "tokenizer", "trained_model", "training", "translation", "vision",
        )
    },
    "regard.integrations.onnx": "regard.integrations.onnx",
}  # fmt: skip


def public_names() -> Iterator[str]:
    for path, public in MODULES.items():
        module = import_module(path)
        for name in exported(module):
            value = getattr(module, name)
            if inspect.isclass(value):
                yield f"{public}.{name}"
                yield from (f"{public}.{name}.{method}" for method in methods(value))
            elif callable(value) and not inspect.ismodule(value) and get_origin(value) is None:  # a union is a type
                yield f"{public}.{name}"


def exported(module: ModuleType) -> list[str]:
    """Return `__all__`, or the functions and classes that the module defines."""
    if hasattr(module, "__all__"):
        return sorted(module.__all__)
    own = (name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__)
    return sorted(name for name in own if not name.startswith("_") and callable(getattr(module, name)))


def methods(cls: type) -> list[str]:
    """Return the public methods that the class body defines and that take arguments."""
    functions = ((name, value) for name, value in vars(cls).items() if not name.startswith("_"))
    return [
        name for name, value in functions if inspect.isfunction(value) and len(inspect.signature(value).parameters) > 1
    ]
