"""Open the page in a browser without its key on a command line, which every user of the machine can read.

The browser opens a file that only its owner can read, and the file redirects to the address.
"""

import os
import tempfile
import threading
import webbrowser
from html import escape
from pathlib import Path
from typing import Any

FILE_LIFETIME_S = 120.0


class RedirectFile:
    """A file of mode 0600 in a folder of mode 0700 that redirects to an address. The context manager removes both."""

    def __init__(self, address: str) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="regard-", ignore_cleanup_errors=True)
        self.path = Path(self._folder.name) / "open.html"
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf8") as file:
            file.write(_redirect_html(escape(address)))

    def __enter__(self) -> "RedirectFile":
        return self

    def __exit__(self, *_: Any) -> None:
        self._folder.cleanup()


def open_in_browser(address: str, opened_event: threading.Event) -> threading.Thread:
    """Open the page from a thread, which removes its file when `opened_event` is set or after FILE_LIFETIME_S."""

    def work() -> None:
        with RedirectFile(address) as file:
            webbrowser.open(file.path.as_uri())
            opened_event.wait(FILE_LIFETIME_S)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def _redirect_html(address: str) -> str:
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="referrer" content="no-referrer">\n'
        f'<meta http-equiv="refresh" content="0;url={address}">\n<title>regard</title>\n</head>\n'
        f'<body><p><a href="{address}">Open the explorer</a></p></body>\n</html>\n'
    )
