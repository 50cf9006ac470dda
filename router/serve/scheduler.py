"""Where answers are written: one thread that takes orders from a fair queue, and writes as many
answers at once as there are seats."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from decoders.backends.threads import let_go
from decoders.common.errors import Cancelled, NoSuchName
from decoders.continuous_batching import SingleSlot

from ..routing.results import Chosen, RoutedResult
from ..routing.router import Router
from .queue import FairQueue, QueueFull

if TYPE_CHECKING:
    from decoders.continuous_batching import BatchEngine
    from decoders.records import Request

logger = logging.getLogger(__name__)

DEFAULT = "default"  # the policy that the server was started with
LOOK_S = 0.2  # how often an idle desk looks whether it was closed
END_S = 5.0  # that cancelled answers have to end by themselves when it is


class Closing(Exception):
    """The desk takes no more orders."""


@dataclass(frozen=True)
class Order:
    """One answer wanted.

    text: of the query, for an embedder that reads text.
    arm: None lets the policy choose.
    dynamic: draw the arm from the policy's distribution.
    id: of the line in the log of decisions.
    client: who asks; clients take turns.
    policy: a registered one's name, None for the default.
    streamed: whoever asks sees the beginning before the answer is whole.
    """

    prompt_ids: list[int]
    request: Request
    text: str | None
    arm: str | None
    dynamic: bool
    id: str
    client: str
    policy: str | None = None
    streamed: bool = True


class Listener(Protocol):
    """Told of one order's answer in the thread that decodes; must not block."""

    def began(self, choice: Chosen) -> None:
        """The prompt was read and an arm chosen."""
        ...

    def wrote(self, ids: list[int], accepted: int, drafted: int) -> None:
        """The new tokens of a round, as in `decoders.protocols.Emit`."""
        ...

    def done(self, result: RoutedResult) -> None:
        """The answer is whole; nothing follows."""
        ...

    def failed(self, error: Exception) -> None:
        """There will be no answer, Cancelled among the reasons; nothing follows."""
        ...


class Ticket:
    """One order on its way."""

    def __init__(self, desk: Desk, order: Order, listener: Listener) -> None:
        self.order, self.listener = order, listener
        self._desk = desk
        self._cancelled = threading.Event()

    @property
    def cancelled(self) -> bool:
        return self._cancelled.is_set()

    def cancel(self) -> None:
        """End the answer within one round; nothing happens where it has ended."""
        self._cancelled.set()
        self._desk.withdraw(self)


