"""Copies along known answers: they follow from the text alone, whatever the temperature; those of
suffixes also from earlier answers, and from how often the answer's own copies were right."""

from __future__ import annotations

import time
from functools import partial

from decoders.methods.max_gram.drafter import MaxGramDrafter
from decoders.methods.suffix.drafter import SuffixDrafter
from decoders.protocols import Backend, decoder_prefix

from ..protocols import KnownAnswers, ReplayedLoop
from ..records import Replay, Written
from ..registry import ReplayAdapter
from ..replay import Draft, replay_with_agreement
from .along import all_along


class CopiedReplay(ReplayAdapter):
    def following(self, context: list[int]) -> list[int]:
        """The token that is copied next, or none."""
        raise NotImplementedError

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
                token = self.following(context)
                context += token
                if not token or token[0] in eos_ids:
                    break
            answers.append(context[len(start) :])
        return Written.without_states(answers, 0.0, time.perf_counter() - started)


class MaxGramReplay(CopiedReplay):
    drafter: MaxGramDrafter

    def following(self, context: list[int]) -> list[int]:
        return self._guess(context, 1)

    def replay(self, answers: KnownAnswers, loop: ReplayedLoop) -> list[Replay]:
        def begin(prompt: list[int], answer: list[int], _: float) -> Draft:
            start = decoder_prefix(answers.target, prompt)
            self.drafter.reset(prompt)
            return Draft(lambda at, k: self._guess(start + answer[:at], k))

        return [
            replay_with_agreement(answer, partial(begin, prompt, answer), loop)
            for prompt, answer in zip(answers.prompts, answers.ids, strict=True)
        ]

    def _guess(self, context: list[int], k: int) -> list[int]:
        self.drafter.commit(context)
        return self.drafter.guess(context, k)


class SuffixReplay(CopiedReplay):
    drafter: SuffixDrafter

    def following(self, context: list[int]) -> list[int]:
        return self.drafter.copy(context, 1).ids[:1]

    def replay(self, answers: KnownAnswers, loop: ReplayedLoop) -> list[Replay] | None:
        """A tree's token that is not the first child may be accepted too."""
        if self.drafter.branches:
            return None
        return all_along(self.drafter, answers, loop, counted=False)
