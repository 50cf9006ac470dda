"""Copies or a model's drafts along known answers: what the model would draft is known beforehand,
everything else runs as it does in the loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from decoders.methods.hybrid.drafter import HybridDrafter
from decoders.protocols import Backend, Drafter, DraftRequest, decoder_prefix
from decoders.records import Proposal

from ..protocols import KnownAnswers, ReplayedLoop
from ..records import Replay
from ..registry import ReplayAdapter, adapter_of
from ..replay import ChainReplay, Draft, replay_each, sure_part
from .along import TranslatedReplay, all_along, along


class ScriptedDrafter:
    """Stands for a drafter whose drafts along one answer are known.

    drafts: (context, asked) -> the draft.
    later: as of ChainReplay.
    calls: steps that the drafter itself would have made, the one before which it stopped included.
    """

    parameters = 0

    def __init__(
        self,
        drafts: Callable[[list[int], DraftRequest], Sequence[int]],
        target: Backend,
        later: int | None,
    ) -> None:
        self._drafts, self._device, self.context = drafts, target.device, target.context
        self._later, self._read = later, 0
        self.calls = 0

    def reset(self, prompt_ids: list[int]) -> None:
        self.calls, self._read = 0, len(prompt_ids)

    def propose(self, context: list[int], asked: DraftRequest) -> Proposal:
        ids = list(self._drafts(context, asked))
        steps = min(asked.k, len(ids) + 1)
        self.calls += steps
        self._read = len(context) + steps - 1
        return Proposal(torch.tensor(ids, dtype=torch.int64, device=self._device))

    def commit(self, context: list[int]) -> None:
        """Roll back to what is accepted."""
        self._read = min(self._read, len(context) - 1)
        if self._later is not None and len(context) - self._read > self._later:
            self._read = len(context) - 1
            self.calls += 1


class HybridReplay(ReplayAdapter):
    """A drafted token is charged as one of the model's, copied or not."""

    drafter: HybridDrafter
    counts_calls = True

    def __init__(self, drafter: HybridDrafter) -> None:
        super().__init__(drafter)
        self._model = adapter_of(drafter.model)

    @property
    def timed(self) -> Drafter:
        return self._model.timed

    def steps(self, answers: int) -> float:
        return self._model.steps(answers)

    @property
    def _later(self) -> int | None:
        return self._model.later if isinstance(self._model, ChainReplay) else None

    def replay(self, answers: KnownAnswers, loop: ReplayedLoop) -> list[Replay] | None:
        model = self._model
        if isinstance(model, TranslatedReplay):  # its drafts follow from the text
            return all_along(self.drafter, answers, loop)
        script = model.tokens(answers) if isinstance(model, ChainReplay) else None
        if script is None:
            return None
        target, later = answers.target, self._later

        def begin(row: int, min_confidence: float) -> Draft:
            start = len(decoder_prefix(target, answers.prompts[row]))

            def drafts(context: list[int], asked: DraftRequest) -> list[int]:
                run = script(row, len(context) - start, asked.k)
                return sure_part(run, asked.k, asked.min_confidence)

            drafter = self.drafter.over(ScriptedDrafter(drafts, target, later))
            return along(drafter, answers, row, min_confidence)

        return replay_each(answers, begin, loop)
