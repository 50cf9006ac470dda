"""Copies along known answers: they follow from the text alone, whatever the temperature."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ...drafters import MaxGramDrafter
from ...protocols import Backend, KnownAnswers, ReplayedLoop, decoder_prefix
from ...records import Expected, Replay, Written
from ..registry import ReplayAdapter
from ..replay import Draft, replay_with_agreement
from .copied import write_copies


class MaxGramReplay(ReplayAdapter):
    drafter: MaxGramDrafter

    def write(
        self,
        target: Backend,
        prompts: list[list[int]],
        max_new_tokens: int,
        eos_ids: tuple[int, ...],
    ) -> Written:
        def following(context: list[int]) -> list[int]:
            self.drafter.commit(context)
            return self.drafter.guess(context, 1)

        return write_copies(self.drafter, following, target, prompts, max_new_tokens, eos_ids)

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
