"""Copies or a model's drafts along known answers: what the model would draft is known beforehand,
everything else runs as it does in the loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from decoders.methods.hybrid.drafter import HybridDrafter
from decoders.protocols import Backend, Drafter, DraftRequest, decoder_prefix
from decoders.records import Proposal

from ..chain import HasScript, HasTrials, IsSure, chances_of, sure_part
from ..expected import drawn, simulated
from ..protocols import KnownAnswers, ReplayedLoop
from ..records import Expected, Replay
from ..registry import ReplayAdapter, adapter_of
from ..replay import Draft, replay_with_agreement
from .along import all_along, along


class ScriptedDrafter:
    """Stands for a drafter whose drafts along one answer are known.

    drafts: (context, asked) -> the draft.
    later: as in HasScript.
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
        return self._model.later if isinstance(self._model, HasScript) else None

    def _sure(self, temperature: float) -> bool:
        return isinstance(self._model, IsSure) and self._model.sure(temperature)

    def replay(self, answers: KnownAnswers, loop: ReplayedLoop) -> list[Replay] | None:
        if self._sure(0.0):
            return all_along(self.drafter, answers, loop, 0.0)
        model = self._model
        script = model.tokens(answers) if isinstance(model, HasScript) else None
        if script is None:
            return None
        target, later = answers.target, self._later

        def begin(row: int, min_confidence: float) -> Draft:
            prompt, answer = answers.prompts[row], answers.ids[row]
            start = len(decoder_prefix(target, prompt))

            def drafts(context: list[int], asked: DraftRequest) -> list[int]:
                run = script(row, len(context) - start, asked.k)
                return sure_part(run, asked.k, asked.min_confidence)

            drafter = self.drafter.over(ScriptedDrafter(drafts, target, later))
            return along(drafter, target, prompt, answer, min_confidence=min_confidence)

        return [
            replay_with_agreement(answer, partial(begin, row), loop)
            for row, answer in enumerate(answers.ids)
        ]

    def expected(
        self, answers: KnownAnswers, loop: ReplayedLoop, temperature: float, seeds: Sequence[int]
    ) -> list[Expected] | None:
        """Simulated: the choice remembers what was accepted before. Exact where the model's drafts
        are sure."""
        if self._sure(temperature):
            made = all_along(self.drafter, answers, loop, temperature)
            return [Expected.of(each) for each in made]
        model, target, later = self._model, answers.target, self._later
        trials = model.trials(answers, temperature) if isinstance(model, HasTrials) else None
        if trials is None:
            return None

        def simulate(row: int, seed: int) -> Expected:
            prompt, answer = answers.prompts[row], answers.ids[row]
            start = len(decoder_prefix(target, prompt))
            chances = chances_of(trials, row, len(answer), loop.length.min_confidence)

            def drafts(heights: NDArray[np.float64]) -> Draft:
                known = drawn(answer, chances, heights).draft
                scripted = ScriptedDrafter(
                    lambda context, asked: known(len(context) - start, asked.k), target, later
                )
                drafter = self.drafter.over(scripted)
                return along(drafter, target, prompt, answer, temperature)

            return simulated(answer, drafts, loop, seed)

        return [
            simulate(row, seed)
            for row, (_, seed) in enumerate(zip(answers.ids, seeds, strict=True))
        ]
