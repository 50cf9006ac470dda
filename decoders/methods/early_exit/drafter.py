"""The target's own first layers, an adapter and its head, as drafter.

The lower layers' KV belongs to the target and is computed once: the target's own pass goes on from
what the drafter ran (`ExitBackend`). Kim et al. (BiLD, section 4.4) draft so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

import torch
from torch import Tensor

from ...device_rounds import Make
from ...protocols import DraftRequest, ExitBackend
from ...records import Proposal
from ...sampling.draft_vocab import DraftVocab
from ..chain import draft_chain

if TYPE_CHECKING:
    from ..device import Chain


class ExitHead(Protocol):
    """An exit's adapter with the target's head. vocab: the draft tokens; None for all."""

    vocab: DraftVocab | None

    @property
    def exit_layer(self) -> int: ...

    @property
    def adapter_parameters(self) -> int:
        """The adapter's own, which are all that `read` needs."""

    @property
    def parameters(self) -> int:
        """Weights that `read` and `score` read for a drafted token: the adapter's, and the head's
        rows of the draft tokens, be they shared with the target or copied."""

    def read(self, states: Tensor, start: int) -> Tensor:
        """States [T, d] at the exit, of positions start.. -> [d] for `score`, what follows the last
        of them. What was read of these positions before is forgotten."""

    def score(self, state: Tensor) -> Tensor:
        """[d] -> [N] logits over draft tokens."""


@runtime_checkable
class RecordedExit(ExitHead, Protocol):
    """An exit that may draft inside recorded rounds."""

    def recorded_draft(self) -> Make | None:
        """How; None where the target's passes are not recorded."""


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
        from ..device import Chain

        make = self.head.recorded_draft() if isinstance(self.head, RecordedExit) else None
        return None if make is None else Chain(make, self.parameters, self.reset)

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
