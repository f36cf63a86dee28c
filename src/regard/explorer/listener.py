"""The socket that the page is served on, which is open before anything that takes long begins."""

import os
import socket
from dataclasses import dataclass

from regard.errors import SpecError


@dataclass(frozen=True)
class Listener:
    """A socket that listens, and whether the user chose its port, so that its address must stay the same."""

    socket: socket.socket
    is_chosen: bool

    @property
    def port(self) -> int:
        return int(self.socket.getsockname()[1])


def listen(port: int) -> Listener:
    """Listens on a port of this machine alone; 0 takes a free one."""
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    if os.name == "posix":  # a port that was just left; elsewhere this would share one that is in use
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind(("127.0.0.1", port))
        listening.listen(128)  # who reads the address may ask at once
    except (OSError, OverflowError) as error:
        listening.close()
        raise SpecError(f"port must be free and from 0 to 65535; got {port}: {error}. Use 0 for a free one.") from None
    return Listener(listening, is_chosen=port != 0)
