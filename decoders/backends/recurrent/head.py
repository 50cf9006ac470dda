"""A recurrent drafter's cell at work: its matrices laid out or rounded as the target's are, and the
target's own head over the draft tokens (D23). `cell.py` is what training sees of it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from weakref import WeakValueDictionary

import torch
import torch.nn.functional as F
from torch import Tensor

from ...protocols import StateBackend
from ...sampling.argmax import likeliest
from ...sampling.draft_vocab import DraftVocab
from ..cuda.fused import kept, launcher
from ..llama.loading import layout, packed_head
from ..llama.model import rms_norm
from ..native import LlamaBackend
from ..weights.blocked import norm_rows
from ..weights.int4 import GROUP, unsupported_reason
from ..weights.packed import Matrix, Rounding, dense, linear
from .cell import CELL, RecurrentCell
from .kernel_steps import KernelSteps
from .recorded_steps import RecordedSteps


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
        blocked = isinstance(target, LlamaBackend) and target.blocked
        self._norm = norm_rows if blocked and cell.config.hidden % 16 == 0 else rms_norm
        how = layout(rounding, blocked)
        self.blocks = [
            GatedBlock(norm.detach(), how(gate_up.detach()), how(down.detach()))
            for norm, gate_up, down in zip(cell.norms, cell.gate_up, cell.down, strict=True)
        ]
        self.embed_norm, self.norm = cell.embed_norm.detach(), cell.norm.detach()
        self.head = packed_head(target.head_rows(vocab.to_target), rounding, blocked)
        self.parameters = self.head.numel() + sum(p.numel() for p in cell.parameters())
        self.kernels: KernelSteps | None = None
        if isinstance(target, LlamaBackend) and target.blocked:
            blocks = ((block.norm, block.gate_up, block.down) for block in self.blocks)
            norms, embedding = (self.embed_norm, self.norm), dense(target.weights.embedding)
            parts = embedding, vocab.to_target, norms, self.head, blocks, self.config.eps
            self.kernels = KernelSteps.of(*parts)

    @classmethod
    def load(cls, folder: Path, target: StateBackend, vocab: DraftVocab) -> RecurrentHead:
        """One that another drafter of the same model holds serves this one too. Raises ValueError
        where it was trained for states of another size."""
        require_size(folder, target.state_size)
        model = target.weights if isinstance(target, LlamaBackend) else target
        key = (folder.resolve(), (folder / CELL).stat().st_mtime_ns, id(model))
        loaded = _LOADED.get(key)
        if loaded is None:
            cell = RecurrentCell.load(folder, target.device, target.dtype)
            _LOADED[key] = loaded = cls(target, cell, vocab)
        return loaded

    def steps_on(self, target: StateBackend) -> RecordedSteps | KernelSteps | None:
        """Its steps as calls of which one makes a whole draft: recorded, by the same kernels as the
        target's passes are, or in C++; None where neither can be."""
        passes = target.recorded if isinstance(target, LlamaBackend) else None
        if passes is None:
            return self.kernels
        fused = passes.fused is not None and fits(self)
        return RecordedSteps(FusedHead(self) if fused else self, passes.record)

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
        """Draft, as Cell in methods/recurrent/drafter.py."""
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


def fits(head: RecurrentHead) -> bool:
    """Whether the kernels can run a cell of these sizes."""
    return head.dtype == torch.bfloat16 and not (
        head.config.hidden % GROUP or head.config.width % GROUP
    )


class FusedHead:
    """A RecurrentHead of one sequence: the same weights, laid out for the kernels."""

    def __init__(self, head: RecurrentHead) -> None:
        self.config, self.vocab = head.config, head.vocab
        self.device, self.dtype = head.device, head.dtype
        self._plain = head
        self._blocks = [(b.norm, kept(b.gate_up), kept(b.down)) for b in head.blocks]
        self._head = kept(head.head)
        self._launch = launcher(head.device)
        self._both = head.norm.new_empty(1, 2 * head.config.hidden)
        self._opened = head.norm.new_empty(1, head.config.width)

    def step(self, state: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
        """state: [1, d].
        token: [1] the target id that follows it.

        Returns the next state [1, d], and logits [1, N] over draft tokens.
        """
        state = self.advance(state, token)
        logits = state.new_empty(1, self._head.outputs)
        self._launch.added(state, self._head, None, logits, self._plain.norm, self.config.eps)
        return state, logits

    def advance(self, state: Tensor, token: Tensor) -> Tensor:
        """The next state alone."""
        eps, d, made = self.config.eps, self.config.hidden, torch.empty_like(state)
        launch, both, opened = self._launch, self._both, self._opened
        state, embedded = state.contiguous(), self._plain.embed(token)
        (norm, gate_up, down), *rest = self._blocks
        launch.normed(state, norm, eps, both[:, :d])
        launch.normed(embedded, self._plain.embed_norm, eps, both[:, d:])
        launch.gated(both, None, eps, gate_up, opened)
        launch.added(opened, down, state, made)
        for norm, gate_up, down in rest:
            launch.gated(made, norm, eps, gate_up, opened)
            launch.added(opened, down, made, made)
        return made


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
    precision = target.precision if isinstance(target, LlamaBackend) else None
    if precision in ("int4", "file") and unsupported_reason(sizes) is None:
        return "int4"
    return "int8" if precision in ("int8", "int4", "file") else None
