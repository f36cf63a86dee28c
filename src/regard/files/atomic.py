"""Atomic file writing: a reader finds the previous file or the complete new one, even after a crash or a full disk.

The content goes to a partial file in the same folder. It is flushed to the disk, then renamed, then the folder is
flushed. The writer holds a lock on its partial file, which the system releases when the writer ends. The next writer in
the folder uses these locks to find and remove the partial files of killed writers.
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
    """Write text in UTF-8. See `atomic_file`."""
    with atomic_file(path) as file:
        file.write(text.encode())


@contextmanager
def atomic_file(path: str | Path) -> Iterator[BinaryIO]:
    """Yield a binary file that replaces `path` when the block ends. If the block fails, `path` does not change.

    An existing file keeps its mode; the umask determines the mode of a new file. If `path` is a symbolic link, its
    target is replaced. Pipes and devices are written directly. Raise `SaveError` if the file cannot be written.
    """
    target = Path(os.path.realpath(path))
    with translate_os_errors(path):
        mode = _file_mode(target)
        if mode is not None and not stat.S_ISREG(mode):
            with target.open("wb") as device:
                yield device
            return
        remove_abandoned_files(target.parent)
        partial, file = _open_partial(target, DEFAULT_MODE if mode is None else stat.S_IMODE(mode))
        try:
            with file:
                if mode is not None:
                    os.chmod(partial, stat.S_IMODE(mode))
                yield file
                file.flush()
                os.fsync(file.fileno())
                os.replace(partial, target)
        except BaseException:  # includes KeyboardInterrupt
            partial.unlink(missing_ok=True)
            raise
        _sync_folder(target.parent)


def remove_abandoned_files(folder: Path) -> None:
    """Remove the partial files of writers that have ended, such as killed processes."""
    for partial in folder.glob(f".*{PARTIAL_SUFFIX}"):
        with suppress(OSError), partial.open("rb") as file:
            if try_lock(file):
                partial.unlink(missing_ok=True)


@contextmanager
def translate_os_errors(path: str | Path) -> Iterator[None]:
    """Convert an `OSError` to a `SaveError` that names the file."""
    try:
        yield
    except SaveError:
        raise
    except OSError as error:
        reason = error.strerror or str(error)
        raise SaveError(
            f"{path} must be a file that can be written; got: {reason}. Free some space, or choose another folder."
        ) from error


def _file_mode(path: Path) -> int | None:
    try:
        return path.stat().st_mode
    except FileNotFoundError:
        return None


def _open_partial(target: Path, mode: int) -> tuple[Path, BinaryIO]:
    """Create a partial file beside the target, and lock it."""
    while True:
        partial = target.with_name(f".{target.name[:100]}.{secrets.token_hex(4)}{PARTIAL_SUFFIX}")
        try:
            descriptor = os.open(partial, os.O_CREAT | os.O_EXCL | os.O_RDWR | getattr(os, "O_BINARY", 0), mode)
        except FileExistsError:
            continue
        file = os.fdopen(descriptor, "w+b")
        # before it was locked, another writer may have removed the file as abandoned
        if try_lock(file) and partial.exists():
            return partial, file
        file.close()


def _sync_folder(folder: Path) -> None:
    """Flush the new file name to the disk, on systems that can open a folder."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
