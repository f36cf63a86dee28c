"""Every public callable of regard, by its dotted name: functions, classes and methods with arguments."""

import inspect
from collections.abc import Iterator
from importlib import import_module
from types import ModuleType

# module -> the name under which users import it
MODULES = {
    "regard": "regard",
    "regard.spec.mask": "regard.mask",
    "regard.spec.score": "regard.score",
    "regard.spec.weigh": "regard.weigh",
    "regard.spec.feature": "regard.feature",
    "regard.inside.patch": "regard.inside.patch",
    "regard.inside.places": "regard.inside.places",
    "regard.inside.relations": "regard.inside.relations",
    **{f"regard.{name}": f"regard.{name}" for name in ("measure", "cost", "nn", "distributed", "draw", "theory")},
    **{
        f"regard.mechanism.{name}": f"regard.mechanism.{name}"
        for name in (
            "axial", "block_sparse", "catalogue", "clustered", "compare", "graph", "heads", "linear", "linformer",
            "longformer", "longnet", "metric", "nystrom", "recurrent", "reformer", "routing", "state",
        )
    },
    **{
        f"regard.models.{name}": f"regard.models.{name}"
        for name in (
            "encoder", "graph", "language", "load", "multimodal", "rnn_translation", "shipped", "sound", "speech",
            "store", "text", "train", "trained", "translation", "vision",
        )
    },
    **{f"regard.integrations.{name}": f"regard.integrations.{name}" for name in ("onnx", "onnx_linear")},
}  # fmt: skip


def public_names() -> Iterator[str]:
    for path, public in MODULES.items():
        module = import_module(path)
        for name in exported(module):
            value = getattr(module, name)
            if inspect.isclass(value):
                yield f"{public}.{name}"
                yield from (f"{public}.{name}.{method}" for method in methods(value))
            elif callable(value) and not inspect.ismodule(value):
                yield f"{public}.{name}"


def exported(module: ModuleType) -> list[str]:
    """`__all__`, or the functions and classes that the module itself defines."""
    if hasattr(module, "__all__"):
        return sorted(module.__all__)
    own = (name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__)
    return sorted(name for name in own if not name.startswith("_") and callable(getattr(module, name)))


def methods(cls: type) -> list[str]:
    """Public methods of the class's own body that take arguments."""
    functions = ((name, value) for name, value in vars(cls).items() if not name.startswith("_"))
    return [
        name for name, value in functions if inspect.isfunction(value) and len(inspect.signature(value).parameters) > 1
    ]
