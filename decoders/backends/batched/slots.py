"""Several sequences of one model: the same weights, a cache row each, and shared passes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from ...common.sync import synchronize
from ...device_rounds import WIDEST
from ...sampling.argmax import likeliest, numbered
from ...sampling.race import Clocks, pick
from ..cpp.row_attention import SPAN, AttentionSpans
from ..llama.kv import KVCache
from ..llama.model import LayerWeights, Weights, logits_of
from ..llama.reading import SequenceSlice
from ..native import LlamaBackend
from ..weights.int8 import WIDE
from ..weights.packed import Matrix, Rounded
from .recorded_chains import TOKENS, RecordedChains
from .shared_pass import SharedPass


@dataclass(frozen=True)
class PassRequest:
    """What one slot wants read: as `extend`'s arguments."""

    slot: SlotBackend
    ids: Tensor
    parents: Sequence[int] | None = None


class PassTokens:
    """The tokens that a shared pass's answers write: found for all of its rows at once, when an
    answer first asks, in the place of a call for each of them.

    logits: [N, V], of the whole pass.
    likeliest: its likeliest tokens, where they are known already.
    """

    def __init__(self, logits: Tensor, likeliest: list[int] | None = None) -> None:
        self._logits, self._likeliest = logits, likeliest
        self._parts: list[tuple[Clocks, SequenceSlice]] = []
        self._rows = 0
        self._found: list[int] | None = None

    def told_to(self, slot: SlotBackend, reading: SequenceSlice) -> None:
        """The next rows are this slot's."""
        first = self._rows
        self._rows += reading.count
        self._parts.append((slot.clocks or Clocks(), reading))
        if slot.clocks is not None:
            slot.tell(lambda: self._tokens()[first : first + reading.count])

    def _tokens(self) -> list[int]:
        if self._found is None:
            self._found = self._likeliest
            if any(clocks.temperature for clocks, _ in self._parts) or self._found is None:
                self._found = numbered(self._chosen(), self._logits).tolist()
        return self._found

    def _chosen(self) -> Tensor:
        if not any(clocks.temperature for clocks, _ in self._parts):
            return likeliest(self._logits)
        rows = [
            (*clocks, place)
            for clocks, reading in self._parts
            for place in range(reading.start + 1, reading.end + 1)
        ]
        heats, keys, places = zip(*rows, strict=True)
        device = self._logits.device
        heat = torch.tensor(heats, dtype=torch.float64, device=device)
        return pick(self._logits, heat, *torch.tensor([keys, places], device=device))[:, 0]


@dataclass(frozen=True)
class Company:
    """Calls by which a sequence waits for others, to share its work with theirs.

    read: answers `extend`, in a pass with others.
    share_step: as `Cell.step` (methods/recurrent/drafter.py) of the cell that it is given, together
        with others' steps.
    share_draft: as `Cell.drafts` of one sequence, together with others'.
    turn: lets others go on, between two rounds of its own; None where it has none of its own.
    """

    read: Callable[[PassRequest], Tensor]
    share_step: Callable[[Any, Tensor, Tensor], tuple[Tensor, Tensor]]
    share_draft: Callable[[Any, Tensor, Tensor, Any], Tensor]
    turn: Callable[[], None] | None = None


