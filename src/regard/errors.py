"""Exceptions of regard. A message states the requirement, the value that was given, and how to fix it."""

__all__ = [
    "ArgumentError",
    "BackendError",
    "BudgetError",
    "LoadError",
    "MissingDependencyError",
    "OutOfRangeError",
    "RankError",
    "RegardError",
    "SaveError",
    "TraceError",
    "UnsupportedVersionError",
]


def __dir__() -> list[str]:
    return sorted(__all__)


class RegardError(Exception):
    """Base class of all exceptions that regard raises."""


class ArgumentError(RegardError, ValueError):
    """An argument is invalid, or arguments do not fit together: shapes, dtypes, options."""


class OutOfRangeError(ArgumentError, IndexError):
    """An index of a layer, head, query or key is out of range."""


class TraceError(RegardError, TypeError):
    """A Python function could not be traced into an expression."""


class BackendError(RegardError, RuntimeError):
    """The requested backend, or every backend, does not support the call."""


class BudgetError(RegardError, MemoryError):
    """A computation would need more memory than its budget allows."""


class MissingDependencyError(RegardError, ImportError):
    """An optional package that a function needs is not installed."""


class UnsupportedVersionError(RegardError, ImportError):
    """An installed package has a version that regard does not support."""


class LoadError(RegardError, ValueError):
    """A file cannot be read: it is damaged, has another format, or does not fit the model."""


class SaveError(RegardError, OSError):
    """A file cannot be written: the disk is full, or the folder is not writable."""


class RankError(RegardError, RuntimeError):
    """The calls of distributed ranks do not match, or a rank does not respond."""
