"""Continuous batching: a model writes many answers at once, each at its own pace.

A cache has a fixed number of rows. Every step reads one new token in each of them; a row whose
answer has ended goes to the next prompt at once, so that none waits for the longest. A prompt
asked several times in a row is read once.

    prompts -> read in padded groups -> rows of the cache -> steps -> answers, as they end

The device alone knows how far a row has come: a step is the same work with the same tensors, and
on CUDA one graph. The host looks every few steps which rows have ended. What a row draws depends on
its key and its place alone (`decoders.sampling.race`), not on what is written next to it.

Yu et al., Orca: A Distributed Serving System for Transformer-Based Generative Models, 2022.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor

from decoders.backends.batched.row_passes import RowPasses, kernels_for
from decoders.backends.cuda.recorded import Recorder, Run, cuda_graphs
from decoders.backends.llama.attention import rounded
from decoders.backends.llama.kv import KVCache
from decoders.backends.llama.model import Part, logits_of
from decoders.backends.weights.packed import Rounded
from decoders.common.errors import DraftpickError, NotANumber
from decoders.common.sync import synchronize
from decoders.models import memory
from decoders.records import NAN
from decoders.sampling import race
from decoders.sampling.argmax import numbered

from .known import Draws
from .records import Written
from .stack import Stack, in_groups

CPU_ROWS = 64
CUDA_ROWS = 1024
OF_MEMORY = 0.5  # the share of what is free that a cache may take
ATTENTION_ROWS = 8  # rows whose attention is computed at once where there are no kernels for it
LOOK_EVERY = 16  # steps between looks at which rows have ended, where a look is a wait
WORTH_RECORDING = 32  # steps


@dataclass(frozen=True)
class Ask:
    """prompt: ids [S], S >= 1.
    most: new tokens at most, >= 1.
    temperature: 0 for greedy.
    key: of the clocks, as `race.key_of` makes it.
    """

    prompt: list[int]
    most: int
    temperature: float = 0.0
    key: int = 0


@dataclass(frozen=True)
class Answer:
    """index: which of the asked, from 0 on in the order in which they were taken.
    ids: new tokens, end-of-sequence included; NAN is the last where the model's scores were no
        numbers (sampling/argmax.py).
    state: [d] float32, the prompt's last one as the head reads it.
    states: [T, d], the one in front of each of its T tokens; None where they are not kept.
    """

    index: int
    ask: Ask
    ids: list[int]
    state: Tensor
    states: Tensor | None = None


def write(
    stack: Stack,
    prompts: list[list[int]],
    max_new_tokens: int,
    eos_ids: tuple[int, ...],
    draws: Draws = Draws(),
    keep_states: bool = False,
) -> Written:
    """Every prompt's answer. Raises NotANumber where the model's scores are none, for any of them.

    keep_states: `Written.states`, which then need no other pass.
    """
    (made,) = write_all(stack, prompts, max_new_tokens, eos_ids, [draws], keep_states)
    return made


@torch.inference_mode()
def write_all(
    stack: Stack,
    prompts: list[list[int]],
    max_new_tokens: int,
    eos_ids: tuple[int, ...],
    draws: Sequence[Draws],
    keep_states: bool = False,
) -> list[Written]:
    """Several answers to each prompt, which is read once for neighbours of them. The seconds of
    each are an equal share."""
    started = time.perf_counter()
    capacity = max(len(p) for p in prompts) + max_new_tokens
    asked = len(prompts) * len(draws)
    rows = min(asked, most_rows(stack, capacity))
    device = stack.embedding.device
    record = device.type == "cuda" and max_new_tokens > WORTH_RECORDING
    record = record and stack.shape.experts is None
    writer = Writer(
        stack,
        rows,
        capacity,
        eos_ids,
        cuda_graphs() if record else None,
        keep=max_new_tokens if keep_states else 0,
    )
    keys = [list(map(race.key_of, each.of(prompts))) for each in draws]
    by_length = sorted(enumerate(prompts), key=lambda pair: len(pair[1]))  # little padding
    asks = [
        (which, at, Ask(prompt, max_new_tokens, one.temperature, keys[which][at]))
        for at, prompt in by_length
        for which, one in enumerate(draws)
    ]
    ids: list[list[list[int]]] = [[[]] * len(prompts) for _ in draws]
    states = [[torch.empty(0)] * len(prompts) for _ in draws]
    embeddings = torch.empty(len(prompts), stack.shape.hidden)
    for answer in writer.answers(ask for *_, ask in asks):
        if answer.ids[-1] == NAN:
            raise NotANumber
        which, at, _ = asks[answer.index]
        ids[which][at], embeddings[at] = answer.ids, answer.state
        if answer.states is not None:
            states[which][at] = answer.states
    decode_s = time.perf_counter() - started - writer.prefill_s
    return [
        Written(
            ids[which],
            embeddings.numpy(),
            writer.prefill_s / len(draws),
            decode_s / len(draws),
            states=states[which] if keep_states else None,
        )
        for which in range(len(draws))
    ]


def most_rows(stack: Stack, capacity: int) -> int:
    """How many sequences of a given length are written at once on the stack's device: as many as
    gain, and fit in half of the memory that is free. On a CPU no more rounded rows than are
    multiplied by the rounded weights (`narrow`), or the answers would be another model's."""
    device, shape = stack.embedding.device, stack.shape
    row = 2 * len(stack.layers) * shape.kv_heads * rounded(capacity) * shape.head_dim
    free = memory.free_bytes(device)
    fit = (
        CUDA_ROWS
        if free is None
        else int(free * OF_MEMORY) // (row * stack.embedding.dtype.itemsize)
    )
    if device.type == "cuda":
        return max(1, min(CUDA_ROWS, fit))
    matrices = [stack.head, *(m for w in stack.layers for m in (w.qkv, w.out, w.gate_up, w.down))]
    narrow = [m.narrow for m in matrices if isinstance(m, Rounded) and m.wide is not None]
    return max(1, min(CPU_ROWS, fit, *narrow))


