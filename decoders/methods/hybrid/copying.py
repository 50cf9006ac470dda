"""What a drafter that copies tells one that chooses between copies and a model's drafts."""

from __future__ import annotations

from typing import Protocol

import torch

from ...earlier.votes import Draft


class Copying(Protocol):
    """Copies from texts; it may learn within the answer how often its copies are accepted."""

    device: torch.device

    def reset(self, prompt_ids: list[int]) -> None:
        """Begin a new query."""
        ...

    def commit(self, context: list[int]) -> None:
        """Keep what is accepted."""
        ...

    def copy(self, context: list[int], k: int, temperature: float = 0.0) -> Draft:
        """At most k tokens along a path, whatever passes cost."""
        ...

    def learn(self, written: list[int]) -> None:
        """What was written where the last copy was made, whether it was proposed or not."""
        ...
