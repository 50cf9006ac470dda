"""A recurrent drafter's cell at work: its matrices laid out or rounded as the target's are, and the
target's own head over the draft tokens (D23). `recurrent_cell.py` is what training sees of it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import torch
import torch.nn.functional as F
from torch import Tensor

from ...backends.cpp.recurrent_kernels import KernelSteps
from ...backends.llama.loading import layout, packed_head
from ...backends.llama.model import rms_norm
from ...backends.weights.blocked import norm_rows
from ...backends.weights.int4 import unsupported_reason
from ...backends.weights.packed import Matrix, Rounding, dense, linear
from ...protocols import StateBackend
from ...sampling.argmax import likeliest
from ...sampling.draft_vocab import DraftVocab
from .cell import CELL, RecurrentCell


@dataclass(frozen=True)
class GatedBlock:
    """norm: [d].
    gate_up: [2 w, d], of the first block [2 w, 2 d].
    down: [d, w].
    """

    norm: Tensor
    gate_up: Matrix
    down: Matrix

    def __call__(self, x: Tensor) -> Tensor:
        """What is added to the state: x [..., d or 2 d], normed -> [..., d]."""
        gate, up = linear(x, self.gate_up).chunk(2, -1)
        return linear(F.silu(gate) * up, self.down)


_LOADED: WeakValueDictionary[tuple[object, ...], RecurrentHead] = WeakValueDictionary()


class RecurrentHead:
    """Steps of `cell` in the target's precision, for any number of sequences at once.

    parameters: what a drafted token reads, the head's rows included.
    vocab: the draft tokens.
    kernels: its steps as one call each, where there are kernels for its weights.
    """

    def __init__(self, target: StateBackend, cell: RecurrentCell, vocab: DraftVocab) -> None:
        self.vocab, self.config = vocab, cell.config
        self.device, self.dtype = target.device, target.dtype
        self.embed = target.embed
        sizes = {"state": cell.config.hidden, "width": cell.config.width}
        rounding = rounding_beside(target, sizes)
        blocked = getattr(target, "blocked", False)
        self._norm = norm_rows if blocked and cell.config.hidden % 16 == 0 else rms_norm
        how = layout(rounding, blocked)
        self.blocks = [
            GatedBlock(norm.detach(), how(gate_up.detach()), how(down.detach()))
            for norm, gate_up, down in zip(cell.norms, cell.gate_up, cell.down, strict=True)
        ]
        self.embed_norm, self.norm = cell.embed_norm.detach(), cell.norm.detach()
        self.head = packed_head(target.head_rows(vocab.to_target), rounding, blocked)
        self.parameters = self.head.numel() + sum(p.numel() for p in cell.parameters())
        self.kernels = self._by_kernels(target) if blocked else None

    @classmethod
    def load(cls, folder: Path, target: StateBackend, vocab: DraftVocab) -> RecurrentHead:
        """One that another drafter of the same model holds serves this one too. Raises ValueError
        where it was trained for states of another size."""
        require_size(folder, target.state_size)
        model = getattr(target, "weights", target)
        key = (folder.resolve(), (folder / CELL).stat().st_mtime_ns, id(model))
        loaded = _LOADED.get(key)
        if loaded is None:
            cell = RecurrentCell.load(folder, target.device, target.dtype)
            _LOADED[key] = loaded = cls(target, cell, vocab)
        return loaded

    def step(self, state: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
        """state: [n, d].
        token: [n] target ids, each the one that follows its state.

        Returns the next states [n, d], and logits [n, N] over draft tokens ("other" left out) for
        what follows.
        """
        if self.kernels is not None:
            return self.kernels.step(state, token)
        state = self.advance(state, token)
        return state, self.score(state)

    def drafts(self, state: Tensor, token: Tensor, counts: Sequence[int]) -> list[Tensor]:
        """The likeliest tokens in turn: `counts` [n] of them for each of the n sequences, target
        ids. state, token: as of `step`."""
        order = sorted(range(len(counts)), key=lambda i: -counts[i])  # those that end first, last
        most = [counts[i] for i in order]
        at = torch.tensor(order, device=state.device)
        state, token, steps = state[at], token[at], list[Tensor]()
        for done in range(most[0]):
            going = sum(count > done for count in most)
            state, logits = self.step(state[:going], token[:going])
            token = self.vocab.to_target[likeliest(logits)]
            steps.append(token)
        made = dict[int, Tensor]()
        for place, i in enumerate(order):
            made[i] = torch.stack([step[place] for step in steps[: counts[i]]])
        return [made[i] for i in range(len(counts))]

    def advance(self, state: Tensor, token: Tensor) -> Tensor:
        """The next states alone."""
        eps, norm, (first, *rest) = self.config.eps, self._norm, self.blocks
        embedded = norm(self.embed(token), self.embed_norm, eps)
        state = state + first(torch.cat([norm(state, first.norm, eps), embedded], -1))
        for block in rest:
            state = state + block(norm(state, block.norm, eps))
        return state

    def score(self, state: Tensor) -> Tensor:
        return linear(self._norm(state, self.norm, self.config.eps), self.head)

    def _by_kernels(self, target: StateBackend) -> KernelSteps | None:
        weights: Any = getattr(target, "weights", None)  # a LlamaBackend's
        blocks = ((block.norm, block.gate_up, block.down) for block in self.blocks)
        norms, eps = (self.embed_norm, self.norm), self.config.eps
        return KernelSteps.of(
            dense(weights.embedding), self.vocab.to_target, norms, self.head, blocks, eps
        )


def require_size(folder: Path, state_size: int) -> None:
    """Raises ValueError where the cell in `folder` goes on from states of another size."""
    trained = int(json.loads((folder / "config.json").read_text())["hidden"])
    if trained != state_size:
        raise ValueError(
            f"{folder.name} was trained for final states of {trained}, this target's have "
            f"{state_size}; train one with `draftpick align`"
        )


def rounding_beside(target: StateBackend, sizes: Mapping[str, int]) -> Rounding | None:
    """The target's, for a drafter on its states; int8 where the drafter's sizes do not fit int4."""
    precision = getattr(target, "precision", None)
    if precision in ("int4", "file") and unsupported_reason(sizes) is None:
        return "int4"
    return "int8" if precision in ("int8", "int4", "file") else None
