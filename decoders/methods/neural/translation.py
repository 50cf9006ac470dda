"""Between a target's ids and those of a draft model with another tokenizer."""

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

TAIL = 24  # target tokens that are always encoded anew
LONG_TEXT = 96  # those after which it is tried to encode fewer


class Translation:
    """Reads one sequence of target ids as the draft model's, and its drafts as the target's.

    The draft depends on accepted tokens alone, so that any reading of them keeps verification
    exact; a better one is accepted more often.
    """

    def __init__(self, target: TokenTexts, drafter: TokenTexts) -> None:
        self.target, self.drafter = target, drafter
        self._marks = {id_: self._mark(name, id_) for name, id_ in target.specials.items()}
        self._settled: list[int] = []  # target ids, up to a boundary on which both agree
        self._read: list[int] = []  # the draft model's ids of them

    def drafter_ids(self, context: list[int]) -> list[int]:
        """What the draft model reads for `context`; half a character at its end is left out."""
        if context[: len(self._settled)] != self._settled:
            self._settled, self._read = [], []
        tail = context[len(self._settled) :]
        read = self._encoded(tail, first=not self._settled)
        whole = self._read + read
        if len(tail) > LONG_TEXT:
            self._settle(tail, read)
        return whole

    def target_ids(self, context: list[int], drafted: list[int]) -> list[int]:
        """The draft model's tokens after `context` as the target would write them.

        Where the target would join the draft's beginning to what is accepted, the draft is encoded
        apart. It ends in front of a special token that the target lacks.
        """
        made: list[int] = []
        run: list[int] = []
        for id_ in drafted:
            special = id_ >= len(self.drafter.texts) or self.drafter.texts[id_] is None
            if not special:
                run.append(id_)
                continue
            made += self._written(context + made, run)
            run = []
            mark = self._back(id_)
            if mark is None:
                return made
            made.append(mark)
        return made + self._written(context + made, run)

    def shared(self) -> dict[int, int]:
        """The tokens that two vocabularies have in common, the target's id -> the drafter's: the
        same bytes, the same special token, or the same mark of a text's end. Raises DraftpickError
        where there are none but special ones."""
        spelled = {text: id_ for id_, text in enumerate(self.drafter.texts) if text}
        pairs = {
            id_: spelled[text]
            for id_, text in enumerate(self.target.texts)
            if text and text in spelled
        }
        if not pairs:
            raise DraftpickError("the two vocabularies share no token")
        for id_, marks in self._marks.items():
            if len(marks) == 1 and self._back(marks[0]) == id_:
                pairs[id_] = marks[0]
        return pairs

    # -- reading ----------------------------------------------------------------------------------

    def _encoded(self, ids: list[int], first: bool) -> list[int]:
        """The draft model's ids of target ids.

        first: whether a sequence begins with them.
        """
        made = self.drafter.begins() if first and not self._marks.keys() & set(ids[:1]) else []
        run: list[int] = []
        for id_ in ids:
            if id_ not in self._marks:
                run.append(id_)
                continue
            made += self._spelled(run)
            made += self._marks[id_]
            run = []
        return made + self._spelled(run)

    def _spelled(self, run: list[int]) -> list[int]:
        """The draft model's ids of ordinary target ids."""
        text = self.target.spelled(run).decode("utf-8", "ignore")
        return self.drafter.encode_inside(text) if text else []

    def _settle(self, tail: list[int], read: list[int]) -> None:
        """Find a place in the tail where encoding both sides apart changes nothing."""
        first = not self._settled
        for cut in range(len(tail) - TAIL, len(tail) - LONG_TEXT // 2 - TAIL, -1):
            before = self._encoded(tail[:cut], first)
            if before + self._encoded(tail[cut:], False) == read:
                self._settled = self._settled + tail[:cut]
                self._read = self._read + before
                return

    # -- writing ----------------------------------------------------------------------------------

    def _written(self, context: list[int], run: list[int]) -> list[int]:
        """Target ids of the text of ordinary draft ids."""
        text = self.drafter.spelled(run).decode("utf-8", "ignore")
        if not text:
            return []
        last = self._last_words(context)
        together = self.target.encode_inside(
            self.target.spelled(last).decode("utf-8", "ignore") + text
        )
        if together[: len(last)] == last:
            return together[len(last) :]
        apart = self.target.encode_inside(text)
        return apart if self.target.spelled(apart) == text.encode() else []

    def _last_words(self, context: list[int]) -> list[int]:
        """The context's last ordinary tokens, from the beginning of a word on if there is one."""
        end: list[int] = []
        for id_ in reversed(context[-TAIL:]):
            if id_ in self._marks:
                return end[::-1]
            end.append(id_)
        end = end[::-1]
        words = (
            at for at, id_ in enumerate(end) if self.target.spelled([id_])[:1] in (b" ", b"\n")
        )
        return end[next(words, 0) :]

    # -- special tokens ---------------------------------------------------------------------------

    def _mark(self, name: str, id_: int) -> list[int]:
        """A special token of the target's in the draft model's ids: its own of that name, the one
        of that role, or its name as text."""
        same = self.drafter.specials.get(name, self.drafter.having(self.target.role(id_)))
        return [same] if same is not None else self.drafter.encode(name)

    def _back(self, id_: int) -> int | None:
        """A special token of the draft model's in the target's ids."""
        name = next((n for n, special in self.drafter.specials.items() if special == id_), None)
        if name is None:
            return None
        return self.target.specials.get(name, self.target.having(self.drafter.role(id_)))


@dataclass(frozen=True)
class ForeignModel:
    """A draft model in `folder`, the texts of both tokenizers' tokens, and those that they share
    (`Translation.shared`)."""

    folder: Path
    target: TokenTexts
    drafter: TokenTexts
    shared: dict[int, int]

    def load(self, target: Backend, by: By) -> TranslatedDrafter:
        vocab = DraftVocab([*self.shared], target.vocab_size).to(target.device)
        translation = Translation(self.target, self.drafter)  # remembers where it has read to
        backend = drafts.load_for(self.folder, target)
        return TranslatedDrafter(backend, translation, [*self.shared.values()], vocab, by)


@lru_cache(maxsize=8)  # as in drafts.py
def _translated(folder: Path, stamp: int, tokenizer: Any) -> ForeignModel:
    """Raises ValueError or DraftpickError where no drafts can be translated."""
    texts = TokenTexts(tokenizer), TokenTexts(targets.load_tokenizer(folder))
    return ForeignModel(folder, *texts, Translation(*texts).shared())


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
            return _translated(folder, drafts.tokenizer_stamp(folder), reading.tokenizer)
        except (ValueError, DraftpickError) as error:
            reason = str(error)
    raise DraftpickError(
        f"arm {arm!r}: {folder.name} has another tokenizer than the target, and {reason}; use a "
        "drafter of the target's family, or align one with `draftpick align`"
    )
