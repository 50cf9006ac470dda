"""Trees are run as they are, since any branch may be accepted; their tokens are the chain's."""

from __future__ import annotations

from decoders.methods.tree.widened import WidenedDrafter

from ..registry import ReplayAdapter, adapter_of


class WidenedReplay(ReplayAdapter):
    drafter: WidenedDrafter

    def steps(self, answers: int) -> float:
        return adapter_of(self.drafter.inner).steps(answers)
