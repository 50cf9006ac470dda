"""Whole rounds as recordings: draft, verify and accept without the host.

The ordinary loop reads the device twice a round and runs some hundred small operations from the
host, one to three milliseconds where a pass of a small model takes a third of one. Here the
sequence itself lies on the device. A recorded round drafts from it, reads the newest token and the
draft in one pass, keeps what the target would have written, and leaves a small record. The host
launches the next round before it reads the record of the last, so that the device never waits.

Lossless and one chain a round (`device_loop.py` says for which arms). What is written are the
target's own most likely tokens, whatever is drafted; or the tokens that it draws, each by a number
that belongs to its place. A draft, which is one of the most likely tokens, is accepted while it is
what the target writes: at a temperature too, that leaves the target's distribution as it is, and to
a seed every arm gives plain decoding's answer.
"""

from __future__ import annotations

import importlib.util
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ...common.errors import NotANumber
from ...device_rounds import BEFORE, WIDEST, Copier, DeviceSequence, RoundDraft, Shape
from ...records import NAN, Sampling
from ...sampling.argmax import likeliest, numbered
from ...sampling.filters import nucleus
from ...sampling.randomness import Generator, drawn_at
from .recorded import Layers, RecordedPasses

AHEAD = 256  # numbers that are brought to the device at once
GREEDY, DRAWN, FILTERED = "greedy", "drawn", "filtered"  # what a recording does with its scores


