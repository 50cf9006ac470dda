"""A draft model with another tokenizer along known answers. Every place is read anew, as the
tokenizers may cut the text differently from each."""

from __future__ import annotations

from collections.abc import Sequence

from decoders.methods.neural.translated import TranslatedDrafter

from ..protocols import KnownAnswers, ReplayedLoop
from ..records import Expected, Replay
from ..registry import ReplayAdapter
from .along import all_along


class TranslatedReplay(ReplayAdapter):
    """Its calls are counted, as the target's tokens are fewer or more than the model's."""

    drafter: TranslatedDrafter
    counts_calls = True

    def sure(self, temperature: float) -> bool:
        return temperature == 0 or self.drafter.by == "text"

    def replay(self, answers: KnownAnswers, loop: ReplayedLoop) -> list[Replay]:
        return all_along(self.drafter, answers, loop, 0.0)

    def expected(
        self, answers: KnownAnswers, loop: ReplayedLoop, temperature: float, seeds: Sequence[int]
    ) -> list[Expected] | None:
        """Drafted as text, a token is accepted where it is the answer's."""
        if not self.sure(temperature):
            return None
        return [Expected.of(each) for each in all_along(self.drafter, answers, loop, temperature)]
