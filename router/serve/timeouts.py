"""How long a client may take to send its request, and to read what it asked for."""

from __future__ import annotations

import asyncio
import socket

from uvicorn.protocols.http.h11_impl import H11Protocol

HEADERS_S = 30.0  # for a request's headers
BODY_S = 60.0  # and for its body
UNREAD_S = 60.0  # in which a client reads nothing of its answer


def limit_unread_time(held: socket.socket) -> None:
    """Close connections of a listening socket whose client stops reading (Linux only); otherwise
    each could keep its answer in memory without end."""
    option = getattr(socket, "TCP_USER_TIMEOUT", None)
    if option is not None and held.family in (socket.AF_INET, socket.AF_INET6):
        held.setsockopt(socket.IPPROTO_TCP, option, int(UNREAD_S * 1000))


class HeaderTimeout(H11Protocol):
    """uvicorn's protocol; closes a connection whose request headers do not arrive in time.

    uvicorn itself waits without limit for a connection's first byte and the rest of the headers.
    """

    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()
        super().connection_lost(exc)

    def _watch(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:  # a request is answered
            self._forget()
        elif self._late is None:
            self._late = self.loop.call_later(HEADERS_S, self.transport.abort)

    def _forget(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None
