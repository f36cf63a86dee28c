"""Every exception regard raises on purpose. A message says what must hold, what was got, and what to do."""


class RegardError(Exception):
    """The root of all of them, so that one `except` catches every refusal of this library."""


class SpecError(RegardError, ValueError):
    """The question itself is not well formed: shapes, dtypes or arguments that cannot go together."""


class OutOfRangeError(SpecError, IndexError):
    """An index is beyond what it counts: layers, heads, queries or keys."""


class TraceError(RegardError, TypeError):
    """A Python function could not be read as a formula."""


class EngineError(RegardError, RuntimeError):
    """An engine was asked for by name and objects, or no engine takes the question."""


class BudgetError(RegardError, MemoryError):
    """What was asked for would take more memory than the budget allows."""


class MissingError(RegardError, ImportError):
    """An optional package that this needs is not installed."""


class LoadError(RegardError, ValueError):
    """A file cannot be read: it is damaged, of another kind, or does not fit the model it is meant for."""


class SaveError(RegardError, OSError):
    """A file cannot be written: the disk is full, or the folder does not allow it."""


class RankError(RegardError, RuntimeError):
    """Ranks that should answer together do not agree, or one of them does not answer."""
