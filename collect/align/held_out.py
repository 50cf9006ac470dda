"""How well a drafter over the target's states predicts it on texts that it was not trained on.

What the target says there is worked out once. A drafter's figures then cost no pass of the target,
so that they can be taken again and again while it trains, and for several drafters.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from decoders.backends.llama.model import capped
from decoders.backends.recurrent.cell import RecurrentCell
from decoders.sampling.draft_vocab import DraftVocab

from .packed_batch import flatten, order
from .teacher import Teacher
from .tokens import Tokens

TEXTS, TEXTS_BY_CPU = 50, 20  # of a task; more would be read for minutes before training begins
DEEP = 3  # tokens in a row that are reported
CHUNK = 2048  # positions whose logits are made at once
Figures = dict[str, dict[str, float]]


@dataclass(frozen=True)
class Part:
    """Some texts' answers, flat: M positions, from the one before each answer to its last token.

    rows, where: as in PackedBatch, of the positions kept.
    final: [M, d] the target's states.
    ids: [M].
    best: [M] its most likely next token.
    total: [M] log-sum-exp of all its logits.
    room: [M] how many tokens of the answer are still to be drafted there, 0 where none is or where
        the prompt's own pass gives it.
    greedy: [M] bool.
    task: [M].
    """

    rows: Tensor
    where: Tensor
    final: Tensor
    ids: Tensor
    best: Tensor
    total: Tensor
    room: Tensor
    greedy: Tensor
    task: Tensor


class HeldOut:
    """At most `each` greedy and `each` drawn answers of every task.

    each: None is TEXTS, and TEXTS_BY_CPU there.
    longest: a text above it keeps its end.
    most: padded positions that the target reads at once.
    """

    def __init__(
        self,
        teacher: Teacher,
        tokens: Tokens,
        each: int | None = None,
        longest: int = 4096,
        most: int = 16384,
    ) -> None:
        self._teacher = teacher
        each = each or (TEXTS_BY_CPU if teacher.device.type == "cpu" else TEXTS)
        tokens = tokens.pick(_some(tokens, each))
        self.tasks, self.texts = tokens.tasks, len(tokens)
        longest = min(longest, most)
        lengths = np.minimum(tokens.lengths, longest)
        batches = order(lengths, most, np.random.default_rng(0))
        self._parts = [self._part(tokens, rows, longest) for rows in batches]

    @torch.no_grad()
    def _part(self, tokens: Tokens, rows: np.ndarray, longest: int) -> Part:
        teacher = self._teacher
        flat = flatten([tokens.text(int(row))[-longest:] for row in rows])
        lengths = np.minimum(tokens.lengths[rows], longest)
        begins = np.maximum(1, tokens.answer[rows] - (tokens.lengths[rows] - lengths))
        text = np.repeat(np.arange(len(rows)), lengths)  # [M] of which row
        after = flat.at.numpy() - begins[text]  # tokens of the answer read by then, less one
        kept = np.flatnonzero(after >= -1)
        left = lengths[text] - 1 - flat.at.numpy()  # tokens that follow
        room = np.where(after >= 0, left, 0)[kept]
        device = teacher.device
        where = flat.where[torch.from_numpy(kept)].to(device)
        final = teacher.states(flat.rows.to(device)).flatten(0, 1)[where]  # [M, d]
        best, total = torch.empty_like(where), torch.empty(len(where), device=device)
        for part in _chunks(len(where)):
            logits = capped(F.linear(final[part], teacher.head), teacher.shape.logit_cap)  # [n, V]
            best[part] = logits.argmax(-1)
            total[part] = logits.float().logsumexp(-1)
        greedy, task = (
            values[rows][text[kept]] for values in (tokens.temperature == 0, tokens.task)
        )
        return Part(
            flat.rows.to(device),
            where,
            final,
            flat.ids[torch.from_numpy(kept)].to(device),
            best,
            total,
            torch.from_numpy(room).to(device),
            torch.from_numpy(greedy).to(device),
            torch.from_numpy(task.astype(np.int64)).to(device),
        )

    @torch.no_grad()
    def figures(self, cell: Any, vocab: DraftVocab) -> Figures:
        """Per task and `overall`. first, two, three: the share of places in greedy answers from
        which that many tokens in a row are the target's most probable ones. overlap: sum of
        min(p, q) at temperature 1 over the target's whole vocabulary, for the first drafted token,
        over all answers; overlap_drawn: over those drawn at a temperature. An answer's first token
        is left out: the prompt's own pass gives it."""
        sums: dict[str, Tensor] = {}
        rows = self._teacher.head[vocab.to_target]
        for part in self._parts:
            hits, overlap = self._measured(part, cell, vocab, rows)
            so_far = torch.ones_like(part.greedy)
            found: dict[str, tuple[Tensor, Tensor]] = {}  # [M] values, and which of them count
            for ahead, name in enumerate(("first", "two", "three")):
                so_far = so_far & hits[ahead].roll(-ahead)
                found[name] = so_far, part.greedy & (part.room > ahead)
            found["overlap"] = overlap, part.room > 0
            found["overlap_drawn"] = overlap, ~part.greedy & (part.room > 0)
            for name, (values, counted) in found.items():
                both = torch.stack([values.double() * counted, counted.double()], 1)  # [M, 2]
                total = sums.setdefault(name, both.new_zeros(len(self.tasks), 2))
                total.index_add_(0, part.task, both)
        return self._shares(sums)

    def _measured(
        self, part: Part, cell: Any, vocab: DraftVocab, rows: Tensor
    ) -> tuple[Tensor, Tensor]:
        """hits: [DEEP, M] whether each step's most likely token is the target's, where it predicts.
        overlap: [M] of the first step."""
        read = self._read(part, cell)  # [DEEP, M, d]
        hits = torch.empty(read.shape[:2], dtype=torch.bool, device=read.device)
        overlap = torch.empty(read.shape[1], device=read.device)
        for some in _chunks(read.shape[1]):
            for step in range(DEEP):
                logits = F.linear(read[step, some], rows)  # [n, N]
                hits[step, some] = vocab.to_target[logits.argmax(-1)] == part.best[some]
                if step == 0:
                    q = logits.float().softmax(-1)
                    told = capped(F.linear(part.final[some], rows), self._teacher.shape.logit_cap)
                    p = (told.float() - part.total[some, None]).exp()
                    overlap[some] = torch.minimum(p, q).sum(-1)
        return hits, overlap

    def _read(self, part: Part, cell: Any) -> Tensor:
        """Unroll DEEP steps."""
        return unroll(cell, part.final, self._teacher.embedding[part.ids], DEEP)

    def _shares(self, sums: dict[str, Tensor]) -> Figures:
        found: Figures = {task: {} for task in (*self.tasks, "overall")}
        for name, both in sums.items():
            values = torch.cat([both, both.sum(0, keepdim=True)]).tolist()  # [tasks + 1, 2]
            for task, (total, count) in zip(found, values, strict=True):
                if count:
                    found[task][name] = total / count
        return {task: figures for task, figures in found.items() if figures}


