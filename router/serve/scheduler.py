"""The scheduler: one thread takes requests from a fair queue and writes as many answers at once as
there are slots."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from decoders.backends.threads import let_go
from decoders.common.errors import Cancelled, NoSuchName
from decoders.common.wording import in_words
from decoders.continuous_batching import BatchEngine, SingleSlot
from decoders.records import Request

from ..records import AskOptions, RouteChoice, RouteDecision, RoutedResult
from ..routing.router import Router
from .queue import FairQueue, QueueFull

logger = logging.getLogger(__name__)

DEFAULT = "default"  # the policy that the server was started with
LOOK_S = 0.2  # how often an idle scheduler checks whether it was closed
END_S = 5.0  # given to cancelled answers to end when the scheduler is closed


class Closing(Exception):
    """The scheduler accepts no more requests."""


@dataclass(frozen=True)
class GenerationRequest:
    """One answer to generate.

    text: the query, for an embedder that reads text.
    route: how its arm is found.
    id: names the line in the log of decisions.
    client: sender of the request; clients take turns.
    streamed: the client sees the beginning before the answer is complete.
    group: as of `AskOptions`.
    """

    prompt_ids: list[int]
    request: Request
    text: str | None
    route: RouteChoice
    id: str
    client: str
    streamed: bool = True
    group: str | None = None

    @property
    def policy(self) -> str:
        """The name of the registered one whose router answers."""
        return self.route.policy or DEFAULT


class Callbacks(Protocol):
    """Called for one request in the thread that decodes; must not block."""

    def began(self, decision: RouteDecision) -> None:
        """The prompt was read and an arm chosen."""

    def wrote(
        self, ids: list[int], accepted: int, drafted: int, fields: dict[str, Any] | None = None
    ) -> None:
        """The new tokens of a round, as in `decoders.protocols.Emit`. fields: of an endpoint's
        message, as in `decoders.protocols.FieldStreamer`."""

    def done(self, result: RoutedResult) -> None:
        """The answer is complete; nothing follows."""

    def failed(self, error: Exception) -> None:
        """There will be no answer (cancellation included); nothing follows."""


class RequestHandle:
    """A submitted request, to cancel it by. A RoundStreamer and FieldStreamer too, that passes on
    what it is given, and ends the answer once it is cancelled, also while its prompt is read."""

    def __init__(
        self, scheduler: Scheduler, generation: GenerationRequest, callbacks: Callbacks
    ) -> None:
        self.generation, self.callbacks = generation, callbacks
        self.shown = generation.streamed
        self._scheduler = scheduler
        self._cancelled = threading.Event()

    @property
    def cancelled(self) -> bool:
        return self._cancelled.is_set()

    def cancel(self) -> None:
        """End the answer within one round, or one part of its prompt; has no effect after the
        end."""
        self._cancelled.set()
        self._scheduler.withdraw(self)

    def require_going(self) -> None:
        """Raises Cancelled once it is."""
        if self.cancelled:
            raise Cancelled("cancelled while it was answered")

    def put_read(self, read: int, total: int) -> None:
        """Before each part of the prompt."""
        self.require_going()

    def put(self, ids: object) -> None:
        """The prompt, before the first token."""
        self.require_going()

    def put_round(self, ids: list[int], accepted: int, drafted: int) -> None:
        self.callbacks.wrote(ids, accepted, drafted)
        self.require_going()

    def put_fields(self, ids: list[int], fields: dict[str, Any]) -> None:
        self.callbacks.wrote(ids, 0, 0, fields)
        self.require_going()

    def end(self) -> None:
        pass


class Scheduler:
    """Answers requests; any thread may submit.

    routers: by the name of their policy, all over one engine; DEFAULT answers requests that name
        none.
    queue: holds the requests that wait.
    batch: writes the answers, over that engine; None writes one at a time.
    reuse: as in `Router.generate`.
    """

    def __init__(
        self,
        routers: Mapping[str, Router],
        queue: FairQueue[RequestHandle],
        batch: BatchEngine | None = None,
        reuse: bool = True,
    ) -> None:
        self.routers, self.queue, self._reuse = dict(routers), queue, reuse
        engine = next(iter(self.routers.values())).engine
        self._batch = SingleSlot(engine) if batch is None else batch
        self._slots = self._routers_of_slots()
        self._ends = 0.0  # when unfinished answers are abandoned, once closed
        self._busy: dict[RequestHandle, Any] = {}  # the slot of each, None before it has one
        self._draining = self._closed = False
        self._exchange: Callable[[Mapping[str, Router]], Mapping[str, Router]] | None = None
        self._lock = threading.Lock()  # guards the three above, and moves from queue to busy
        let_go()  # the thread that loaded the engine
        self._thread = threading.Thread(target=self._work, name="scheduler", daemon=True)
        self._thread.start()

    def _routers_of_slots(self) -> list[tuple[Any, dict[str, Router]]]:
        return [
            (slot, {name: each.with_engine(slot.engine) for name, each in self.routers.items()})
            for slot in self._batch.slots
        ]

    def exchange(self, make: Callable[[Mapping[str, Router]], Mapping[str, Router]]) -> None:
        """Have other routers over the same engine, once the answers under way have ended; requests
        wait meanwhile.

        make: called with those in use, in the scheduler's thread; new arms are its own to declare
            in every slot. Where it fails they stay.
        """
        self._exchange = make
        self._batch.wake()

    @property
    def batch(self) -> BatchEngine:
        """Writes the answers."""
        return self._batch

    @property
    def running(self) -> int:
        """Number of answers being written."""
        return len(self._busy)

    @property
    def waiting(self) -> int:
        """Number of requests in the queue."""
        return len(self.queue)

    @property
    def alive(self) -> bool:
        """Its thread runs, so that requests are answered."""
        return self._thread.is_alive()

    @property
    def draining(self) -> bool:
        """No more requests are accepted."""
        return self._draining

    def submit(self, generation: GenerationRequest, callbacks: Callbacks) -> RequestHandle:
        """Raises QueueFull, Closing, and NoSuchName for a policy that is not registered."""
        if generation.policy not in self.routers:
            raise NoSuchName("policy", generation.policy, list(self.routers))
        handle = RequestHandle(self, generation, callbacks)
        with self._lock:
            if self._draining or not self.alive:
                raise Closing("the server is shutting down; ask again elsewhere or later")
            evicted = self.queue.put(generation.client, handle)
        self._batch.wake()
        if evicted is not None:
            words = "the queue is full, and others have fewer requests in it"
            evicted.callbacks.failed(QueueFull(words))
        return handle

    def withdraw(self, handle: RequestHandle) -> None:
        """Take a request out of the queue; one that is being answered checks its own handle."""
        if self.queue.remove(handle):
            handle.callbacks.failed(Cancelled("cancelled before it began"))

    def drain(self, timeout_s: float) -> bool:
        """Accept no more requests and wait for those accepted; False if some did not
        end in time."""
        with self._lock:
            self._draining = True
        ends = time.monotonic() + timeout_s
        while self._occupied():
            if time.monotonic() >= ends:
                return False
            time.sleep(0.02)
        return True

    def close(self) -> None:
        """Accept no more requests, cancel those accepted, and end the thread. An answer that waits
        for a silent server is abandoned after some seconds, and so is a reload."""
        with self._lock:
            self._ends = time.monotonic() + END_S
            self._draining = self._closed = True
            busy = list(self._busy)
        for handle in busy:
            handle.cancel()
        while (waiting := self.queue.take()) is not None:
            waiting.cancel()
            waiting.callbacks.failed(Cancelled("the server shuts down"))
        self._thread.join(END_S + 2 * LOOK_S)
        for abandoned in list(self._busy):
            self._give_up(abandoned, Cancelled("the server shuts down"))

    def _occupied(self) -> bool:
        with self._lock:
            return bool(self._busy) or len(self.queue) > 0

    def _work(self) -> None:
        while not self._closed or self._batch.running:  # cancelled answers end within a round
            if self._closed and time.monotonic() > self._ends:  # some wait for a silent server
                self._batch.close()
            if self._exchange is not None and not self._batch.running:
                self._change(self._exchange)
            while self._batch.free() is not None and (handle := self._next()) is not None:
                asked = handle.generation
                slot = self._batch.free(asked.prompt_ids if self._reuse else (), asked.request.user)
                assert slot is not None
                self._busy[handle] = slot
                try:
                    self._batch.begin(slot, self._answering(handle, slot))
                except Exception as error:  # the next request goes on
                    self._give_up(handle, error)
            if self._batch.running:
                self._step()
            else:
                self.queue.wait(LOOK_S)

    def _change(self, make: Callable[[Mapping[str, Router]], Mapping[str, Router]]) -> None:
        self._exchange = None
        try:
            self.routers = dict(make(self.routers))
        except Exception as error:  # whatever is wrong with the new ones, the old ones answer
            logger.error("the arms and policies stay as they are: %s", in_words(error))
            return
        self._slots = self._routers_of_slots()
        logger.warning("new arms: %s", ", ".join(self.routers[DEFAULT].engine.arm_names))

    def _next(self) -> RequestHandle | None:
        """The next request, which counts as running from here on."""
        with self._lock:  # no request is ever seen as neither waiting nor running
            waits = self._closed or self._exchange is not None
            handle = None if waits else self.queue.take()
            if handle is not None:
                self._busy[handle] = None
            return handle

    def _step(self) -> None:
        try:
            for handle, slot in list(self._busy.items()):
                if handle.cancelled:
                    self._batch.stop(slot, Cancelled("cancelled while it was answered"))
            self._batch.step()
        except Exception:  # a request's own error reaches its callbacks instead
            logger.exception("a step failed")

    def _answering(self, handle: RequestHandle, slot: Any) -> Callable[[Any], None]:
        """The function that answers a request in a slot."""
        (routers,) = (routers for own, routers in self._slots if own is slot)

        def answer(_: Any) -> None:
            try:
                self._answer(handle, routers)
            except Exception:  # in the callbacks themselves; the next request goes on
                logger.exception("a callback failed")
            self._forget(handle)

        return answer

    def _forget(self, handle: RequestHandle) -> None:
        with self._lock:
            self._busy.pop(handle, None)

    def _give_up(self, handle: RequestHandle, error: Exception) -> None:
        """There will be no answer."""
        self._forget(handle)
        handle.callbacks.failed(error)

    def _answer(self, handle: RequestHandle, routers: Mapping[str, Router]) -> None:
        generation, callbacks = handle.generation, handle.callbacks
        router = routers[generation.policy]
        try:
            handle.require_going()
            result = router.answer(
                generation.prompt_ids,
                generation.request,
                AskOptions(
                    generation.route.arm,
                    generation.route.dynamic,
                    self._reuse,
                    handle,
                    request_id=generation.id,
                    group=generation.group,
                    running=self._batch.running - 1,
                ),
                text=generation.text,
                chosen=callbacks.began,
            )
        except Exception as error:
            end = partial(callbacks.failed, error)
        else:
            end = partial(callbacks.done, result)
        if handle in self._busy:  # it was not given up meanwhile
            end()