class RoundSampling:
    """What the rounds of one sequence are drawn by.

    Every token takes one number of the answer's own sequence of them, as in `randomness.Generator`,
    so that a recorded round draws what the ordinary loop draws. The numbers and what is asked for
    lie on the device: one recording serves any temperature, top-k and top-p.

    kind: of the recordings that the present answer needs.
    """

    kind = GREEDY

    def __init__(self, room: int, vocab: int, device: torch.device) -> None:
        """room: tokens that a sequence may have, and those that are drafted behind it."""
        self._vocab, self._chance = vocab, Generator(device, 0)
        self._heights = torch.zeros(room, dtype=torch.float64, device=device)
        self._temperature = torch.ones((), dtype=torch.float64, device=device)
        self._least = torch.zeros(1, dtype=torch.int64, device=device)  # of ascending scores
        self._outside = torch.zeros((), dtype=torch.float64, device=device)  # 1 - top_p
        self._unused = self._filled = 0  # positions in the sequence

    def begin(self, sampling: Sampling, chance: Generator | None, length: int) -> None:
        """The next tokens are those from position `length` on. chance: None where greedy."""
        if sampling.greedy or chance is None:
            self.kind = GREEDY
            return
        self.kind = DRAWN if sampling.unfiltered else FILTERED
        self._temperature.fill_(sampling.temperature)
        kept = sampling.top_k or self._vocab
        self._least.fill_(max(0, self._vocab - kept))
        self._outside.fill_(1 - sampling.top_p)
        self._chance, self._unused, self._filled = chance, length, length

    def ready(self, end: int) -> None:
        """A round is to be launched that draws tokens before position `end` at most."""
        if self.kind == GREEDY or end <= self._filled:
            return
        to = min(end + AHEAD, len(self._heights))
        coming = self._chance.coming(to - self._unused)
        self._heights[self._filled : to] = coming[self._filled - self._unused :]
        self._filled = to

    def used(self, count: int) -> None:
        """So many tokens were kept."""
        if self.kind != GREEDY:
            self._chance.use(count)
            self._unused += count

    def drawn(self, kind: str, logits: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
        """Within a recording: tokens [T] of logits [T, V], which go to the positions count.. of the
        sequence, and their probabilities [T, V], as `filters.probabilities` has them.

        count: int64 [1].
        """
        scores = logits if logits.dtype == torch.float64 else logits.float()
        scores = scores / self._temperature
        if kind == FILTERED:
            ascending, order = scores.sort(-1)
            least = ascending.index_select(-1, self._least)
            ascending = ascending.masked_fill(ascending < least, -torch.inf)
            scores = nucleus(scores, ascending, order, self._outside)
        probs = scores.softmax(-1)
        place = count + torch.arange(len(probs), device=probs.device)
        return drawn_at(probs, self._heights.index_select(0, place)), probs


LEAST_ROOM = 1024  # tokens that are searched for a match; twice as many when they are too few
TIMED = 5  # replays by which a round is timed when it is recorded


@dataclass(frozen=True)
class Written:
    """What one round wrote.

    ids: the accepted tokens and the target's own.
    drafted: how many were drafted.
    draft_s: seconds of the round beyond those of one that drafts nothing, as both were timed when
        they were recorded.
    round_s: seconds of the whole round, likewise.
    """

    ids: list[int]
    drafted: int
    draft_s: float
    round_s: float

    @property
    def accepted(self) -> int:
        return len(self.ids) - 1


@dataclass(frozen=True)
class _Flying:
    """A round that was launched and not read. record: its first 3 + width numbers are the round's,
    once `event` is over."""

    shape: Shape
    record: Tensor
    event: torch.cuda.Event | None


class Rounded(Protocol):
    """A model whose rounds can be recorded; a LlamaBackend."""

    context: int
    device: torch.device
    vocab_size: int
    recorded: RecordedPasses | None

    @property
    def kept_states(self) -> tuple[int, ...]:
        """After which layers it keeps states."""
        ...

    def pass_through(self, h: Tensor, start: Tensor, layers: Layers) -> Tensor:
        """h [T, d] through all layers at positions start.., within a recording."""
        ...

    def keep_final(self, states: Tensor, start: Tensor) -> None:
        """The final states [T, d] of these positions are there, where any are kept."""
        ...

    def hold(self, length: int) -> None:
        """So many positions are read."""
        ...


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
        self._sampling = RoundSampling(target.context + WIDEST, target.vocab_size, device)
        self._accept: Callable[..., None] = accept
        self._copy: Copier | None = None
        if device.type == "cuda" and importlib.util.find_spec("triton") is not None:
            from . import round_kernels

            self._accept, self._copy = round_kernels.accept, round_kernels.copy
        self._replays: dict[tuple[object, ...], Callable[[], Tensor]] = {}
        self._flying: deque[_Flying] = deque()  # rounds that were launched and not read
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
        self,
        prompt_ids: list[int],
        context: list[int],
        sampling: Sampling,
        chance: Generator | None,
    ) -> None:
        """An answer to a prompt goes on from `context`, whose last token the target has not
        read. chance: where it is sampled."""
        self._flying.clear()
        self._sampling.begin(sampling, chance, len(context))
        self._held = self._bound = len(context)
        self.draft.reset(prompt_ids)
        ids = torch.tensor(context)
        self._padded[BEFORE : BEFORE + len(ids)].copy_(ids)
        self._state.copy_(torch.tensor([len(ids), context[-1], len(ids) - 1]))
        if not self.seconds:
            for shape in self.draft.first():
                if self._bound + self.draft.width(shape) <= self._context:
                    self._recorded(shape)

    def launch(self, k: int) -> None:
        """One more round, which drafts at most k tokens. Without a draft where the context ends."""
        k = min(k, WIDEST - 1)
        if self._bound + k >= self._context:
            k = 0  # so that the next round, launched before this one is read, has a position too
        shape = self.draft.next(k, self.seconds)
        self._sampling.ready(self._bound + self.draft.width(shape) + 1)
        made = self._recorded(shape)()
        self._state.copy_(self._after)
        self._bound += 1 + self.draft.width(shape)
        self._flying.append(self._sent(shape, made))

    def read(self) -> Written:
        """What the oldest round wrote. Raises NotANumber where its scores were none."""
        flying = self._flying.popleft()
        if flying.event is not None:
            flying.event.synchronize()
        accepted, of, *best = flying.record.tolist()
        self._free.append(flying.record)
        shape, ids = flying.shape, best[: accepted + 1]
        if NAN in ids:
            raise NotANumber
        drafted = self.draft.width(shape)
        self._bound -= drafted - accepted
        self._held += len(ids)
        self._sampling.used(len(ids))
        self._target.hold(self._held - 1)
        self.counts[shape] += 1
        self.draft.learn(shape, of, accepted)
        round_s = self.seconds[shape]
        plain_s = self.seconds.get(self._plain, round_s)
        return Written(ids, drafted, max(0.0, round_s - plain_s), round_s)

    def _sent(self, shape: Shape, made: Tensor) -> _Flying:
        """The record on its way to the host."""
        pinned = self._device.type == "cuda"
        if self._free:
            record = self._free.pop()
        else:
            record = torch.empty(3 + WIDEST, dtype=torch.int64, pin_memory=pinned)
        record[: len(made)].copy_(made, non_blocking=True)
        if not pinned:
            return _Flying(shape, record, None)
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        return _Flying(shape, record, event)

    def _recorded(self, shape: Shape) -> Callable[[], Tensor]:
        end = self._bound + self.draft.width(shape)
        room, read = LEAST_ROOM, self._passes.positions(end)
        while room < end:
            room *= 2
        room = min(room, self._target.context)
        kind = self._sampling.kind
        key = shape, room, read, self._target.kept_states, kind
        if key not in self._replays:
            replay = self._passes.record(lambda: self._round(shape, room, read, kind))
            self.seconds[shape] = _seconds(replay, self._device)
            self._replays[key] = replay
        return self._replays[key]

    def _round(self, shape: Shape, room: int, read: int, kind: str) -> Tensor:
        """[2 + K + 1]: how many of K drafted tokens are accepted, of which drafter they are, and
        the target's own tokens. It may be run again on the same sequence."""
        padded = self._padded[: BEFORE + room + WIDEST]
        line = DeviceSequence(padded, self._state, room, read, self._copy)
        drafted, of = self.draft.ids(shape, line)
        ids = torch.cat([line.newest(1), drafted]) if len(drafted) else line.newest(1)
        layers = self._passes.run(read)
        h = self._target.pass_through(self._passes.embedded(ids), line.start, layers)
        made = self._passes.read_out(layers, h)
        self._target.keep_final(made.states, line.start)
        if kind == GREEDY:
            best, scores = likeliest(made.logits), made.logits  # [K + 1], [K + 1, V]
        else:
            best, scores = self._sampling.drawn(kind, made.logits, line.count)
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
