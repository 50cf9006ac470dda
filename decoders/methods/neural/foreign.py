"""Draft models whose tokenizer is another than the target's: whether one fits, and loading it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from ...common.errors import DraftpickError
from ...models import drafts, targets
from ...models.token_texts import TokenTexts
from ...protocols import Backend
from ...sampling.draft_vocab import DraftVocab
from .translated import By, TranslatedDrafter
from .translation import SharedTokens, Translation


@dataclass(frozen=True)
class Vocabularies:
    """The texts of both tokenizers' tokens, and the tokens that they share."""

    target: TokenTexts
    drafter: TokenTexts
    shared: SharedTokens


@lru_cache(maxsize=8)  # as in drafts.py
def _vocabularies(folder: Path, stamp: int, tokenizer: Any) -> Vocabularies:
    """Raises ValueError or DraftpickError where no drafts can be translated."""
    texts = TokenTexts(tokenizer), TokenTexts(targets.load_tokenizer(folder))
    return Vocabularies(*texts, Translation(*texts).shared())


@dataclass(frozen=True)
class ForeignModel:
    """A draft model in `folder`, and how its tokens are translated."""

    folder: Path
    vocabularies: Vocabularies

    def load(self, target: Backend, by: By) -> TranslatedDrafter:
        known = self.vocabularies
        vocab = DraftVocab(known.shared.target, target.vocab_size).to(target.device)
        translation = Translation(known.target, known.drafter)  # remembers where it has read to
        backend = drafts.load_for(self.folder, target)
        return TranslatedDrafter(backend, translation, known.shared.drafter, vocab, by)


def foreign(arm: str, drafter: str, reading: drafts.TargetInfo) -> ForeignModel | None:
    """The draft model of that name, if its vocabulary is another than the target's; None where it
    is the same. Raises DraftpickError where its tokens cannot be translated."""
    folder = drafts.folder_of(arm, drafter, "config.json")
    if drafts.draft_vocab_of(arm, folder, reading.vocab_size) is not None:
        return None
    if drafts.same_tokenizer(folder, reading):
        return None
    drafts.require_same_kind(arm, folder, reading)
    reason = None
    if reading.encoder_decoder:
        reason = "an encoder-decoder's drafts cannot be translated"
    elif reading.tokenizer is None or not (folder / "tokenizer.json").is_file():
        reason = "its drafts cannot be translated without both tokenizers"
    if reason is None:
        try:
            stamp = drafts.tokenizer_stamp(folder)
            return ForeignModel(folder, _vocabularies(folder, stamp, reading.tokenizer))
        except (ValueError, DraftpickError) as error:
            reason = str(error)
    raise DraftpickError(
        f"arm {arm!r}: {folder.name} has another tokenizer than the target, and {reason}; use a "
        "drafter of the target's family, or align one with `draftpick align`"
    )