class Desk:
    """Answers orders; any thread may submit.

    routers: over one engine, by the name of their policy; DEFAULT is the one for orders that name
        none.
    queue: where orders wait.
    room: where answers are written, over that engine; None writes one at a time.
    reuse: as in `Router.generate`.
    """

    def __init__(
        self,
        routers: Mapping[str, Router],
        queue: FairQueue[Ticket],
        batch: BatchEngine | None = None,
        reuse: bool = True,
    ) -> None:
        self.routers, self.queue, self._reuse = dict(routers), queue, reuse
        engine = next(iter(self.routers.values())).engine
        self._room = SingleSlot(engine) if batch is None else batch
        self._seated = [  # by seat
            (slot, {name: each.on(slot.engine) for name, each in self.routers.items()})
            for slot in self._room.slots
        ]
        self._ends = 0.0  # when what has not ended is left, once closed
        self._busy: dict[Ticket, Any] = {}  # with its seat, once it has one
        self._draining = self._closed = False
        self._lock = threading.Lock()  # of the three above, and of what is between queue and busy
        let_go()  # whoever loaded the engine
        self._thread = threading.Thread(target=self._work, name="desk", daemon=True)
        self._thread.start()

    @property
    def running(self) -> int:
        """Answers being written."""
        return len(self._busy)

    @property
    def waiting(self) -> int:
        """Orders in the queue."""
        return len(self.queue)

    @property
    def draining(self) -> bool:
        """No more orders are taken."""
        return self._draining

    def submit(self, order: Order, listener: Listener) -> Ticket:
        """Raises QueueFull, Closing, and NoSuchName for a policy that is not registered."""
        name = DEFAULT if order.policy is None else order.policy
        if name not in self.routers:
            raise NoSuchName("policy", name, list(self.routers))
        ticket = Ticket(self, order, listener)
        with self._lock:
            if self._draining:
                raise Closing("the server is shutting down; ask again elsewhere or later")
            evicted = self.queue.put(order.client, ticket)
        if evicted is not None:
            words = "the queue is full, and others have fewer requests in it"
            evicted.listener.failed(QueueFull(words))
        return ticket

    def withdraw(self, ticket: Ticket) -> None:
        """Take an order out of the queue; one that is being answered ends by its own ticket."""
        if self.queue.remove(ticket):
            ticket.listener.failed(Cancelled("cancelled before it began"))

    def drain(self, timeout_s: float) -> bool:
        """Take no more orders and wait until those taken have ended; False where some have not."""
        with self._lock:
            self._draining = True
        until = time.monotonic() + timeout_s
        while self._occupied():
            if time.monotonic() >= until:
                return False
            time.sleep(0.02)
        return True

    def close(self) -> None:
        """Take no more orders, cancel those that were taken, and end the thread. An answer that
        waits for a silent server is left after some seconds."""
        with self._lock:
            self._ends = time.monotonic() + END_S
            self._draining = self._closed = True
            busy = list(self._busy)
        for ticket in busy:
            ticket.cancel()
        while (waiting := self.queue.take()) is not None:
            waiting.cancel()
            waiting.listener.failed(Cancelled("the server shuts down"))
        self._thread.join()

    def _occupied(self) -> bool:
        with self._lock:
            return bool(self._busy) or len(self.queue) > 0

    def _work(self) -> None:
        while not self._closed or self._room.running:  # cancelled ones end by themselves
            if self._closed and time.monotonic() > self._ends:  # not where a server says nothing
                self._room.close()
            while self._room.free() is not None and (ticket := self._next()) is not None:
                slot = self._room.free(ticket.order.prompt_ids if self._reuse else ())
                assert slot is not None
                self._busy[ticket] = slot
                self._room.begin(slot, self._answering(ticket, slot))
            if self._room.running:
                self._step()
            else:
                self.queue.wait(LOOK_S)

    def _next(self) -> Ticket | None:
        """The next order, running from then on."""
        with self._lock:  # so that none is ever seen neither waiting nor running
            ticket = None if self._closed else self.queue.take()
            if ticket is not None:
                self._busy[ticket] = None
            return ticket

    def _step(self) -> None:
        try:
            for ticket, slot in list(self._busy.items()):
                if ticket.cancelled:
                    self._room.stop(slot, Cancelled("cancelled while it was answered"))
            for _, routers in self._seated:
                for router in routers.values():
                    router.running = self._room.running - 1
            self._room.step()
        except Exception:  # not an order's: that was told of its own
            logger.exception("a step failed")

    def _answering(self, ticket: Ticket, slot: Any) -> Callable[[Any], None]:
        """What answers an order in a seat."""
        (routers,) = (routers for own, routers in self._seated if own is slot)

        def answer(_: Any) -> None:
            try:
                self._answer(ticket, routers)
            except Exception:  # a listener's own; the next order should not suffer for it
                logger.exception("a listener failed")
            finally:
                with self._lock:
                    self._busy.pop(ticket, None)

        return answer

    def _answer(self, ticket: Ticket, routers: Mapping[str, Router]) -> None:
        order, listener = ticket.order, ticket.listener
        router = routers[DEFAULT if order.policy is None else order.policy]
        try:
            _stop_if(ticket)
            result = router.answer(
                order.prompt_ids,
                order.request,
                text=order.text,
                arm=order.arm,
                dynamic=order.dynamic,
                reuse=self._reuse,
                streamer=_Rounds(ticket),
                request_id=order.id,
                chosen=listener.began,
            )
        except Exception as error:
            listener.failed(error)
        else:
            listener.done(result)


class _Rounds:
    """A RoundStreamer that hands on every round, and ends the answer of a cancelled order."""

    def __init__(self, ticket: Ticket) -> None:
        self._ticket = ticket
        self.shown = ticket.order.streamed

    def put(self, ids: object) -> None:
        """The prompt, before the first token."""
        _stop_if(self._ticket)

    def put_round(self, ids: list[int], accepted: int, drafted: int) -> None:
        self._ticket.listener.wrote(ids, accepted, drafted)
        _stop_if(self._ticket)

    def end(self) -> None:
        pass


def _stop_if(ticket: Ticket) -> None:
    if ticket.cancelled:
        raise Cancelled("cancelled while it was answered")
