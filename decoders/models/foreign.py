"""Draft models whose tokenizer is another than the target's: whether one fits, and loading it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..common.errors import DraftpickError
from ..drafters.translated import By, TranslatedDrafter
from ..protocols import Backend
from ..sampling.draft_vocab import DraftVocab
from . import drafts, targets
from .translation import Translation, texts_of


@dataclass(frozen=True)
class ForeignModel:
    """A draft model in `folder`, and how its tokens are translated."""

    folder: Path
    translation: Translation

    def load(self, target: Backend, by: By) -> TranslatedDrafter:
        shared = self.translation.shared()
        vocab = DraftVocab(shared.target, target.vocab_size).to(target.device)
        backend = drafts.load_for(self.folder, target)
        return TranslatedDrafter(backend, self.translation, shared.drafter, vocab, by)


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
            return ForeignModel(folder, _translation(folder, reading.tokenizer))
        except (ValueError, DraftpickError) as error:
            reason = str(error)
    raise DraftpickError(
        f"arm {arm!r}: {folder.name} has another tokenizer than the target, and {reason}; use a "
        "drafter of the target's family, or align one with `draftpick align`"
    )


def _translation(folder: Path, tokenizer: Any) -> Translation:
    made = Translation(texts_of(tokenizer), texts_of(targets.load_tokenizer(folder)))
    made.shared()
    return made
