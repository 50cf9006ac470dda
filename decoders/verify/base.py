"""The seam between a proposal and what is kept of it."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from ..chance import Chance
from ..records import Proposal, Sampling, Verdict


class Verifier(Protocol):
    """lossless: whether the output's law is the target's own. needs_raw: whether it reads
    `Proposal.raw`."""

    lossless: bool
    needs_raw: bool

    def verify(
        self, proposal: Proposal, target_logits: Tensor, sampling: Sampling, chance: Chance
    ) -> Verdict:
        """target_logits: [K + 1, V], row i for the token after the first i drafted ones, any
        repetition penalty applied."""
        ...