def unroll(cell: RecurrentCell, final: Tensor, embedded: Tensor, steps: int) -> Tensor:
    """Every step's states, ready for the head, at the position that they predict at: [k, M, d].

    final: [M, d] the target's states, at each position.
    embedded: [M, d] of the token there.

    A step reads the token at its own position and the state of one step less at the position
    before; what comes from another text, at the first places of each, counts nowhere
    (`step_weights`).
    """
    states, state = [], final
    for _ in range(steps):
        state = cell(F.pad(state[:-1], (0, 0, 1, 0)), embedded)
        states.append(cell.read(state))
    return torch.stack(states)


def _some(tokens: Tokens, each: int) -> np.ndarray:
    """The first `each` greedy and the first `each` drawn texts of every task, as indices."""
    answered = tokens.lengths - np.maximum(tokens.answer, 1) > 1
    chosen = []
    for task in range(len(tokens.tasks)):
        for greedy in (True, False):
            kind = (tokens.task == task) & ((tokens.temperature == 0) == greedy) & answered
            chosen.append(np.flatnonzero(kind)[:each])
    return np.concatenate([np.empty(0, np.int64), *chosen])


def _chunks(size: int) -> Iterator[slice]:
    return (slice(first, first + CHUNK) for first in range(0, size, CHUNK))
