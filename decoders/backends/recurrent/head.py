"""A recurrent drafter's cell at work: its matrices laid out or rounded as the target's are, and the
target's own head over the draft tokens. `cell.py` is what training sees of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from weakref import WeakKeyDictionary, WeakValueDictionary

import torch
import torch.nn.functional as F
from torch import Tensor

from ...common.tensor_files import own_config
from ...device_rounds import WIDEST, DraftChooser
from ...protocols import StateBackend
from ...sampling.argmax import likeliest
from ...sampling.draft_vocab import DraftVocab
from ...sampling.race import CellTokens, pick
from ..cuda.fused import kept, launcher
from ..cuda.recorded import Recorder, Run
from ..llama.loading import layout, packed_head
from ..llama.model import rms_norm
from ..native import LlamaBackend
from ..weights.blocked import Blocks, norm_rows
from ..weights.file_blocks import FileBlocks
from ..weights.int4 import GROUP, unsupported_reason
from ..weights.packed import Matrix, Rounding, dense, linear
from .cell import CELL, CellConfig, RecurrentCell


class RecordedSteps:
    """One head's steps, each kind recorded when it is first asked for and replayed, as passes are
    (recorded.py). What `record` is given is repeatable, as there. Nothing depends on the sequence's
    length: a state and a few tokens go in."""

    def __init__(self, head: RecurrentHead | FusedHead, record: Recorder) -> None:
        self._head, self._record = head, record
        size, device = head.config.hidden, head.device
        self._state = torch.zeros(1, size, dtype=head.dtype, device=device)
        self._ids = torch.zeros(WIDEST, dtype=torch.int64, device=device)
        self._replays: dict[tuple[int, int], Run] = {}

    def draft(self, state: Tensor, ids: Tensor, wanted: CellTokens) -> Tensor | None:
        """Draft greedily after up to WIDEST `ids`, as one recording."""
        u, k = len(ids), wanted.k
        if wanted.temperature or u > WIDEST:
            return None

        def run() -> Tensor:
            def likeliest(logits: Tensor, ahead: int, names: Tensor | None) -> Tensor:
                return self._head.vocab.to_target[logits.argmax(-1)]

            return self.drafted(self._state, self._ids[:u], k, likeliest)

        return self._replay((u, k), run, state, ids)

    def drafted(self, state: Tensor, ids: Tensor, k: int, choose: DraftChooser) -> Tensor:
        """Draft within a recording."""
        head = self._head
        for token in ids[:-1].unsqueeze(1):
            state = head.advance(state, token)
        token, drafted = ids[-1:], list[Tensor]()
        while len(drafted) < k:
            state, logits = head.step(state, token)
            token = choose(logits, len(drafted), head.vocab.to_target)
            drafted.append(token)
        return torch.cat(drafted)

    def step(self, state: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
        """Step one sequence, as RecurrentHead does."""

        def run() -> Tensor:
            return torch.cat(self._head.step(self._state, self._ids[:1]), -1)

        size = self._state.shape[1]
        made = self._replay((1, 0), run, state, token)  # [1, d + N]
        return made[:, :size], made[:, size:]

    def _replay(self, key: tuple[int, int], run: Run, state: Tensor, ids: Tensor) -> Tensor:
        self._state.copy_(state)
        self._ids[: len(ids)].copy_(ids)
        if key not in self._replays:
            self._replays[key] = self._record(run)
        return self._replays[key]().clone()


_DENSE: WeakKeyDictionary[FileBlocks, Tensor] = WeakKeyDictionary()


def _embedding(stored: Tensor | FileBlocks) -> Tensor:
    """A target's embedding as an ordinary tensor, the same for all heads beside it."""
    if not isinstance(stored, FileBlocks):
        return dense(stored).contiguous()
    if stored not in _DENSE:
        _DENSE[stored] = dense(stored).contiguous()
    return _DENSE[stored]


LANES = 16  # numbers that the kernels take at once


class KernelSteps:
    """Steps by the kernels in C++ (cpp/cell.h) of a cell whose matrices are all in blocks: a step,
    or a whole draft, is one call.

    embedding: [V, d] of the target.
    weights: in the order of cpp/cell.h.
    """

    def __init__(self, head: RecurrentHead, embedding: Tensor, weights: list[Tensor]) -> None:
        self._embedding, self._to_target = embedding, head.vocab.to_target
        self._weights, self._eps = weights, head.config.eps

    @classmethod
    def of(cls, head: RecurrentHead, embedding: Tensor | FileBlocks) -> KernelSteps | None:
        """None where the kernels do not run such a cell."""
        if embedding.dtype != torch.bfloat16 or embedding.shape[1] % LANES:
            return None
        weights = [head.embed_norm, head.norm]
        for part in (head.head, *(part for block in head.blocks for part in vars(block).values())):
            if isinstance(part, Blocks):
                weights += part.stored
            elif isinstance(part, Tensor) and part.ndim == 1:
                weights.append(part)
            else:
                return None
        return cls(head, _embedding(embedding), weights)

    def step(self, state: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
        state, logits = torch.ops.draftpick.cell_step(
            state, token, self._embedding, self._weights, self._eps
        )
        return state, logits

    def draft(self, state: Tensor, ids: Tensor, wanted: CellTokens) -> Tensor:
        """Draft what is wanted after any number of `ids`."""
        weights = self._embedding, self._weights, self._eps
        made: Tensor = torch.ops.draftpick.cell_pick(state, ids, self._to_target, *wanted, *weights)
        return made


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
            self.kernels = KernelSteps.of(self, target.weights.embedding)

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

    def drafts(self, state: Tensor, token: Tensor, wanted: Sequence[CellTokens]) -> list[Tensor]:
        """Draft, as Cell in methods/recurrent/drafter.py."""
        counts, device = [each.k for each in wanted], state.device
        order = sorted(range(len(counts)), key=lambda i: -counts[i])  # those that end first, last
        most, heat, key, first = zip(*(wanted[i] for i in order), strict=True)
        at, names, steps = torch.tensor(order, device=device), self.vocab.to_target, list[Tensor]()
        state, token = state[at], token[at]
        if any(heat):
            heats = torch.tensor(heat, dtype=torch.float64, device=device)
            keys, places = torch.tensor([key, first], device=device)
        for done in range(most[0]):
            going = sum(count > done for count in most)
            state, logits = self.step(state[:going], token[:going])
            if any(heat):
                by = heats[:going], keys[:going], places[:going] + done
                chosen = pick(logits, *by, names)[:, 0]
            else:
                chosen = likeliest(logits)
            token = names[chosen]
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
    trained = own_config(folder, CellConfig).hidden
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