@dataclass
class _Row:
    """What the host knows of a row at work. left: steps until it ends, at most."""

    index: int
    ask: Ask
    left: int

    @property
    def length(self) -> int:
        """Positions that it holds, at most."""
        return len(self.ask.prompt) + self.ask.most - self.left


class Writer:
    """Writes with one stack.

    rows: sequences at once.
    capacity: positions of a prompt with its answer, at most.
    record: makes one graph of a step; None runs its operations one by one.
    fast: by the Triton kernels, None where they can.
    keep: tokens of an answer whose states are kept, all that it may have; 0 keeps none.

    prefill_s, steps, new_tokens: so far, the seconds that prompts took, the steps, and the tokens
    of answers that have ended.
    """

    def __init__(
        self,
        stack: Stack,
        rows: int,
        capacity: int,
        eos_ids: tuple[int, ...],
        record: Recorder | None = None,
        fast: bool | None = None,
        keep: int = 0,
    ) -> None:
        self._stack, self._rows, self._capacity, self._keep = stack, rows, capacity, keep
        shape, self._device = stack.shape, stack.embedding.device
        if capacity > shape.context:
            raise DraftpickError(
                f"the model has {shape.context} positions, and {capacity} are asked for; shorten "
                "the prompts or the answers"
            )
        device, dtype = self._device, stack.embedding.dtype
        size = len(stack.layers), rows, shape.kv_heads, rounded(capacity), shape.head_dim
        self._cache = KVCache(*size, dtype, device)
        self._rope = stack.rope()
        if fast is None:
            fast = kernels_for(shape, stack.layers, device)
        self._passes = RowPasses(shape, stack.layers, self._rope, self._cache, fast)
        self._ends = torch.tensor(eos_ids, dtype=torch.int64, device=device)
        count = torch.zeros(rows, dtype=torch.int64, device=device)
        self._token = count.clone()  # the newest, not yet read
        self._position = count.clone()  # its last position
        self._last = count.clone()  # the last that it may have
        self._alive = torch.zeros(rows, dtype=torch.bool, device=device)
        self._temperature = torch.zeros(rows, dtype=torch.float64, device=device)
        self._keys = count.clone()
        # by position, prompts left out
        self._written = torch.zeros(rows, capacity, dtype=torch.int64, device=device)
        self._states = torch.zeros(rows, shape.hidden, device=device)
        self._start = count.clone()  # where its answer begins
        # in front of each token of its answer; the last is for a row that has ended
        self._kept = torch.zeros(rows, keep + 1, shape.hidden, dtype=dtype, device=device)
        self._of_rows = (
            self._token,
            self._position,
            self._last,
            self._alive,
            self._temperature,
            self._keys,
            self._written,
            self._states,
            self._start,
            self._kept,
        )
        self._at_work: dict[int, _Row] = {}
        self._look_every = 1 if device.type == "cpu" else LOOK_EVERY
        self.prefill_s, self.steps, self.new_tokens = 0.0, 0, 0
        self._taken = 0
        self._replay: Run | None = None
        if record is not None:  # while no row is at work: a step repeated changes nothing
            with torch.inference_mode():
                self._replay = record(lambda: self._step([(slice(0, rows), capacity)]))

    def answers(self, asks: Iterable[Ask]) -> Iterator[Answer]:
        """Each answer once it has ended; `asks` is read as rows become free. Raises DraftpickError
        for one that does not fit."""
        left = iter(asks)
        return self.serve(lambda free: list(islice(left, free)))

    def serve(self, take: Callable[[int], Sequence[Ask]]) -> Iterator[Answer]:
        """Write answers that are not known beforehand. take(n): the next ones, at most n; none
        where there are none now. Ends when nothing is at work and there are none."""
        while True:
            with torch.inference_mode():
                over = self._take_out()
            yield from over
            free = self._rows - len(self._at_work)
            asks = take(free) if free else []
            with torch.inference_mode():
                if asks:
                    self._begin(asks)
                if not self._at_work:
                    return
                self._run()

    # -- prompts ------------------------------------------------------------------------------

    def _begin(self, asks: Sequence[Ask]) -> None:
        """Read their prompts, each once, and choose their first tokens."""
        started = time.perf_counter()
        free = (row for row in range(self._rows) if row not in self._at_work)
        rows: dict[tuple[int, ...], list[int]] = {}
        begun: dict[int, _Row] = {}
        numbered = sorted(enumerate(asks, self._taken), key=lambda pair: len(pair[1].prompt))
        for (index, ask), row in zip(numbered, free, strict=False):
            self._check(ask)
            begun[row] = _Row(index, ask, ask.most - 1)
            rows.setdefault(tuple(ask.prompt), []).append(row)
        self._taken += len(asks)
        self._at_work |= begun
        prompts = sorted(rows, key=len)
        for group in in_groups(prompts, self._device):
            self._read(prompts[group], rows)
        synchronize(self._device)
        self.prefill_s += time.perf_counter() - started

    def _check(self, ask: Ask) -> None:
        if not ask.prompt or ask.most < 1:
            raise DraftpickError("a prompt and its answer have at least one token each")
        if len(ask.prompt) + ask.most > self._capacity:
            raise DraftpickError(
                f"a prompt of {len(ask.prompt)} tokens and an answer of {ask.most} do not fit into "
                f"{self._capacity} positions"
            )

    def _read(self, prompts: list[tuple[int, ...]], rows: dict[tuple[int, ...], list[int]]) -> None:
        """prompts: n.
        rows: those that go on from each.
        """
        facts, temperatures = [], []
        for which, prompt in enumerate(prompts):
            for row in rows[prompt]:
                ask = self._at_work[row].ask
                facts.append((row, which, len(prompt), len(prompt) + ask.most - 1, ask.key))
                temperatures.append(ask.temperature)
        columns = torch.tensor(list(zip(*facts, strict=True))).to(self._device)
        into, of, lengths, last, keys = columns.unbind(0)  # each [m]
        h = self._stack.through([list(p) for p in prompts], self._rope, self._cache.begun(into, of))
        ends = torch.tensor([len(p) - 1 for p in prompts], device=self._device)
        states = self._stack.read(h[torch.arange(len(prompts), device=self._device), ends])
        self._states[into] = states[of].float()
        self._start[into], self._kept[into, 0] = lengths, states[of]
        heat = torch.tensor(temperatures, dtype=torch.float64, device=self._device)
        self._keys[into], self._temperature[into] = keys, heat
        logits = logits_of(states, self._stack.head, self._stack.shape)[of]  # [m, N]
        first = self._choose(logits, heat, keys, lengths)
        self._token[into], self._position[into], self._last[into] = first, lengths, last
        self._written[into, lengths] = first
        self._alive[into] = (lengths < last) & ~self._ended(first)

    # -- steps --------------------------------------------------------------------------------

    def _run(self) -> None:
        """Steps until the next look, or until every row at work has ended for sure."""
        if self._replay is None:
            self._close_up()
        left = max(row.left for row in self._at_work.values())
        for _ in range(min(self._look_every, left)):
            if self._replay is not None:
                self._replay()
            else:
                self._step(self._parts())
            self.steps += 1
            for row in self._at_work.values():
                row.left = max(row.left - 1, 0)

    def _parts(self) -> list[Part]:
        """The first rows up to the last one at work. Neighbours often began together, with prompts
        of similar lengths, so that a few at a time they read no more than they have."""
        n = max(self._at_work) + 1
        reads = [self._at_work[row].length if row in self._at_work else 1 for row in range(n)]
        firsts = range(0, n, ATTENTION_ROWS)
        return [
            (slice(at, min(at + ATTENTION_ROWS, n)), max(reads[at : at + ATTENTION_ROWS]))
            for at in firsts
        ]

    def _step(self, parts: Sequence[Part]) -> Tensor:
        """The next token of the first rows; those that have ended stay as they are.

        parts: of these rows, each with how many positions one of its rows at work has at most.

        Returns which rows go on.
        """
        n = parts[-1][0].stop
        token, position, alive = self._token[:n], self._position[:n], self._alive[:n]
        lengths = position * alive + 1  # of a row that has ended, next to nothing
        known = token.clamp(min=0)  # NAN where a row has ended with it
        h = self._passes.through(self._stack.embed(known), position, lengths, parts)
        states = self._stack.read(h)
        if self._keep:
            token_at = (position + 1 - self._start[:n]).clamp(max=self._keep)
            self._kept[torch.arange(n, device=self._device), token_at] = states
        logits = logits_of(states, self._stack.head, self._stack.shape)  # [n, N]
        chosen = self._choose(logits, self._temperature[:n], self._keys[:n], position + 1)
        token.copy_(torch.where(alive, chosen, token))
        position.add_(alive)
        self._written[:n].scatter_(1, position.unsqueeze(1), token.unsqueeze(1))
        alive.logical_and_((position < self._last[:n]) & ~self._ended(token))
        return alive

    def _choose(self, logits: Tensor, temperature: Tensor, keys: Tensor, places: Tensor) -> Tensor:
        chosen = race.pick(logits, temperature, keys, places)[:, 0]
        tokens = self._stack.to_target(chosen)
        return torch.where(numbered(chosen, logits) == NAN, NAN, tokens)

    def _ended(self, tokens: Tensor) -> Tensor:
        return (tokens.unsqueeze(1) == self._ends).any(1) | (tokens == NAN)

    def _take_out(self) -> list[Answer]:
        """Rows that have ended, by the order in which they were taken."""
        if not self._at_work:
            return []
        alive = self._alive.tolist()
        over = [row for row in self._at_work if not alive[row]]
        if not over:
            return []
        at = torch.tensor(over, device=self._device)
        written, states = self._written[at].cpu(), self._states[at].cpu()
        ends = (self._position[at] + 1).tolist()
        made = []
        for row, ids, end, state in zip(over, written, ends, states, strict=True):
            was = self._at_work.pop(row)
            made_ids = ids[len(was.ask.prompt) : end].tolist()
            kept = self._kept[row, : len(made_ids)].clone() if self._keep else None
            answer = Answer(was.index, was.ask, made_ids, state, kept)
            self.new_tokens += len(answer.ids)
            made.append(answer)
        return sorted(made, key=lambda answer: answer.index)

    def _close_up(self) -> None:
        """Move the last rows at work to free ones among the first, so that a step has fewer."""
        for target in range(len(self._at_work)):
            if target not in self._at_work:
                source = max(self._at_work)
                row = self._at_work[target] = self._at_work.pop(source)
                self._cache.copy_row(source, target, row.length)
                for each in self._of_rows:
                    each[target] = each[source]
                self._alive[source] = False
