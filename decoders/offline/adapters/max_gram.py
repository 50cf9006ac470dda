"""Copies along known answers: they follow from the text alone, whatever the temperature."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

import numpy as np

from ...drafters import MaxGramDrafter
from ...protocols import Backend, KnownAnswers, ReplayedLoop, decoder_prefix
from ...records import Expected, Replay, Written
from ..registry import ReplayAdapter
from ..replay import Draft, replay_with_agreement


class MaxGramReplay(ReplayAdapter):
    drafter: MaxGramDrafter

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
                self.drafter.commit(context)
                token = self.drafter.guess(context, 1)
                context += token
                if not token or token[0] in eos_ids:
                    break
            answers.append(context[len(start) :])
        none = np.zeros((len(prompts), 0), dtype=np.float32)
        return Written(answers, none, 0.0, time.perf_counter() - started)

    def replay(self, answers: KnownAnswers, loop: ReplayedLoop) -> list[Replay]:
        def begin(prompt: list[int], answer: list[int], _: float) -> Draft:
            start = decoder_prefix(answers.target, prompt)
            self.drafter.reset(prompt)

            def draft(at: int, k: int) -> list[int]:
                context = start + answer[:at]
                self.drafter.commit(context)
                return self.drafter.guess(context, k)

            return Draft(draft)

        return [
            replay_with_agreement(answer, partial(begin, prompt, answer), loop)
            for prompt, answer in zip(answers.prompts, answers.ids, strict=True)
        ]

    def expected(
        self, answers: KnownAnswers, loop: ReplayedLoop, temperature: float, seeds: Sequence[int]
    ) -> list[Expected]:
        """A copied token is accepted where it is the answer's."""
        return [Expected.of(each) for each in self.replay(answers, loop)]
