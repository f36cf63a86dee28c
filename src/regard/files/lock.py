"""Locks that the system releases when their owner ends, however it ends."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from regard.errors import SpecError

fcntl: Any
try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

LOCK_NAME = ".regard-lock"


def try_lock(file: Any) -> bool:
    """Locks an open file; False where another process, or another open of this one, holds the lock.

    Where the system has no such locks, a writer is never alone: nothing is removed, and nothing is refused.
    """
    if fcntl is None:
        return bool(file.writable())
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


@contextmanager
def locked_folder(folder: Path, purpose: str) -> Iterator[BinaryIO]:
    """Holds the lock of a folder, which is on the file that is yielded. Raises `SpecError` where another holds it.

    A process that inherits the file holds the lock as well.
    """
    with (folder / LOCK_NAME).open("ab") as file:
        if not try_lock(file):
            raise SpecError(
                f"{folder} must be used by one {purpose} at a time; another {purpose} holds its lock. Wait until the "
                f"other {purpose} ends, stop it, or choose another folder."
            )
        yield file
