"""Imports of optional dependencies, with one error message."""

from importlib import import_module
from typing import Any

from regard.errors import MissingDependencyError


def import_optional(package: str, needed_by: str, requirement: str) -> Any:
    """Return an optional package; raise `MissingDependencyError` if it is not installed.

    `needed_by` is the subject of the message, and `requirement` is what pip installs, such as "regard[train]".
    """
    try:
        return import_module(package)
    except ImportError:
        raise MissingDependencyError(
            f"{needed_by} needs {package}, which is not installed. Use pip install '{requirement}'."
        ) from None
