"""Chains of drafts, put together."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..records import Proposal


def joined(parts: Sequence[Proposal]) -> Proposal:
    """Chains, one after the other. Beside a part that drew its tokens, one without distributions is
    a one-hot at each of them."""
    ids = [part.ids for part in parts]
    probs, raw = (
        _rows(ids, [part.probs for part in parts]),
        _rows(ids, [part.raw for part in parts]),
    )
    return Proposal(torch.cat(ids), probs, raw)


def _rows(ids: list[Tensor], given: list[Tensor | None]) -> Tensor | None:
    """[K, V]; None where no part gave any."""
    like = next((rows for rows in given if rows is not None), None)
    if like is None:
        return None
    pairs = zip(ids, given, strict=True)
    return torch.cat([one_hot(i, like) if rows is None else rows for i, rows in pairs])


def one_hot(ids: Tensor, like: Tensor) -> Tensor:
    """[T] ids -> [T, V], V and the dtype as in `like`."""
    return like.new_zeros(len(ids), like.shape[-1]).scatter_(1, ids.unsqueeze(1), 1.0)
