"""Copies along known answers, whatever the temperature: they follow from the text, from earlier
answers, and from how often the answer's own copies were right."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

import numpy as np

from ...drafters import SuffixDrafter
from ...protocols import Backend, KnownAnswers, ReplayedLoop, decoder_prefix
from ...records import Expected, Replay, Written
from ..registry import ReplayAdapter
from ..replay import Draft, replay_with_agreement
from .hybrid import along


class SuffixReplay(ReplayAdapter):
    drafter: SuffixDrafter

    def write(
        self,
        target: Backend,
        prompts: list[list[int]],
        max_new_tokens: int,
        eos_ids: tuple[int, ...],
    ) -> Written:
        """Token by token, until nothing matches."""
        started, answers = time.perf_counter(), []
        for prompt in prompts:
            self.drafter.reset(prompt)
            start = decoder_prefix(target, prompt)
            context = list(start)
            while len(context) < len(start) + max_new_tokens:
                token = self.drafter.copy(context, 1).ids[:1]
                context += token
                if not token or token[0] in eos_ids:
                    break
            answers.append(context[len(start) :])
        none = np.zeros((len(prompts), 0), dtype=np.float32)
        return Written(answers, none, 0.0, time.perf_counter() - started)

    def replay(self, answers: KnownAnswers, loop: ReplayedLoop) -> list[Replay] | None:
        return None if self.drafter.branches else self._along(answers, loop, 0.0)

    def expected(
        self, answers: KnownAnswers, loop: ReplayedLoop, temperature: float, seeds: Sequence[int]
    ) -> list[Expected] | None:
        """A copied token is accepted where it is the answer's; a tree's that is not the first child
        may be where it is not."""
        if self.drafter.branches:
            return None
        return [Expected.of(each) for each in self._along(answers, loop, temperature)]

    def _along(self, answers: KnownAnswers, loop: ReplayedLoop, temperature: float) -> list[Replay]:
        def begin(prompt: list[int], answer: list[int], _: float) -> Draft:
            made = along(self.drafter, answers.target, prompt, answer, temperature)
            return Draft(made.draft)  # no model takes steps

        return [
            replay_with_agreement(answer, partial(begin, prompt, answer), loop)
            for prompt, answer in zip(answers.prompts, answers.ids, strict=True)
        ]