class SlotBackend(LlamaBackend):
    """One of several sequences.

    row: its own of the cache that they share.
    company: None where it reads at once and alone.
    recorded_chains: by which it reads prompts; None where nothing is recorded.
    share_step, share_draft: the company's.
    """

    def __init__(
        self,
        like: LlamaBackend,
        cache: KVCache,
        row: int,
        company: Company | None,
        recorded_chains: RecordedChains | None,
    ) -> None:
        self.row = row
        own = cache.row(row)
        super().__init__(like.shape, like.weights, like.context, own)
        self._rope = like._rope
        self.clocks: Clocks | None = None
        self._told: Callable[[], list[int]] | None = None
        self.recorded_chains, self._company = recorded_chains, company
        self.turn = None if company is None else company.turn
        self.share_step = None if company is None else company.share_step
        self.share_draft = None if company is None else company.share_draft
        if like.compiled is not None:
            self.compiled = like.compiled.over(own)
        if like.recorded is not None and row == 0:  # a recording is of one row
            self.record_passes(like.recorded.record, like.recorded.fused is not None)

    @property
    def told(self) -> list[int] | None:
        """Give what TellingBackend promises."""
        return None if self._told is None else self._told()

    def tell(self, tokens: Callable[[], list[int]]) -> None:
        """Have these of the pass that is being read."""
        self._told = tokens

    @torch.inference_mode()
    def extend(self, ids: Tensor, parents: Sequence[int] | None = None) -> Tensor:
        self._told = None
        if self._company is None:
            return super().extend(ids, parents)
        return self._company.read(PassRequest(self, ids, parents))

    @property
    def apart(self) -> bool:
        """Whether it goes on from a tree, or some layers have seen more than others."""
        return self._tree is not None or self._ahead != self._length

    def chain(self, t: int) -> SequenceSlice:
        """Place the next t tokens. Raises ContextTooLong."""
        start = self._length
        self._placed(t, None)
        return SequenceSlice(self.row, start, t)

    def _hidden(self, ids: Tensor, parents: Sequence[int] | None = None) -> Tensor:
        """Read a prompt's tokens by a recording, where there is one."""
        recorded, t = self.recorded_chains, len(ids)
        own = self.recorded is not None and t <= WIDEST
        if recorded is None or own or parents is not None or self.apart or t > TOKENS[-1]:
            return super()._hidden(ids, parents)
        reading = self.chain(t)
        h, left = recorded.hidden(reading, ids, self.exits)
        for after, hidden in left.items():
            self.left(reading, after, hidden)
        self._length = self._ahead = reading.end
        return h

    def grown(self, t: int) -> int:
        """Positions of which some may not be seen, with t tokens more."""
        return t if self._tree is None else len(self._tree.parents) + t

    def read_alone(self, wanted: PassRequest) -> Tensor:
        """What `extend` would have given."""
        return super().extend(wanted.ids, wanted.parents)

    def pretend(self, length: int) -> None:
        """Hold this number of positions, with any content: for timing."""
        self.truncate(0)
        self._length = self._ahead = length

    # -- one part of a shared pass ------------------------------------------------------------

    def begin(self, ids: Tensor, parents: Sequence[int] | None) -> Begun:
        """Place the tokens, and say from which layer on they still have to be run."""
        start = self._length
        branch = self._placed(len(ids), parents)
        depths, seen = branch if branch is not None else (None, None)

        after, h = self._caught_up(ids, start, branch)
        return Begun(self, SequenceSlice(self.row, start, len(ids), depths, seen), h, after)

    @property
    def exits(self) -> list[int]:
        """Layers after which the states are kept."""
        return list(self._exits)

    def through(self, h: Tensor, first: int, last: int, reading: SequenceSlice) -> Tensor:
        """h [T, d] through the layers first..last-1, as `extend` alone takes it."""
        return self._run(h, first, last, reading.start, reading.branch)

    def left(self, reading: SequenceSlice, exit_layer: int, hidden: Tensor) -> None:
        """hidden: [T, d] after the exit layer."""
        self._exits[exit_layer][reading.start : reading.end] = hidden

    def end(self, reading: SequenceSlice, states: Tensor) -> None:
        """states: [T, d] after the final norm."""
        self._length = self._ahead = reading.end
        if self._final is not None:
            self._final[reading.start : reading.end] = states


@dataclass(frozen=True)
class Begun:
    """h: [T, d], states in front of the model's layer `layer`."""

    slot: SlotBackend
    reading: SequenceSlice
    h: Tensor
    layer: int


