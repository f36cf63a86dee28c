"""A thread pool with separate limits for slow and fast requests, so that the server stays responsive."""

import asyncio
import atexit
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

MAX_SLOW_THREADS, MAX_FAST_THREADS = 2, 8


class ThreadPool:
    """Runs functions in daemon threads: at most `MAX_SLOW_THREADS` slow and `MAX_FAST_THREADS` fast ones at a time."""

    def __init__(self) -> None:
        self._slow_slots, self._fast_slots = asyncio.Semaphore(MAX_SLOW_THREADS), asyncio.Semaphore(MAX_FAST_THREADS)
        self._threads: set[threading.Thread] = set()
        atexit.register(self._exit_if_busy)

    def _exit_if_busy(self) -> None:
        """Exit at once if a thread is busy: Python would crash if it ended while a thread runs native code."""
        if any(thread.is_alive() for thread in self._threads):
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)

    async def run(self, is_slow: bool, function: Callable[[], bytes]) -> bytes:
        """Run a function in a thread when one of its kind is free, and return its result."""
        async with self._slow_slots if is_slow else self._fast_slots:
            loop = asyncio.get_running_loop()
            future: asyncio.Future[bytes] = loop.create_future()

            def work() -> None:
                try:
                    _set_result(loop, future, function(), None)
                except BaseException as error:  # the waiting coroutine gets every error
                    _set_result(loop, future, b"", error)

            thread = threading.Thread(target=work, daemon=True)
            self._threads = {other for other in self._threads if other.is_alive()} | {thread}
            thread.start()
            return await future


def _set_result(loop: asyncio.AbstractEventLoop, future: "asyncio.Future[bytes]", result: bytes, error: Any) -> None:
    def set_result() -> None:
        if not future.done():  # it is done if the request was canceled
            future.set_result(result) if error is None else future.set_exception(error)

    if not loop.is_closed():
        loop.call_soon_threadsafe(set_result)
