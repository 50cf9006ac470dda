"""Cascades of toy models."""

from __future__ import annotations

from decoders.backends.mapped import MappedBackend
from decoders.backends.toy import ToyBackend
from decoders.lengths import FixedLength
from decoders.papers.cs_drafting.vertical import VerticalDrafter
from decoders.protocols import Backend, Drafter, DraftLength
from decoders.sampling.draft_vocab import DraftVocab


def vertical(
    verifier_model: Backend, inner: Drafter, length: DraftLength | int = 2, lenience: float = 1.0
) -> VerticalDrafter:
    rule = FixedLength(length) if isinstance(length, int) else length
    return VerticalDrafter(verifier_model, inner, rule, lenience)


def hierarchy(middle: Backend, small: Drafter, length: int = 2) -> VerticalDrafter:
    return VerticalDrafter(middle, small, FixedLength(length), writes_on=True)


def part_of_vocabulary(kept: list[int], target_vocab: int, seed: int) -> MappedBackend:
    """A verifying model over a part of the target's vocabulary."""
    vocab = DraftVocab(kept, target_vocab)
    return MappedBackend(ToyBackend.random(vocab.size, seed, 1.0), vocab)
