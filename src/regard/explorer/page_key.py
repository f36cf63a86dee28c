"""The key in the page's address: random, and the same at each start where the user chose a port.

A chosen port means that the address should survive a restart, for bookmarks and open tabs. The key of that port is then
kept in a file that only its owner can read, in the user's state directory (XDG_STATE_HOME).
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
KEY = re.compile(r"[\w-]{16,64}")


def new_key() -> str:
    return secrets.token_urlsafe(KEY_BYTES)


def key_of_port(port: int) -> str:
    """The stored key of a port; a new one is stored where there is none."""
    path = state_folder() / f"explorer-key-{port}"
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return _stored(path) or _store(path, new_key())
    except OSError as error:
        raise LoadError(
            f"the key of port {port} must be kept in {path}, so that its address stays the same; {error.strerror}. "
            "Make the folder writable, set XDG_STATE_HOME to another one, or leave out --port."
        ) from None


def state_folder() -> Path:
    """Where programs of this user keep what should survive a restart."""
    base = os.environ.get("XDG_STATE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".local" / "state") / "regard"


def proof(key: str, port: int, nonce: str) -> str:
    """The answer to a nonce that only a server with this key, on this port, can give; it does not reveal the key."""
    return hmac.new(key.encode(), f"{port} {nonce}".encode(), hashlib.sha256).hexdigest()


def _stored(path: Path) -> str | None:
    """The key in a file, if nobody else can have read or written it."""
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
    except FileNotFoundError:
        return None
    with os.fdopen(descriptor) as file:
        status = os.fstat(descriptor)
        is_own = os.name != "posix" or (status.st_uid == os.getuid() and not stat.S_IMODE(status.st_mode) & 0o077)
        key = file.read(128).strip()
    return key if is_own and KEY.fullmatch(key) else None


def _store(path: Path, key: str) -> str:
    """Writes the key under a name of its own first: two servers that start at once must not mix their keys."""
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(f"{key}\n")
    os.replace(temporary, path)
    return key
