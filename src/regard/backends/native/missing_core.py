"""Why there is no compiled core: the message in the plan, and a warning if the core should be there."""

import warnings
from pathlib import Path
from threading import Lock

from regard.backends.native import abi
from regard.warning_location import stacklevel_outside

BUILD_ERROR_FILE = "core_not_built.txt"  # setup.py writes it if the build fails
CORE_FIX = "Install a C++ compiler, or set CC and CXX to one that works, and install regard again."
_lock = Lock()
_is_warned = False


def core_error() -> str:
    """Why the core could not be built or loaded. Empty if there is a core, or if no build was tried."""
    if abi.core is not None:
        return ""
    if abi.load_error:
        return f"it cannot be loaded: {abi.load_error}"
    build_error_file = Path(__file__).parents[2] / BUILD_ERROR_FILE
    return build_error_file.read_text(encoding="utf8").strip() if build_error_file.exists() else ""


def missing_core_reason() -> str:
    """Why there is no compiled core, for the plan of a call."""
    return f"the compiled core is missing: {core_error() or 'regard was installed without building it'}"


def warn_missing_core(error: str) -> None:
    """Warn that a call runs without the compiled core; only the first call of a process warns."""
    global _is_warned
    with _lock:
        if _is_warned:
            return
        _is_warned = True
    warnings.warn(
        f"regard runs without its compiled core, so its calls on the CPU are slower: {error}. {CORE_FIX} "
        "`regard doctor` shows the details.",
        RuntimeWarning,
        stacklevel=stacklevel_outside("regard", "torch"),
    )
