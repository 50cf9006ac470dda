"""Cascades of toy models."""

from __future__ import annotations

from decoder_toys import method

from decoders.backends.base import Backend
from decoders.backends.mapped import MappedBackend
from decoders.backends.toy import ToyBackend
from decoders.draft_vocab import DraftVocab
from decoders.drafters import Drafter
from decoders.drafters.vertical import VerticalDrafter
from decoders.lengths import DraftLength
from decoders.verify import Lenient


def vertical(
    reviewer: Backend, inner: Drafter, length: DraftLength | int = 2, lenience: float = 1.0
) -> VerticalDrafter:
    return VerticalDrafter(reviewer, method(inner, length, Lenient(lenience)))


def hierarchy(middle: Backend, small: Drafter, length: int = 2) -> VerticalDrafter:
    return VerticalDrafter(middle, method(small, length, Lenient()), writes_on=True)


def part_of_vocabulary(kept: list[int], target_vocab: int, seed: int) -> MappedBackend:
    """A reviewer over a part of the target's vocabulary."""
    vocab = DraftVocab(kept, target_vocab)
    return MappedBackend(ToyBackend.random(vocab.size, seed, 1.0), vocab)
