"""The answers of one request, followed from the event loop while the scheduler writes them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from decoders.common.errors import Cancelled

from ..records import RouteDecision, RoutedResult
from .errors import ApiError, as_api_error
from .metrics import Metrics
from .scheduler import GenerationRequest, RequestHandle, Scheduler


@dataclass(frozen=True)
class Round:
    """New tokens of one answer.

    accepted, drafted: as in `decoders.protocols.Emit`.
    elapsed_s: seconds since the request came.
    fields: what an endpoint's message gets besides text, as in `decoders.protocols.FieldStreamer`.
    """

    ids: list[int]
    accepted: int
    drafted: int
    elapsed_s: float
    fields: dict[str, Any] = field(default_factory=dict)

    def writers(self) -> list[str]:
        """Who wrote each token: draft, target, or bonus (the target's own after a draft that stood
        whole)."""
        own = "bonus" if 0 < self.drafted == self.accepted else "target"
        return ["draft"] * self.accepted + [own] * (len(self.ids) - self.accepted)


Event = Round | RoutedResult | Exception


class Answer:
    """The scheduler's Callbacks for one answer; its events are passed to the event loop.

    decision: None until the prompt was read.
    result: None until the answer is whole.
    drafts: rounds that drafted something.
    first_s: from the request to the first tokens; None until they came.
    elapsed_s: from the request to the newest tokens.
    gave_up: why it was cancelled: cancelled or timeout.
    """

    def __init__(self, index: int, metrics: Metrics, send: Callable[[Answer, Event], None]) -> None:
        self.index, self.drafts, self.gave_up = index, 0, "cancelled"
        self.decision: RouteDecision | None = None
        self.result: RoutedResult | None = None
        self._metrics, self._send = metrics, send
        self._loop = asyncio.get_running_loop()
        self._started = time.perf_counter()
        self.first_s: float | None = None
        self.elapsed_s = 0.0

    @property
    def arm(self) -> str:
        """Its name; empty until one was chosen."""
        return "" if self.decision is None else self.decision.arm

    # In the scheduler's thread.

    def began(self, decision: RouteDecision) -> None:
        self.decision = decision

    def wrote(
        self, ids: list[int], accepted: int, drafted: int, fields: dict[str, Any] | None = None
    ) -> None:
        elapsed_s = time.perf_counter() - self._started
        self._hand_on(Round(list(ids), accepted, drafted, elapsed_s, fields or {}))

    def done(self, result: RoutedResult) -> None:
        self._hand_on(result)

    def failed(self, error: Exception) -> None:
        self._hand_on(error)

    def _hand_on(self, event: Event) -> None:
        with contextlib.suppress(RuntimeError):  # a closed loop: nobody listens any more
            self._loop.call_soon_threadsafe(self._take, event)

    # In the event loop.

    def _take(self, event: Event) -> None:
        match event:
            case Round():
                if self.first_s is None:
                    self.first_s = event.elapsed_s
                    self._metrics.first_token(event.elapsed_s)
                self.elapsed_s = event.elapsed_s
                self.drafts += event.drafted > 0
                self._metrics.round(self.arm, len(event.ids), event.accepted, event.drafted)
            case RoutedResult():
                self.result = event
                self._metrics.answered(self.arm, event, self.first_s, self.elapsed_s)
            case Cancelled():
                self._metrics.ended(self.arm, self.gave_up)
            case _:
                self._metrics.ended(self.arm, "error")
        self._send(self, event)


class Answers:
    """All answers of a request, started when made. Raises what `Scheduler.submit` raises.

    timeout_s: for all of them together, the time in the queue included.
    error: for which they are not given; None as long as there is none.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        requests: Sequence[GenerationRequest],
        metrics: Metrics,
        timeout_s: float,
    ) -> None:
        self._events: asyncio.Queue[tuple[Answer, Event]] = asyncio.Queue()
        self._timeout_s = timeout_s
        self._until = asyncio.get_running_loop().time() + timeout_s
        self._peeked: tuple[Answer, Round | RoutedResult] | None = None
        self._handles: list[RequestHandle] = []
        self._first: Answer | None = None
        self.error: ApiError | None = None
        self.all = [
            Answer(index, metrics, lambda *event: self._events.put_nowait(event))
            for index in range(len(requests))
        ]
        try:
            for request, answer in zip(requests, self.all, strict=True):
                self._handles.append(scheduler.submit(request, answer))
        except Exception:
            self.cancel()
            raise

    async def begun(self) -> Answer:
        """The answer whose tokens are the first to come, its arm being known. Raises as
        `events`."""
        self._peeked = await self._next()
        self._first = self._peeked[0]
        return self._first

    @property
    def first(self) -> Answer | None:
        """The answer that `begun` gave; before that, one whose arm is known."""
        return self._first or next((each for each in self.all if each.decision is not None), None)

    async def events(self) -> AsyncIterator[tuple[Answer, Round | RoutedResult]]:
        """Rounds and results as they come, until all answers are whole.

        Raises ApiError, for all of them, where one cannot be given or takes too long.
        """
        whole = 0
        while whole < len(self.all):
            if self._peeked is None:
                self._peeked = await self._next()
            event, self._peeked = self._peeked, None
            whole += isinstance(event[1], RoutedResult)
            yield event

    async def whole(self) -> None:
        """Until all answers are. Raises as `events`."""
        async for _ in self.events():
            pass

    def cancel(self, why: str = "cancelled") -> None:
        """End those that are not whole, within one round."""
        for handle, answer in zip(self._handles, self.all, strict=False):
            if not handle.cancelled:
                answer.gave_up = why
                handle.cancel()

    async def _next(self) -> tuple[Answer, Round | RoutedResult]:
        try:
            async with asyncio.timeout_at(self._until):
                answer, event = await self._events.get()
        except TimeoutError:
            self.cancel("timeout")
            words = f"the answer took longer than the {self._timeout_s:g} s that are allowed here"
            self.error = ApiError(504, words, code="timeout")
            raise self.error from None
        if isinstance(event, Exception):
            self.cancel()
            self.error = as_api_error(event)
            raise self.error
        return answer, event
