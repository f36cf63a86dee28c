"""Work for a server that must go on answering: in threads, some long and some short ones at a time."""

import asyncio
import atexit
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

LONG_AT_ONCE, SHORT_AT_ONCE = 2, 8


class Threads:
    """Runs functions in threads that end with the process, some long and some short ones at a time."""

    def __init__(self) -> None:
        self._long, self._short = asyncio.Semaphore(LONG_AT_ONCE), asyncio.Semaphore(SHORT_AT_ONCE)
        self._working: set[threading.Thread] = set()
        atexit.register(self._leave)

    def _leave(self) -> None:
        """Python cannot end while a thread computes outside of it, and would be broken off with an error."""
        if any(thread.is_alive() for thread in self._working):
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)

    async def run(self, is_long: bool, function: Callable[[], bytes]) -> bytes:
        async with self._long if is_long else self._short:
            loop = asyncio.get_running_loop()
            done: asyncio.Future[bytes] = loop.create_future()

            def work() -> None:
                try:
                    _tell(loop, done, function(), None)
                except BaseException as error:  # whoever waits is told, whatever it was
                    _tell(loop, done, b"", error)

            thread = threading.Thread(target=work, daemon=True)
            self._working = {each for each in self._working if each.is_alive()} | {thread}
            thread.start()
            return await done


def _tell(loop: asyncio.AbstractEventLoop, done: "asyncio.Future[bytes]", result: bytes, error: Any) -> None:
    def tell() -> None:
        if not done.done():  # nobody waits any more
            done.set_result(result) if error is None else done.set_exception(error)

    if not loop.is_closed():
        loop.call_soon_threadsafe(tell)
