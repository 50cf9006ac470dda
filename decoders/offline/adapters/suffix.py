"""Copies along known answers, whatever the temperature: they follow from the text, from earlier
answers, and from how often the answer's own copies were right."""

from __future__ import annotations

from collections.abc import Sequence

from ...drafters import SuffixDrafter
from ...protocols import Backend, KnownAnswers, ReplayedLoop
from ...records import Expected, Replay, Written
from ..registry import ReplayAdapter
from .along import all_along
from .copied import write_copies


class SuffixReplay(ReplayAdapter):
    drafter: SuffixDrafter

    def write(
        self,
        target: Backend,
        prompts: list[list[int]],
        max_new_tokens: int,
        eos_ids: tuple[int, ...],
    ) -> Written:
        def following(context: list[int]) -> list[int]:
            return self.drafter.copy(context, 1).ids[:1]

        return write_copies(self.drafter, following, target, prompts, max_new_tokens, eos_ids)

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
        return all_along(self.drafter, answers, loop, temperature, counted=False)
