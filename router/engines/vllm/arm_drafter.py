"""The drafter of an arm, as a proposer asks it."""

from __future__ import annotations

from collections.abc import Sequence

from decoders.earlier.votes import Draft

from .rows import TrackedRequest


class ArmDrafter:
    """Drafts for all rows of one arm; as it is here, of plain decoding, none.

    by_cost: its drafts end where they no longer pay, by what steps of the engine cost.
    """

    by_cost = False

    def draft(self, requests: Sequence[TrackedRequest], most: Sequence[int]) -> list[Draft]:
        """A draft for each request, of at most this many tokens."""
        return [self.drafted(request, k) for request, k in zip(requests, most, strict=True)]

    def drafted(self, request: TrackedRequest, k: int) -> Draft:
        """A draft of at most k tokens."""
        return Draft()

    def learn(self, request: TrackedRequest, draft: Draft) -> None:
        """Learn from what came after a draft of this arm, `request.came`.

        draft: as it was before what would not pay was cut off.
        """

    def forget(self, request: TrackedRequest) -> None:
        """It has ended, or another arm drafts for it now."""
