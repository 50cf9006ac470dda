"""Whole rounds as recordings: draft, verify and accept without the host.

The ordinary loop reads the device twice a round and runs some hundred small operations from the
host, one to three milliseconds where a pass of a small model takes a third of one. Here the
sequence itself lies on the device. A recorded round drafts from it, reads the newest token and the
draft in one pass, keeps what the target would have written, and leaves a small record. The host
launches the next round before it reads the record of the last, so that the device never waits.

One chain a round (`device_loop.py` says for which arms). What is written are the target's own
tokens, whatever is drafted: the most likely ones, or those that the clocks of their places name.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from ...common.errors import NotANumber
from ...device_rounds import (
    BEFORE,
    WIDEST,
    Chooser,
    DeviceSequence,
    RoundDraft,
    Shape,
    first_likeliest,
)
from ...records import NAN, Sampling, StepStats
from ...sampling.argmax import numbered
from ...sampling.filters import nucleus
from ...sampling.race import pick
from . import runs_triton
from .recorded import Layers, RecordedPasses

GREEDY, DRAWN, FILTERED = "greedy", "drawn", "filtered"  # what a recording does with its scores


class RoundSampling:
    """Draws the rounds of one sequence by the clocks of the answer's key, as in
    `randomness.Generator`, so that a recorded round draws what the ordinary loop draws. The key and
    what is asked for lie on the device: one recording serves any temperature, top-k and top-p.

    kind: of the recordings that the present answer needs.
    """

    kind = GREEDY

    def __init__(self, vocab: int, device: torch.device) -> None:
        self._vocab = vocab
        self._key = torch.zeros(1, dtype=torch.int64, device=device)
        self._heat = torch.ones(1, dtype=torch.float64, device=device)
        self._one = torch.ones_like(self._heat)
        self._kept = torch.zeros(1, dtype=torch.int64, device=device)
        self._outside = torch.zeros((), dtype=torch.float64, device=device)  # 1 - top_p

    def begin(self, sampling: Sampling, key: int) -> None:
        if sampling.greedy:
            self.kind = GREEDY
            return
        self.kind = DRAWN if sampling.unfiltered else FILTERED
        self._key.fill_(key)
        self._heat.fill_(sampling.temperature)
        self._kept.fill_(sampling.top_k or self._vocab)
        self._outside.fill_(1 - sampling.top_p)

    def chooser(self, kind: str) -> Chooser:
        """Chooses tokens within a recording of this kind, as `filters.chosen` does."""
        if kind == GREEDY:
            return first_likeliest

        def choose(logits: Tensor, places: Tensor, names: Tensor | None) -> Tensor:
            t, heat = len(logits), self._heat
            if kind == FILTERED:
                logits, heat = self._filtered(logits), self._one
            return pick(logits, heat.expand(t), self._key.expand(t), places, names)[:, 0]

        return choose

    def _filtered(self, logits: Tensor) -> Tensor:
        scores = logits if logits.dtype == torch.float64 else logits.float()
        scores = scores / self._heat.to(scores.dtype)
        ascending, order = scores.sort(-1)
        least = ascending.index_select(-1, (scores.shape[-1] - self._kept).clamp(min=0))
        ascending = ascending.masked_fill(ascending < least, -torch.inf)
        return nucleus(
            scores.masked_fill(scores < least, -torch.inf), ascending, order, self._outside
        )


LEAST_ROOM = 1024  # tokens that are searched for a match; twice as many when they are too few
TIMED = 5  # replays by which a round is timed when it is recorded


class Rounded(Protocol):
    """A model whose rounds can be recorded, and on whose device answers are written.

    turn: called between two rounds of one answer, so that others go on; None where answers must not
        be written so.
    """

    context: int
    device: torch.device
    vocab_size: int
    recorded: RecordedPasses | None
    turn: Callable[[], None] | None

    @property
    def kept_states(self) -> tuple[int, ...]:
        """After which layers it keeps states."""

    def pass_through(self, h: Tensor, start: Tensor, layers: Layers) -> Tensor:
        """h [T, d] through all layers at positions start.., within a recording."""

    def keep_final(self, states: Tensor, start: Tensor) -> None:
        """The final states [T, d] of these positions are there, where any are kept."""

    def hold(self, length: int) -> None:
        """So many positions are read."""


class RecordedRounds:
    """The rounds of one arm on one sequence, each kind recorded when it is first asked for."""

    def __init__(self, target: Rounded, draft: RoundDraft, context: int) -> None:
        """context: positions that the target and what drafts have."""
        assert target.recorded is not None
        self._context = context
        self._target, self._passes, self.draft = target, target.recorded, draft
        self._plain, *_ = draft.first()
        device = self._device = target.device
        new = torch.zeros(BEFORE + target.context + WIDEST, dtype=torch.int64, device=device)
        new[:BEFORE] = -1
        self._padded, self._state = new, torch.zeros(3, dtype=torch.int64, device=device)
        self._after, self._of = torch.zeros_like(self._state), torch.zeros_like(self._state[:1])
        self._sampling = RoundSampling(target.vocab_size, device)
        self._accept: Callable[..., None] = accept
        self._copy: Callable[..., None] | None = None
        if runs_triton(device):
            from . import round_kernels

            self._accept, self._copy = round_kernels.accept, round_kernels.copy
        self._replays: dict[tuple[object, ...], Callable[[], Tensor]] = {}
        # rounds that were launched and not read: a record's first 3 + width numbers are the round's
        # once the event is over
        self._flying: deque[tuple[Shape, Tensor, torch.cuda.Event | None]] = deque()
        self._free: list[Tensor] = []
        self._held = 0  # tokens that the host knows of
        self._seconds: dict[str, dict[Shape, float]] = {}
        self._counts: dict[str, Counter[Shape]] = {}

    @property
    def seconds(self) -> dict[Shape, float]:
        """Seconds of a round that draws its tokens as the present answer's do."""
        return self._seconds.setdefault(self._sampling.kind, {})

    @property
    def counts(self) -> Counter[Shape]:
        """Such rounds that were read."""
        return self._counts.setdefault(self._sampling.kind, Counter())

    def begin(
        self, prompt_ids: list[int], context: list[int], sampling: Sampling, key: int
    ) -> None:
        """An answer to a prompt goes on from `context`, whose last token the target has not
        read. key: of its clocks, where it is sampled."""
        self._flying.clear()
        self._sampling.begin(sampling, key)
        self._held = self._bound = len(context)
        self.draft.reset(prompt_ids)
        ids = torch.tensor(context)
        self._padded[BEFORE : BEFORE + len(ids)].copy_(ids)
        self._state.copy_(torch.tensor([len(ids), context[-1], len(ids) - 1]))
        for shape in self.draft.first():
            fits = self._bound + self.draft.width(shape) <= self._context
            if fits and shape not in self.seconds:
                self._recorded(shape)

    def launch(self, k: int) -> None:
        """One more round, which drafts at most k tokens. Without a draft where the context ends."""
        k = min(k, WIDEST - 1)
        if self._bound + k >= self._context:
            k = 0  # so that the next round, launched before this one is read, has a position too
        shape = self.draft.next(k, self.seconds)
        made = self._recorded(shape)()
        self._state.copy_(self._after)
        self._bound += 1 + self.draft.width(shape)
        self._flying.append((shape, *self._sent(made)))

    def read(self) -> tuple[list[int], StepStats]:
        """Read the oldest round: the accepted tokens and the target's own, and how it went. Raises
        NotANumber where its scores were none.

        Its draft took what the round takes beyond one that drafts nothing, as both were timed when
        they were recorded.
        """
        shape, record, event = self._flying.popleft()
        if event is not None:
            event.synchronize()
        accepted, of, *best = record.tolist()
        self._free.append(record)
        ids = best[: accepted + 1]
        if NAN in ids:
            raise NotANumber
        drafted = self.draft.width(shape)
        self._bound -= drafted - accepted
        self._held += len(ids)
        self._target.hold(self._held - 1)
        self.counts[shape] += 1
        self.draft.learn(shape, of, accepted)
        round_s = self.seconds[shape]
        draft_s = max(0.0, round_s - self.seconds.get(self._plain, round_s))
        return ids, StepStats(drafted, accepted, draft_s, round_s - draft_s)

    def _sent(self, made: Tensor) -> tuple[Tensor, torch.cuda.Event | None]:
        """The record on its way to the host, and when it is there."""
        pinned = self._device.type == "cuda"
        if self._free:
            record = self._free.pop()
        else:
            record = torch.empty(3 + WIDEST, dtype=torch.int64, pin_memory=pinned)
        record[: len(made)].copy_(made, non_blocking=True)
        if not pinned:
            return record, None
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        return record, event

    def _recorded(self, shape: Shape) -> Callable[[], Tensor]:
        end = self._bound + self.draft.width(shape)
        room, read = LEAST_ROOM, self._passes.positions(end)
        while room < end:
            room *= 2
        sizes, kind = (min(room, self._target.context), read), self._sampling.kind
        for each in (self._plain, shape):  # what the draft costs is the difference
            key = each, sizes, self._target.kept_states, kind
            if key not in self._replays:
                replay = self._passes.record(partial(self._round, each, *sizes, kind))
                self.seconds[each] = _seconds(replay, self._device)
                self._replays[key] = replay
        return self._replays[key]

    def _round(self, shape: Shape, room: int, read: int, kind: str) -> Tensor:
        """[2 + K + 1]: how many of K drafted tokens are accepted, of which drafter they are, and
        the target's own tokens. It may be run again on the same sequence."""
        padded = self._padded[: BEFORE + room + WIDEST]
        choose = self._sampling.chooser(kind)
        line = DeviceSequence(padded, self._state, room, read, self._copy, choose)
        drafted, of = self.draft.ids(shape, line)
        ids = torch.cat([line.newest(1), drafted]) if len(drafted) else line.newest(1)
        layers = self._passes.run(read)
        h = self._target.pass_through(self._passes.embedded(ids), line.start, layers)
        scores, states = self._passes.read_out(layers, h)
        self._target.keep_final(states, line.start)
        places = line.count + torch.arange(len(ids), device=self._device)
        best = choose(scores, places, None)  # [K + 1] of [K + 1, V]
        record = torch.empty(2 + len(best), dtype=torch.int64, device=self._device)
        of = self._of if of is None else of
        self._accept(drafted, of, best, scores, line.ids, line.state, self._after, record)
        return record


def accept(
    drafted: Tensor,
    of: Tensor,
    best: Tensor,
    scores: Tensor,
    ids: Tensor,
    state: Tensor,
    after: Tensor,
    record: Tensor,
) -> None:
    """Accept drafted tokens by PyTorch's operators, as the kernel does."""
    k = len(drafted)
    right = (drafted == best[:k]).long().cumprod(0).sum(0, keepdim=True)  # [1]
    count = state[:1]
    ids.index_copy_(0, count + torch.arange(k + 1, device=ids.device), best)
    count = count + right
    after.copy_(torch.cat([count + 1, best.index_select(0, right), count]))
    record.copy_(torch.cat([right, of, numbered(best, scores)]))


def _seconds(replay: Callable[[], Tensor], device: torch.device) -> float:
    """Seconds of one replay, where several follow one another."""
    if device.type != "cuda":
        started = time.perf_counter()
        replay()
        return time.perf_counter() - started
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(2)]  # type: ignore[no-untyped-call]
    replay()
    marks[0].record()
    for _ in range(TIMED):
        replay()
    marks[1].record()
    marks[1].synchronize()
    return float(marks[0].elapsed_time(marks[1])) / TIMED / 1000
