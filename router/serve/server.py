"""The process: it listens, and on a signal ends what it began before it goes."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from decoders.common.errors import DraftpickError

if TYPE_CHECKING:
    from .scheduler import Scheduler


BACKLOG = 2048  # connections that the system holds while others are accepted
# For which an idle connection is kept: longer than proxies in front keep theirs, usually a minute,
# or one would now and then send a request into a connection that has just been closed.
IDLE_S = 75


def bound(host: str, port: int) -> socket.socket:
    """A socket at an address, before anything is loaded; 0 takes a free port. Raises
    DraftpickError."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        held = socket.socket(family, kind, proto)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        limit_unread_time(held)
        held.bind(address)
    except UnicodeError:
        raise DraftpickError(
            f"cannot listen on {host!r}, which is no host's name; choose another --host"
        ) from None
    except (OSError, OverflowError) as error:
        words = getattr(error, "strerror", None) or str(error)
        raise DraftpickError(
            f"cannot listen on {host}:{port} ({words}); choose another --host or --port"
        ) from error
    return held


def serve(
    app: ASGIApp,
    scheduler: Scheduler,
    held: socket.socket,
    drain_s: float,
    reload: Callable[[], None] = lambda: None,
) -> None:
    """Serve until a signal. At the first SIGTERM or SIGINT running answers finish, for drain_s
    seconds at most, while new requests get 503; at the second the server goes at once.

    reload: called at each SIGHUP, in a thread of its own.
    """
    if threading.current_thread() is threading.main_thread():
        # A signal comes in the middle of anything, the scheduler's lock included.
        again = partial(threading.Thread, target=reload, name="reload", daemon=True)
        signal.signal(signal.SIGHUP, lambda *_: again().start())
    config = uvicorn.Config(
        app,
        http=HeaderTimeout,
        log_level="warning",
        backlog=BACKLOG,
        timeout_keep_alive=IDLE_S,
        timeout_graceful_shutdown=5,
        lifespan="off",
    )
    server = _Server(config, scheduler, drain_s)
    try:
        server.run(sockets=[held])
    finally:
        scheduler.close()


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, scheduler: Scheduler, drain_s: float) -> None:
        super().__init__(config)
        self._scheduler, self._drain_s = scheduler, drain_s
        self._draining = False

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        host, port = self.servers[0].sockets[0].getsockname()[:2]
        ready(host, port)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        end = self._go if self._draining else self._drain
        self._draining = True
        # A signal comes in the middle of anything, the scheduler's lock included.
        threading.Thread(target=end, name="drain", daemon=True).start()

    def _drain(self) -> None:
        print("shutting down after the running answers", file=sys.stderr, flush=True)
        notify(STOPPING)
        if not self._scheduler.drain(self._drain_s):
            print("some answers did not finish in time", file=sys.stderr, flush=True)
            self._scheduler.close()
        self.should_exit = True

    def _go(self) -> None:
        self._scheduler.close()
        self.force_exit = self.should_exit = True


READY, STOPPING = "READY=1", "STOPPING=1"


def ready(host: str, port: int) -> None:
    """Say where it is served."""
    shown = f"[{host}]" if ":" in host else host
    print(f"serving on http://{shown}:{port}", file=sys.stderr, flush=True)
    notify(READY)


def notify(state: str) -> bool:
    """Send `state` to the socket that NOTIFY_SOCKET names; returns whether it was sent. A failure
    is printed on standard error."""
    place = os.environ.get("NOTIFY_SOCKET")
    if not place:
        return False
    if place.startswith("@"):  # an abstract socket
        place = "\0" + place[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as own:
            own.connect(place)
            own.sendall(state.encode())
    except OSError as error:
        print(f"{state} could not be sent to the service manager: {error}", file=sys.stderr)
        return False
    return True


HEADERS_S = 30.0  # for a request's headers
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
            begun = self.cycle is None or self.conn.trailing_data[0]  # else a refused body ended
            self._late = self.loop.call_later(HEADERS_S if begun else IDLE_S, self.transport.abort)

    def _forget(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None
