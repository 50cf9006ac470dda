"""Who an answer is for, told to what reads and drafts in the place where it is written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from ..methods.suffix.earlier import EarlierAnswers
from ..methods.suffix.votes import Draft, Wanted
from .prefixes import PrefixStore


@dataclass(eq=False)
class Seat:
    """A place where one answer at a time is written.

    answers: earlier ones, those of other seats too; None where none are kept.
    prefixes: what is kept of prompts, those of other seats too; None where nothing is.
    user: whose both must be, to be drafted from or not read again; None has nobody's.
    reuse: whether what is held or kept of a prompt is not read again, by the target and by those
        who draft for it.
    exact: take only whole parts of prompts, read in the very passes in which a fresh reading would
        read them, so that not a bit depends on what came before.
    watch: called before each part of a prompt, with how many tokens the target has read and of how
        many; what it raises ends the reading.
    pause: called before each part of a prompt, whichever model reads it, with the part's tokens, so
        that others may go on.
    """

    answers: EarlierAnswers | None = None
    prefixes: PrefixStore | None = None
    user: str | None = ""
    reuse: bool = False
    exact: bool = False
    watch: Callable[[int, int], None] | None = None
    pause: Callable[[int], None] | None = None

    def draft(
        self, tail: Sequence[int], wanted: Wanted, acceptance: Callable[[int], float]
    ) -> Draft:
        """As `EarlierAnswers.draft`."""
        if self.answers is None or self.user is None:
            return Draft()
        return self.answers.draft(self.user, tail, wanted, acceptance)

    def keep(self, prompt: Sequence[int], answer: Sequence[int]) -> None:
        """As `EarlierAnswers.add`."""
        if self.answers is not None and self.user is not None:
            self.answers.add(self.user, prompt, answer)


_SEATS: WeakKeyDictionary[Any, Seat] = WeakKeyDictionary()


def seat_of(backend: Any) -> Seat:
    """The seat of what one target writes, with those who draft for it; an empty one where none was
    taken."""
    return _SEATS.setdefault(backend, Seat())


def sit(backend: Any, beside: Any) -> None:
    """A model that drafts takes its target's seat."""
    _SEATS[backend] = seat_of(beside)
