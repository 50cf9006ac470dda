"""Several answers at once: each runs as it would alone, and they share the target's passes.

Every answer is a greenlet, a function that may wait in the middle. It runs until it needs the
target to read something. Once all of them do, one pass reads for all (`BatchSlots.read`), and each
goes on with its own logits. So every arm can run next to every other, and none knows of the rest.
A prompt is read in parts, and other answers go on between them; between the rounds of one that is
written ahead of the host (backends/cuda/device_loop.py) likewise.

Yu et al., Orca: A Distributed Serving System for Transformer-Based Generative Models, 2022.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from greenlet import GreenletExit, getcurrent, greenlet
from torch import Tensor

from .costs import passes
from .costs.under_load import SharedCosts, learn
from .engine import Engine
from .methods.recurrent.drafter import Cell
from .models.memory import shares_passes, slots_of
from .sampling.race import CellTokens

Reads = Callable[[Sequence[Any]], list[Tensor]]  # as `BatchSlots.read`

WORTH_REUSING = 16  # tokens of a prompt that decide which slot it goes to
PROMPT_TOKENS = 512  # of prompts that are read between two passes of those who write


@dataclass(frozen=True)
class Pass:
    """A pass over what `BatchSlots.read` takes."""

    wanted: Any


@dataclass(frozen=True)
class CellWork:
    """Work for a recurrent drafter's cell: a step, as of `Cell.step`, or a draft, as of
    `Cell.drafts`.

    draft: the tokens wanted; None for a step.
    """

    head: Cell
    state: Tensor
    token: Tensor
    draft: CellTokens | None = None

    @staticmethod
    def together(wanted: Sequence[CellWork]) -> list[Any]:
        """Do it for all at once; what each is given. All are of one cell, steps or drafts alone."""
        head = wanted[0].head
        states = torch.cat([each.state for each in wanted])
        tokens = torch.cat([each.token for each in wanted])
        drafts = [each.draft for each in wanted if each.draft is not None]
        if drafts:
            return head.drafts(states, tokens, drafts)
        counts = [len(each.token) for each in wanted]
        parts = (torch.split(part, counts) for part in head.step(states, tokens))
        return list(zip(*parts, strict=True))


@dataclass(frozen=True)
class PromptPart:
    """A part of a prompt, of this many tokens."""

    tokens: int


@dataclass(frozen=True)
class Turn:
    """Nothing but that others go on first."""


@dataclass
class EngineSlot:
    """A place where one answer is written. engine: an Engine, or an object with its methods."""

    engine: Any
    at_work: greenlet | None = None
    wants: Pass | CellWork | PromptPart | Turn | None = None
    given: Any = None  # what it goes on with
    born: int = 0  # ordinal of the answer among those started, for taking turns


class BatchEngine(Protocol):
    """An engine that writes several answers at once; used by one thread.

    slots: each takes one answer, and has the `engine` that writes it.
    """

    slots: list[Any]

    @property
    def running(self) -> int:
        """Answers that have started and not ended."""

    def free(self, prompt_ids: Sequence[int] = (), user: str | None = "") -> Any:
        """A slot without an answer; one that holds the beginning of this prompt, if any read it for
        this user."""

    def begin(self, slot: Any, answer: Callable[[Any], None]) -> None:
        """Let `answer` run in a free slot, by the slot's engine, in the coming steps. What it
        raises comes out of `step`."""

    def step(self) -> None:
        """Go on with every answer."""

    def wake(self) -> None:
        """Another request has come: end a step that waits for answers of servers. From any
        thread."""

    def stop(self, slot: Any, error: Exception) -> None:
        """Let the slot's answer raise an error where it waits; nothing where it does not wait, as
        one that has a thread of its own or that a single step writes."""

    def close(self) -> None:
        """End every answer where it waits."""


@runtime_checkable
class Concurrent(Protocol):
    """An engine that answers several requests at once by itself, as one whose arms are servers."""

    def answering(self, n: int) -> BatchEngine:
        """For n answers at once."""


def batch_engine(
    engine: Any, n: int, batch_invariant: bool = False, cache: Path | None = None
) -> BatchEngine:
    """For n answers at once, where the engine is Concurrent or its target has passes to share; else
    for one.

    batch_invariant: as in BatchSlots, and of what is held or kept of a prompt only that is not read
        again which was read in the same passes.
    cache: folder where what shared passes cost is kept; None measures nothing, so that drafts are
        as long as they would be for one answer alone.
    """
    if isinstance(engine, Concurrent):
        return engine.answering(n)
    if n < 2 or not shares_passes(getattr(engine, "target", None)):
        if isinstance(engine, Engine):
            engine.reuse_exactly(batch_invariant)
        return SingleSlot(engine)
    batch = ContinuousBatch(engine, n, batch_invariant)
    if cache is not None and any(recipe.uses_cost_model for recipe in engine.arms.values()):
        batch.learn_costs(engine.target_fingerprint, cache)
    return batch


class SingleSlot:
    """One answer at a time, which a single step writes."""

    def __init__(self, engine: Any) -> None:
        self.slots = [EngineSlot(engine)]
        self._answer: Callable[[Any], None] | None = None

    @property
    def running(self) -> int:
        return int(self._answer is not None)

    def free(self, prompt_ids: Sequence[int] = (), user: str | None = "") -> EngineSlot | None:
        return None if self.running else self.slots[0]

    def begin(self, slot: EngineSlot, answer: Callable[[Any], None]) -> None:
        self._answer = answer

    def step(self) -> None:
        if self._answer is not None:
            try:
                self._answer(self.slots[0].engine)
            finally:
                self._answer = None

    def wake(self) -> None:
        """Nothing: steps do not wait."""

    def stop(self, slot: EngineSlot, error: Exception) -> None:
        pass

    def close(self) -> None:
        self._answer = None


class ContinuousBatch:
    """Slots for n answers over one engine's target.

    engine: of a native backend; it must not be used meanwhile.
    batch_invariant: as in BatchSlots.

    Raises as `slots_of`.
    """

    def __init__(self, engine: Engine, n: int, batch_invariant: bool = False) -> None:
        target = engine.target
        calls = self._read, self._step, self._draft, self._turn
        self.passes = slots_of(target, n, batch_invariant, *calls)
        self.slots = [
            EngineSlot(engine.with_target(backend, batch_invariant, self._part))
            for backend in self.passes.all
        ]
        self._begun = self.running = 0
        self._main = getcurrent()
        costs = passes.known(target)
        if costs is not None:  # those of an answer alone, until others are learnt
            for backend in self.passes.all:
                passes.assume(backend, costs)

    def learn_costs(self, fingerprint: str, folder: Path | None) -> SharedCosts:
        """Learn what its passes cost, as `under_load.learn`."""
        weak = weakref.proxy(self)  # what is learnt lives as long as the slots do
        return learn(self.passes, fingerprint, folder, lambda: weak.running)

    def free(self, prompt_ids: Sequence[int] = (), user: str | None = "") -> EngineSlot | None:
        """Free slots, low ones first, so that rows in use are neighbours."""
        free = [slot for slot in self.slots if slot.at_work is None]
        held = [slot.engine.cached_prefix(prompt_ids, user) for slot in free]
        if max(held, default=0) >= WORTH_REUSING:
            return free[held.index(max(held))]
        return free[0] if free else None

    def begin(self, slot: EngineSlot, answer: Callable[[Any], None]) -> None:
        assert slot.at_work is None
        self._begun += 1
        self.running += 1
        slot.at_work, slot.born = greenlet(lambda _: answer(slot.engine)), self._begun
        slot.wants = slot.given = None

    def step(self, read: Reads | None = None) -> None:
        """Let every answer run up to its next pass, and run that pass. Where the pass fails, so do
        all answers that waited for it.

        read: runs it in the place of `BatchSlots.read`.
        """
        self._main = getcurrent()
        with torch.inference_mode():
            busy, budget = sorted(self._busy(), key=lambda slot: slot.born), PROMPT_TOKENS
            for slot in busy:
                if slot.wants is None or isinstance(slot.wants, Turn):
                    self._go_on(slot)
            self._run_cells()  # a draft is timed, and must not wait while a prompt is read
            for slot in busy:
                while isinstance(slot.wants, PromptPart) and budget > 0:
                    budget -= slot.wants.tokens
                    self._go_on(slot)
                self._run_cells()
            reading = [slot for slot in self._busy() if isinstance(slot.wants, Pass)]
            if reading:
                wanted = [slot.wants.wanted for slot in reading if isinstance(slot.wants, Pass)]
                try:
                    logits = (read or self.passes.read)(wanted)
                except Exception as error:
                    self._fail(reading, error)
                    return
                for slot, own in zip(reading, logits, strict=True):
                    slot.given, slot.wants = own, None

    def wake(self) -> None:
        """Nothing: steps do not wait."""

    def stop(self, slot: EngineSlot, error: Exception) -> None:
        if slot.at_work is not None and slot.wants is not None:
            with torch.inference_mode():
                self._go_on(slot, error)

    def close(self) -> None:
        with torch.inference_mode():  # or an answer's own would be left on as it ends
            for slot in self._busy():
                assert slot.at_work is not None
                slot.at_work.throw(GreenletExit)
                self._ended(slot)

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.close()

    def _busy(self) -> list[EngineSlot]:
        return [slot for slot in self.slots if slot.at_work is not None]

    def _go_on(self, slot: EngineSlot, error: Exception | None = None) -> None:
        """Until it next waits or ends. What it raises is raised here.

        error: what it gets in the place of what it waited for.
        """
        assert slot.at_work is not None
        given, slot.wants, slot.given = slot.given, None, None
        try:
            wants = slot.at_work.switch(given) if error is None else slot.at_work.throw(error)
        except BaseException:
            self._ended(slot)
            raise
        if slot.at_work.dead:
            self._ended(slot)
        else:
            slot.wants = wants

    def _ended(self, slot: EngineSlot) -> None:
        slot.at_work = None
        self.running -= 1

    def _fail(self, slots: Sequence[EngineSlot], error: Exception) -> None:
        """Each of these gets the error; what any of them raises is raised at the end."""
        raised: Exception | None = None
        for slot in slots:
            try:
                self._go_on(slot, error)
            except Exception as own:
                raised = own
        if raised is not None:
            raise raised

    def _run_cells(self) -> None:
        """Until no answer waits for a cell."""
        while cells := [slot for slot in self._busy() if isinstance(slot.wants, CellWork)]:
            self._run_cells_of(cells)

    def _run_cells_of(self, slots: Sequence[EngineSlot]) -> None:
        """A step of each, or a whole draft; those of the same cell together."""
        alike: dict[tuple[int, bool], list[tuple[EngineSlot, CellWork]]] = {}
        for slot in slots:
            work = slot.wants
            assert isinstance(work, CellWork)
            alike.setdefault((id(work.head), work.draft is None), []).append((slot, work))
        for group in alike.values():
            try:
                given = CellWork.together([work for _, work in group])
            except Exception as error:
                self._fail(slots, error)
                return
            for (slot, _), own in zip(group, given, strict=True):
                slot.given = own
        for slot in slots:
            self._go_on(slot)

    # -- called by answers --------------------------------------------------------------------

    def _read(self, wanted: Any) -> Tensor:
        logits: Tensor = self._main.switch(Pass(wanted))
        return logits

    def _turn(self) -> None:
        self._main.switch(Turn())

    def _part(self, tokens: int) -> None:
        self._main.switch(PromptPart(tokens))

    def _step(self, head: Cell, state: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
        made: tuple[Tensor, Tensor] = self._main.switch(CellWork(head, state, token))
        return made

    def _draft(self, head: Cell, state: Tensor, token: Tensor, wanted: CellTokens) -> Tensor:
        made: Tensor = self._main.switch(CellWork(head, state, token, wanted))
        return made
