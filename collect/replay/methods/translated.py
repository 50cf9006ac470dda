"""A draft model with another tokenizer along known answers. Every place is read anew, as the
tokenizers may cut the text differently from each."""

from __future__ import annotations

from decoders.methods.neural.translated import TranslatedDrafter

from ..protocols import KnownAnswers, ReplayedLoop
from ..records import Replay
from ..registry import ReplayAdapter
from .along import all_along


class TranslatedReplay(ReplayAdapter):
    """Its calls are counted, as the target's tokens are fewer or more than the model's."""

    drafter: TranslatedDrafter
    counts_calls = True

    def replay(self, answers: KnownAnswers, loop: ReplayedLoop) -> list[Replay]:
        return all_along(self.drafter, answers, loop)
