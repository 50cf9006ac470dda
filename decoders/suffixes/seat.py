"""Who an answer is for, told to the drafters of the place where it is written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from .earlier import EarlierAnswers
from .votes import Draft, Wanted


@dataclass(eq=False)
class Seat:
    """A place where one answer at a time is written.

    answers: earlier ones, those of other seats too; None where none are kept.
    user: whose they must be, to be drafted from; None drafts from nobody's.
    """

    answers: EarlierAnswers | None = None
    user: str | None = ""

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


def seat_of(target: Any) -> Seat:
    """The seat of what one target writes; an empty one where none was taken."""
    return _SEATS.setdefault(target, Seat())
