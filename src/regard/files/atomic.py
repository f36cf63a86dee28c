"""Atomic writing: a reader sees the previous file or the whole new one, also after a crash or a full disk.

The content goes to a partial file in the same folder. It is flushed to the disk, then renamed, then the folder is
flushed. The writer holds a lock on its partial file, which the system releases when the writer ends in any way. So the
next writer in the folder can recognize and remove partial files whose writers were killed.
"""

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from regard.errors import SaveError
from regard.files.lock import try_lock

PARTIAL_SUFFIX = ".regard-partial"
DEFAULT_MODE = 0o666  # the system subtracts the umask


def write_text(path: str | Path, text: str) -> None:
    """Writes text in UTF-8. See `atomic_file`."""
    with atomic_file(path) as file:
        file.write(text.encode())


@contextmanager
def atomic_file(path: str | Path) -> Iterator[BinaryIO]:
    """Yields a binary file that replaces `path` when the block ends. If the block fails, `path` does not change.

    An existing file keeps its mode; a new file has the mode that the umask allows. A symbolic link stays, and its
    target is replaced. Pipes and devices are written directly. Raises `SaveError` where the system cannot write.
    """
    target = Path(os.path.realpath(path))
    with save_errors(path):
        mode = _mode_of(target)
        if mode is not None and not stat.S_ISREG(mode):
            with target.open("wb") as device:
                yield device
            return
        remove_abandoned(target.parent)
        partial, file = _open_partial(target, DEFAULT_MODE if mode is None else stat.S_IMODE(mode))
        try:
            with file:
                if mode is not None:
                    os.chmod(partial, stat.S_IMODE(mode))
                yield file
                file.flush()
                os.fsync(file.fileno())
                os.replace(partial, target)
        except BaseException:  # also when the user interrupts it
            partial.unlink(missing_ok=True)
            raise
        _sync_folder(target.parent)


def remove_abandoned(folder: Path) -> None:
    """Removes the partial files of writers that have ended, such as those killed by the system."""
    for partial in folder.glob(f".*{PARTIAL_SUFFIX}"):
        with suppress(OSError), partial.open("rb") as file:
            if try_lock(file):
                partial.unlink(missing_ok=True)


@contextmanager
def save_errors(path: str | Path) -> Iterator[None]:
    """Turns errors of the system into a `SaveError` that names the file."""
    try:
        yield
    except SaveError:
        raise
    except OSError as error:
        reason = error.strerror or str(error)
        raise SaveError(
            f"{path} must be a file that can be written; got: {reason}. Free some space, or choose another folder."
        ) from error


def _mode_of(path: Path) -> int | None:
    try:
        return path.stat().st_mode
    except FileNotFoundError:
        return None


def _open_partial(target: Path, mode: int) -> tuple[Path, BinaryIO]:
    """A new partial file beside the target, locked by this writer."""
    while True:
        partial = target.with_name(f".{target.name[:100]}.{secrets.token_hex(4)}{PARTIAL_SUFFIX}")
        try:
            number = os.open(partial, os.O_CREAT | os.O_EXCL | os.O_RDWR | getattr(os, "O_BINARY", 0), mode)
        except FileExistsError:
            continue
        file = os.fdopen(number, "w+b")
        # another writer may have taken the file for an abandoned one before it was locked
        if try_lock(file) and partial.exists():
            return partial, file
        file.close()


def _sync_folder(folder: Path) -> None:
    """Flushes the new name to the disk, on systems that can open a folder."""
    with suppress(OSError):
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)
