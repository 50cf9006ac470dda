"""The seam between a proposal and what is kept of it."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from ..chance import Chance
from ..records import Proposal, Sampling, Verdict


class Verifier(Protocol):
    """Decides how many drafted tokens stand, and what follows them."""

    @property
    def lossless(self) -> bool:
        """Whether the output's law is the target's own."""
        ...

    @property
    def needs_raw(self) -> bool:
        """Whether it reads `Proposal.raw`."""
        ...

    def verify(
        self, proposal: Proposal, target_logits: Tensor, sampling: Sampling, chance: Chance
    ) -> Verdict:
        """target_logits: [K + 1, V], row i for the token after the first i drafted ones, any
        repetition penalty applied."""
        ...
