"""The target's own first layers, an adapter and its head, as drafter (D18).

The lower layers' KV belongs to the target and is computed once: the target's own pass goes on from
what the drafter ran (`ExitBackend`). Kim et al. (BiLD, section 4.4) draft so.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ...backends.cuda.recorded import RecordedPasses, TorchLayers
from ...backends.cuda.rounds import Line
from ...backends.llama.exit_head import ExitHead
from ...backends.weights.packed import linear
from ...protocols import DraftRequest, ExitBackend
from ...records import Proposal
from ..chain import draft_chain
from ..device import Chain, Reader
from .head import AdapterHead


class EarlyExitDrafter:
    """Shares the target's lower layers, their KV and its head; owns only what is trained.

    The target must have been opened at the adapter's layer before it reads a prompt.

    parameters: weights read for one drafted token, which are the target's layers below the exit,
        the adapter, and the head's rows of the draft tokens. Shared weights cost as much to read.
        The target's own pass counts whole besides them, as the last drafted token did not run
        ahead.
    work: as the function of that name; catching up reads the adapter alone.
    """

    def __init__(self, target: ExitBackend, head: ExitHead) -> None:
        self.target, self.head = target, head
        target.open_exit(head.exit_layer)
        self.context = target.context
        self.parameters = target.lower_parameters(head.exit_layer) + head.parameters
        self.calls = 0
        self._caught_up = 0  # how many of the calls ran the adapter alone
        self._read = 0  # positions that the adapter has read

    @property
    def work(self) -> int:
        drafting = self.calls - self._caught_up
        return drafting * self.parameters + self._caught_up * self.head.adapter_parameters

    def reset(self, prompt_ids: list[int]) -> None:
        self._read, self.calls, self._caught_up = 0, 1, 1
        self._catch_up(self.target.length)

    @torch.inference_mode()
    def propose(self, context: list[int], asked: DraftRequest) -> Proposal:
        newest = torch.tensor(context[self.target.length :], device=self.target.device)
        first = self._step(newest)
        proposal, steps = draft_chain(first, self._step, context, self.head.vocab, asked)
        self.calls += 1 + steps
        return proposal

    def round_draft(self) -> Chain | None:
        recorded = getattr(self.target, "recorded", None)
        if recorded is None or not isinstance(self.head, AdapterHead):
            return None
        if self.target.device.type == "cpu" and self.target.dtype == torch.bfloat16:
            return None  # there the adapter's wider passes are in float32
        return exit_chain(self.head, recorded, self.parameters, self.reset)

    def commit(self, context: list[int]) -> None:
        # what the adapter read of a draft may have given way to a sibling in the same place
        self._read = min(self._read, self.target.length, len(context) - 1)
        if self.target.length - self._read > 1:  # sat out; one position is read with the next step
            self._catch_up(self.target.length)
            self.calls += 1
            self._caught_up += 1

    def _step(self, ids: Tensor) -> Tensor:
        self.target.lower(self.head.exit_layer, ids)
        return self.head.score(self._catch_up(self.target.ahead))

    @torch.inference_mode()
    def _catch_up(self, end: int) -> Tensor:
        """Adapter over the positions not yet read, up to `end`; [d] at the last, for the head."""
        start, self._read = self._read, end
        states = self.target.exit_hidden(self.head.exit_layer, start, end)
        return self.head.read(states, start)


def exit_chain(head: AdapterHead, passes: RecordedPasses, parameters: int, read: Reader) -> Chain:
    """The target's first layers, and an adapter that has a cache of its own and reads the states
    that the target's passes left."""
    target, blocks = head.target, replace(head.target.weights, layers=head.blocks)

    def make(line: Line, k: int, unread: int) -> Tensor:
        layers, seen = passes.run(line.read), line.read or head.cache.capacity
        adapter = TorchLayers(target.shape, blocks, head.adapter.rope, head.cache, seen)
        behind = line.start + torch.arange(1 - unread, 0, device=line.start.device)
        before = target.exit_hidden(head.exit_layer, 0, target.context).index_select(0, behind)
        token, at, drafted = line.newest(1), 0, [line.ids[:0]]
        while at == 0 or len(drafted) <= k:
            h = layers.through(passes.embedded(token), 0, head.exit_layer, line.start, at)
            h = torch.cat([before, h]) if at == 0 else h
            h = adapter.through(h, 0, len(head.blocks), line.start, at - len(h) + 1)
            if k == 0:
                break
            token = linear(head.adapter.read(h[-1]), head.head).argmax(-1, keepdim=True)
            token = token if head.vocab is None else head.vocab.to_target[token]
            drafted.append(token)
            at += 1
        return torch.cat(drafted)

    return Chain(make, parameters, read)