class BatchSlots:
    """n sequences of one model, and the passes that they share.

    Positions are those of the model; on a CPU memory is taken only as sequences grow.

    like: the model; its own sequence is left alone.
    narrow: tokens of a pass up to which rounded weights are multiplied by as they are; beyond, by
        their copies in bfloat16, which may be faster then (int8.py).
    batch_invariant: never by those, so that an answer does not depend on what is read with it.
    company: of each sequence; None where each reads at once and alone.
    """

    def __init__(
        self,
        like: LlamaBackend,
        n: int,
        batch_invariant: bool = False,
        company: Company | None = None,
    ) -> None:
        self.like = like
        self._cache = like.new_cache(like.shape.layers, n, like.eight_bits)
        self._recorded = None if batch_invariant else RecordedChains.of(like, self._cache)
        parts = company, self._recorded
        self.all = [SlotBackend(like, self._cache, row, *parts) for row in range(n)]
        self.narrow, self.batch_invariant = like.narrow, batch_invariant
        self._most = WIDE if like.compiled is None else like.compiled.most
        self._wide = None if batch_invariant else _wide(like.weights)
        self._rows = None if like.compiled is None else like.compiled.over(self._cache)

    @property
    def passes(self) -> str:
        """How those that several share are run: eager, recorded or compiled."""
        if self._recorded is not None:
            return "recorded"
        return "eager" if self._rows is None else "compiled"

    @torch.inference_mode()
    def read(self, wanted: Sequence[PassRequest]) -> list[Tensor]:
        """Logits [T, V] for each of `wanted`, which are of different slots, as its `extend` alone
        would give them but for their last bits."""
        if self._recorded is not None and self._chains(wanted):
            return self._replayed(self._recorded, wanted)
        if len(wanted) == 1:
            return [wanted[0].slot.read_alone(wanted[0])]
        if self.batch_invariant and not self._in_one_way(wanted):
            half = len(wanted) // 2
            return self.read(wanted[:half]) + self.read(wanted[half:])
        order = sorted(range(len(wanted)), key=lambda i: wanted[i].slot.row)
        begun = [wanted[i].slot.begin(wanted[i].ids, wanted[i].parents) for i in order]
        counts = [each.reading.count for each in begun]
        weights = self.like.weights
        if self._wide is not None and sum(counts) > self.narrow:
            weights = self._wide
        states = self.like.final_norm(self._through(begun, weights.layers))
        for each, own in zip(begun, torch.split(states, counts), strict=True):
            each.slot.end(each.reading, own)
        logits = logits_of(states, weights.head, self.like.shape)
        made, tokens = [logits] * len(wanted), PassTokens(logits)
        for i, own, each in zip(order, torch.split(logits, counts), begun, strict=True):
            made[i] = own
            tokens.told_to(each.slot, each.reading)
        return made

    def seconds(self, rows: int, tokens: int, context: int, repeats: int) -> float:
        """The least of so many passes over `tokens` tokens of each of the first `rows`, which hold
        `context` positions, or as many as they may. What they held is forgotten."""
        used, times = self.all[:rows], list[float]()
        ids = torch.ones(tokens, dtype=torch.int64, device=self.like.device)
        for _ in range(repeats + 1):  # the first warms up
            for slot in used:
                slot.pretend(min(context, slot.context - tokens))
            started = time.perf_counter()
            self.read([PassRequest(slot, ids) for slot in used])
            synchronize(self.like.device)
            times.append(time.perf_counter() - started)
        for slot in used:
            slot.truncate(0)
        return min(times[1:])

    def _chains(self, wanted: Sequence[PassRequest]) -> bool:
        """Whether a recording reads these; not what one slot has a recording of its own for."""
        if len(wanted) == 1 and wanted[0].slot.recorded is not None:
            return False
        few = sum(len(each.ids) for each in wanted) <= TOKENS[-1]
        return few and all(each.parents is None and not each.slot.apart for each in wanted)

    def _replayed(self, recorded: RecordedChains, wanted: Sequence[PassRequest]) -> list[Tensor]:
        counts = [len(each.ids) for each in wanted]
        readings = [each.slot.chain(n) for each, n in zip(wanted, counts, strict=True)]
        exits = {after for each in wanted for after in each.slot.exits}
        ids = torch.cat([each.ids for each in wanted])
        logits, found, states, left = recorded.read(readings, ids, exits)
        tokens, first = PassTokens(logits, found), 0
        for each, reading in zip(wanted, readings, strict=True):
            slot, last = each.slot, first + reading.count
            for after in slot.exits:
                slot.left(reading, after, left[after][first:last])
            slot.end(reading, states[first:last])
            tokens.told_to(slot, reading)
            first = last
        return list(torch.split(logits, counts))

    def _in_one_way(self, wanted: Sequence[PassRequest]) -> bool:
        """Whether a pass over these goes the way that each of them goes alone."""
        few = sum(len(each.ids) for each in wanted) <= self._most
        if self._rows is None:
            return few
        return few and all(each.slot.grown(len(each.ids)) <= SPAN for each in wanted)

    def _through(self, begun: Sequence[Begun], layers: Sequence[LayerWeights]) -> Tensor:
        """[N, d] after the last layer. Stops at exit layers, where some begin and of others the
        states are kept."""
        stops = {0, len(layers), *(at for each in begun for at in each.slot.exits)}
        states = [each.h for each in begun]
        narrow = layers is self.like.weights.layers and sum(map(len, states)) <= self._most
        edges = sorted(stops)
        for first, last in pairwise(edges):
            run = [i for i, each in enumerate(begun) if each.layer <= first]
            if not run:  # all are further on, by exits
                continue
            readings = [begun[i].reading for i in run]
            if len(run) == 1:
                h = begun[run[0]].slot.through(states[run[0]], first, last, readings[0])
            else:
                h = torch.cat([states[i] for i in run])
                h = self._shared(h, layers[first:last], first, readings, narrow)
            for i, own in zip(run, torch.split(h, [r.count for r in readings]), strict=True):
                states[i] = own
                if last in begun[i].slot.exits:
                    begun[i].slot.left(begun[i].reading, last, own)
        return torch.cat(states)

    def _shared(
        self,
        h: Tensor,
        layers: Sequence[LayerWeights],
        first: int,
        readings: Sequence[SequenceSlice],
        narrow: bool,
    ) -> Tensor:
        """h [N, d], the readings' tokens one after the other, through `layers`, the first of which
        is the model's layer `first`; [N, d]. narrow: whole layers by the kernels, if there are."""
        like, kernels = self.like, self._rows
        spans = None if kernels is None else AttentionSpans.of(readings)
        if kernels is None or spans is None:
            shared = SharedPass(readings, like.shape, like._rope, self._cache, like.pointwise)
            return shared.through(h, layers, first)
        if narrow:
            return kernels.read(h, first, first + len(layers), spans)
        return kernels.wider(h, layers, first, spans)


def _wide(weights: Weights) -> Weights | None:
    """The same model by the copies of its matrices for wide passes; None where there are none."""

    def wide(matrix: Matrix) -> Matrix:
        return matrix.wide if isinstance(matrix, Rounded) and matrix.wide is not None else matrix

    def of(layer: LayerWeights) -> LayerWeights:
        parts: dict[str, Any] = {name: wide(part) for name, part in layer.tensors().items()}
        return replace(layer, **parts)

    made = replace(weights, layers=[of(each) for each in weights.layers], head=wide(weights.head))
    return None if made.layers[0].qkv is weights.layers[0].qkv else made
