"""A timeout for the header of an HTTP request.

uvicorn closes connections that stay idle after a response. It waits without a limit for the first request of a
connection, and for the rest of a header.
"""

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol


def protocol_with_timeout(seconds: float) -> type[H11Protocol]:
    """Return uvicorn's protocol with a timeout: it aborts a connection if the next header takes more than `seconds`."""

    class TimedProtocol(H11Protocol):
        _timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._watch()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._watch()

        def connection_lost(self, exc: Exception | None) -> None:
            self._cancel()
            super().connection_lost(exc)

        def _is_waiting(self) -> bool:
            """Whether no request is being handled, so that the connection waits for a header."""
            return self.cycle is None or self.cycle.response_complete

        def _watch(self) -> None:
            """Start the timer when a wait begins. More bytes do not restart it, so slow senders time out too."""
            if not self._is_waiting():
                self._cancel()
            elif self._timer is None:
                self._timer = self.loop.call_later(seconds, self._expire)

        def _cancel(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

        def _expire(self) -> None:
            self._timer = None
            if self._is_waiting() and not self.transport.is_closing():
                self.transport.abort()

    return TimedProtocol
