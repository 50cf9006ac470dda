"""Several answers at once: each runs as it would alone, and they share the target's passes.

Every answer is a greenlet, a function that may wait in the middle. It runs until it wants the
target to read something; once all want that, one pass reads for all of them (`Seats.read`), and
each goes on with its own logits. So every arm can be written beside every other, and none knows of
the rest. A prompt is read in parts, between which the others go on.

Yu et al., Orca: A Distributed Serving System for Transformer-Based Generative Models, 2022.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from greenlet import GreenletExit, getcurrent, greenlet
from torch import Tensor

from .backends.batched.slots import Seats, Wanted
from .backends.native import LlamaBackend
from .backends.recurrent.head import RecurrentHead
from .common.errors import DraftpickError
from .costs import passes
from .costs.under_load import learn
from .endpoints.engine import EndpointEngine
from .endpoints.room import Threads
from .engine import Engine
from .models import memory

WORTH_HOLDING = 16  # tokens of a prompt that decide which seat it goes to
PROMPT_TOKENS = 512  # of prompts that are read between two passes of those who write


@dataclass(frozen=True)
class Steps:
    """One step of a recurrent drafter's cell, as `RecurrentHead.step` is asked for it."""

    head: RecurrentHead
    state: Tensor
    token: Tensor


@dataclass(frozen=True)
class Part:
    """Of a prompt, so many tokens."""

    tokens: int


@dataclass
class Seat:
    """Room for one answer. engine: an Engine, or what answers like one."""

    engine: Any
    at_work: greenlet | None = None
    wants: Wanted | Steps | Part | None = None
    given: Any = None  # what it goes on with
    born: int = field(default=0)  # the how-manieth answer that was begun, for turns


class Room(Protocol):
    """Where answers are written; used by one thread.

    seats: each has room for one answer, and the `engine` that writes it.
    """

    seats: list[Any]

    @property
    def running(self) -> int:
        """Answers that have begun and not ended."""
        ...

    def free(self, prompt_ids: Sequence[int] = ()) -> Any:
        """A seat without an answer; one that holds the beginning of this prompt, if any does."""
        ...

    def begin(self, seat: Any, answer: Callable[[Any], None]) -> None:
        """Let `answer` run in a free seat, by the seat's engine, in the coming steps. What it
        raises comes out of `step`."""
        ...

    def step(self) -> None:
        """Go on with every answer."""
        ...

    def stop(self, seat: Any, error: Exception) -> None:
        """Let the seat's answer raise an error where it waits; nothing where it does not wait, as
        one that has a thread of its own or that a single step writes."""
        ...

    def close(self) -> None:
        """End every answer where it waits."""
        ...


def room_of(engine: Any, n: int, steady: bool = False, cache: Path | None = None) -> Room:
    """For n answers at once, where the engine's target has passes to share or its arms are servers;
    else for one.

    steady: as in Seats.
    cache: folder where what shared passes cost is kept; None measures nothing, so that drafts are
        as long as they would be for one answer alone.
    """
    if isinstance(engine, EndpointEngine):
        return Threads(engine, n)
    if n < 2 or not isinstance(getattr(engine, "target", None), LlamaBackend):
        return OneAtATime(engine)
    room = Together(engine, n, steady)
    if cache is not None and any(recipe.by_passes for recipe in engine.arms.values()):
        learn(room.passes, engine.target_fingerprint, cache, lambda: room.running)
    return room


class OneAtATime:
    """A room for one answer, which a single step writes."""

    def __init__(self, engine: Any) -> None:
        self.seats = [Seat(engine)]
        self._answer: Callable[[Any], None] | None = None

    @property
    def running(self) -> int:
        return int(self._answer is not None)

    def free(self, prompt_ids: Sequence[int] = ()) -> Seat | None:
        return None if self.running else self.seats[0]

    def begin(self, seat: Seat, answer: Callable[[Any], None]) -> None:
        self._answer = answer

    def step(self) -> None:
        if self._answer is not None:
            try:
                self._answer(self.seats[0].engine)
            finally:
                self._answer = None

    def stop(self, seat: Seat, error: Exception) -> None:
        """As in Room."""

    def close(self) -> None:
        self._answer = None


