"""Bringing a drafting model's cache to what is accepted after a round."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..protocols import Backend

LATER = 8  # tokens that a model which seldom drafts reads with its next draft


def roll_back(
    backend: Backend, context: list[int], read: Callable[[Tensor], Tensor], later: int = 2
) -> int:
    """Keep what was accepted of a cache and read what a model that sat out missed; passes made.

    read: appends ids [T] to the cache, which may have kept fewer than it was asked to.
    later: unread tokens that are left to the next draft; two are the most that a round leaves.
    """
    # the cache may keep what was accepted of the draft, all but the newest token
    kept = min(backend.length, len(context) - 1)
    backend.truncate(kept)
    kept = backend.length
    if len(context) - kept <= later:
        return 0
    read(torch.tensor(context[kept:-1], device=backend.device))
    return 1
