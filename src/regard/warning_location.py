"""The line of the caller's code that a warning names."""

import sys


def stacklevel_outside(*packages: str) -> int:
    """Return the `stacklevel` with which `warnings.warn` names the first caller outside these packages."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] in packages:
        frame, level = frame.f_back, level + 1
    return level
