"""The socket of the server, which is opened before a model is loaded."""

import os
import socket
from dataclasses import dataclass

from regard.errors import ArgumentError


@dataclass(frozen=True)
class Listener:
    """A listening socket, and whether the user chose its port, so that the address must stay the same."""

    socket: socket.socket
    has_fixed_port: bool

    @property
    def port(self) -> int:
        return int(self.socket.getsockname()[1])


def listen(port: int) -> Listener:
    """Listen on a port of the loopback interface; 0 uses a free port."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    if os.name == "posix":  # allows a port that was just closed; on Windows it would share a port in use
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind(("127.0.0.1", port))
        sock.listen(128)  # clients may connect before the server runs
    except (OSError, OverflowError) as error:
        sock.close()
        raise ArgumentError(
            f"port must be free and from 0 to 65535; got {port}: {error}. Use 0 for a free port."
        ) from None
    return Listener(sock, has_fixed_port=port != 0)
