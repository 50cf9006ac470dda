"""Bringing a drafter to what is accepted: its model's cache after a round, and all of it before the
answer's first token, where no loop does that."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..protocols import Backend, Drafter, decoder_prefix

LATER = 8  # tokens that a model which seldom drafts reads with its next draft


def begin(drafter: Drafter, target: Backend, prompt_ids: list[int]) -> None:
    """Make ready to propose the answer's first token.

    In the loop the prompt's own pass gives that token. Here the prompt's last token is left unread,
    like the newest token before any round.
    """
    drafter.reset(prompt_ids)
    start = decoder_prefix(target, prompt_ids)
    target.truncate(len(start) - 1)
    drafter.commit(start)


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