class Together:
    """Seats for n answers over one engine's target.

    engine: of a native backend; it must not be used meanwhile.
    steady: as in Seats.

    Raises DraftpickError where the engine's target has no passes to share, OutOfMemory where the
    room for the answers does not fit.
    """

    def __init__(self, engine: Engine, n: int, steady: bool = False) -> None:
        target = engine.target
        if not isinstance(target, LlamaBackend):
            raise DraftpickError(
                f"answers share the passes of the native backend alone, and this target runs by "
                f"{type(target).__name__}; answer one at a time"
            )
        with memory.explained(target.device, f"making room for {n} answers at once"):
            self.passes = Seats(target, n, steady)
        self.seats = [Seat(engine.on(backend)) for backend in self.passes.all]
        self._begun = self.running = 0
        self._main = getcurrent()
        costs = passes.known(target)
        for backend in self.passes.all:
            if costs is not None:  # those of an answer alone, until others are learnt
                passes.assume(backend, costs)
            backend.wait, backend.pause, backend.share_step = self._read, self._part, self._step

    def free(self, prompt_ids: Sequence[int] = ()) -> Seat | None:
        """As in Room; else low ones first, so that rows in use are neighbours."""
        free = [seat for seat in self.seats if seat.at_work is None]
        best = max(free, key=lambda seat: seat.engine.held(prompt_ids), default=None)
        if best is not None and best.engine.held(prompt_ids) >= WORTH_HOLDING:
            return best
        return free[0] if free else None

    def begin(self, seat: Seat, answer: Callable[[Any], None]) -> None:
        """As in Room."""
        assert seat.at_work is None
        self._begun += 1
        self.running += 1
        seat.at_work, seat.born = greenlet(lambda _: answer(seat.engine)), self._begun
        seat.wants = seat.given = None

    def step(self) -> None:
        """Let every answer run up to its next pass, and run that pass. Where the pass fails, so do
        all answers that waited for it."""
        self._main = getcurrent()
        with torch.inference_mode():
            budget = PROMPT_TOKENS
            for seat in sorted(self._busy(), key=lambda seat: seat.born):
                if seat.wants is None:
                    self._go_on(seat)
                while isinstance(seat.wants, Part) and budget > 0:
                    budget -= seat.wants.tokens
                    self._go_on(seat)
            while steps := [seat for seat in self._busy() if isinstance(seat.wants, Steps)]:
                self._take_steps(steps)
            reading = [seat for seat in self._busy() if isinstance(seat.wants, Wanted)]
            if reading:
                wanted = [seat.wants for seat in reading if isinstance(seat.wants, Wanted)]
                try:
                    read = self.passes.read(wanted)
                except Exception as error:
                    self._fail(reading, error)
                    return
                for seat, logits in zip(reading, read, strict=True):
                    seat.given, seat.wants = logits, None

    def stop(self, seat: Seat, error: Exception) -> None:
        """As in Room."""
        if seat.at_work is not None and seat.wants is not None:
            with torch.inference_mode():
                self._go_on(seat, error)

    def close(self) -> None:
        """As in Room."""
        with torch.inference_mode():  # or an answer's own would be left on as it ends
            for seat in self._busy():
                assert seat.at_work is not None
                seat.at_work.throw(GreenletExit)
                self._ended(seat)

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.close()

    def _busy(self) -> list[Seat]:
        return [seat for seat in self.seats if seat.at_work is not None]

    def _go_on(self, seat: Seat, error: Exception | None = None) -> None:
        """Until it next waits or ends. What it raises is raised here.

        error: what it gets in the place of what it waited for.
        """
        assert seat.at_work is not None
        given, seat.wants, seat.given = seat.given, None, None
        try:
            wants = seat.at_work.switch(given) if error is None else seat.at_work.throw(error)
        except BaseException:
            self._ended(seat)
            raise
        if seat.at_work.dead:
            self._ended(seat)
        else:
            seat.wants = wants

    def _ended(self, seat: Seat) -> None:
        seat.at_work = None
        self.running -= 1

    def _fail(self, seats: Sequence[Seat], error: Exception) -> None:
        """Each of these gets the error; what any of them raises is raised at the end."""
        raised: Exception | None = None
        for seat in seats:
            try:
                self._go_on(seat, error)
            except Exception as own:
                raised = own
        if raised is not None:
            raise raised

    def _take_steps(self, seats: Sequence[Seat]) -> None:
        """One step of each, those of the same cell together."""
        by_head: dict[int, list[Seat]] = {}
        for seat in seats:
            assert isinstance(seat.wants, Steps)
            by_head.setdefault(id(seat.wants.head), []).append(seat)
        for group in by_head.values():
            wanted = [seat.wants for seat in group if isinstance(seat.wants, Steps)]
            counts = [len(each.token) for each in wanted]
            states = torch.cat([each.state for each in wanted])
            tokens = torch.cat([each.token for each in wanted])
            try:
                stepped = wanted[0].head.step(states, tokens)
            except Exception as error:
                self._fail(seats, error)
                return
            made = (torch.split(part, counts) for part in stepped)
            for seat, given in zip(group, zip(*made, strict=True), strict=True):
                seat.given = given
        for seat in seats:
            self._go_on(seat)

    # -- called by answers --------------------------------------------------------------------

    def _read(self, wanted: Wanted) -> Tensor:
        logits: Tensor = self._main.switch(wanted)
        return logits

    def _part(self, tokens: int) -> None:
        self._main.switch(Part(tokens))

    def _step(self, head: RecurrentHead, state: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
        made: tuple[Tensor, Tensor] = self._main.switch(Steps(head, state, token))
        return made
