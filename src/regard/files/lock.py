"""File locks that the system releases when the process that holds them ends, even if it is killed."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from regard.errors import ArgumentError

fcntl: Any
try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

LOCK_NAME = ".regard-lock"


def try_lock(file: Any) -> bool:
    """Lock an open file; return False if another process, or another file object, holds the lock.

    On a system without such locks, the result is whether the file is open for writing: no error is raised, and no
    partial file is removed.
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
    """Hold the lock of a folder and yield the lock file. Raise `ArgumentError` if another process holds the lock.

    A child process that inherits the file also holds the lock.
    """
    with (folder / LOCK_NAME).open("ab") as file:
        if not try_lock(file):
            raise ArgumentError(
                f"{folder} must be used by one {purpose} at a time; another {purpose} holds its lock. Wait until the "
                f"other {purpose} ends, stop it, or choose another folder."
            )
        yield file
