"""The key in the address of the page: random, and the same after a restart if the user chose the port.

Bookmarks and open tabs should survive a restart if the user chose a port. The key of that port is then stored in a
file that only its owner can read, in the user's state directory (XDG_STATE_HOME).
"""

import hashlib
import hmac
import os
import re
import secrets
import stat
from pathlib import Path

from regard.errors import LoadError

KEY_BYTES = 16
KEY_PATTERN = re.compile(r"[\w-]{16,64}")


def new_key() -> str:
    return secrets.token_urlsafe(KEY_BYTES)


def load_or_create_key(port: int) -> str:
    """Return the stored key of a port; create and store a new key if there is none."""
    path = state_folder() / f"explorer-key-{port}"
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return _read_key(path) or _write_key(path, new_key())
    except OSError as error:
        raise LoadError(
            f"the key of port {port} is stored in {path}, so that the address stays the same; access failed: "
            f"{error.strerror}. Make the folder writable, set XDG_STATE_HOME to another folder, or omit --port."
        ) from None


def state_folder() -> Path:
    """Return the folder for the state of this program, which survives a restart."""
    base = os.environ.get("XDG_STATE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".local" / "state") / "regard"


def proof(key: str, port: int, nonce: str) -> str:
    """Return the HMAC of a nonce, which proves that a server has this key and port and does not reveal the key."""
    return hmac.new(key.encode(), f"{port} {nonce}".encode(), hashlib.sha256).hexdigest()


def _read_key(path: Path) -> str | None:
    """Return the key in a file; None if another user may have read or written it."""
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
    except FileNotFoundError:
        return None
    with os.fdopen(descriptor) as file:
        status = os.fstat(descriptor)
        is_private = os.name != "posix" or (status.st_uid == os.getuid() and not stat.S_IMODE(status.st_mode) & 0o077)
        key = file.read(128).strip()
    return key if is_private and KEY_PATTERN.fullmatch(key) else None


def _write_key(path: Path, key: str) -> str:
    """Write the key to a temporary file and rename it: servers that start together must not mix their keys."""
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(f"{key}\n")
    os.replace(temporary, path)
    return key
