"""How far a sweep is, by answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..records import OutcomeRow


@dataclass(frozen=True)
class SweepProgress:
    """An answer is one query through one arm at one temperature, draw and load: a row.

    done, total: answers, those of earlier runs included.
    errors: answers of this run that failed.
    tokens: of this run's answers.
    seconds: since this run's first answer was started.
    """

    done: int
    total: int
    errors: int
    tokens: int
    seconds: float

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds if self.seconds else 0.0

    @property
    def figures(self) -> str:
        """Shown next to the count."""
        return f"{self.tokens_per_s:.0f} tokens/s, {self.errors} errors"


class Meter:
    """Counts rows as they are made and as they are stored, and reports after each step.

    already, total: answers. on_progress: called with every report.
    """

    def __init__(
        self, already: int, total: int, on_progress: Callable[[SweepProgress], None]
    ) -> None:
        self._already, self._total, self._on_progress = already, total, on_progress
        self._began = time.perf_counter()
        self._stored = self._made = _Count()
        self._report()

    def made(self, rows: Sequence[OutcomeRow | Exception]) -> None:
        """Rows of the group at work, not yet stored."""
        self._made = self._made.plus(rows)
        self._report()

    def stored(self, rows: Sequence[OutcomeRow]) -> None:
        """All rows of a group, whether `made` was called with them or not."""
        known = self._made.answers == len(rows)
        self._stored, self._made = self._stored.plus(rows), _Count()
        if not known:
            self._report()

    def _report(self) -> None:
        stored, made = self._stored, self._made
        self._on_progress(
            SweepProgress(
                self._already + stored.answers + made.answers,
                self._total,
                stored.errors + made.errors,
                stored.tokens + made.tokens,
                time.perf_counter() - self._began,
            )
        )


@dataclass(frozen=True)
class _Count:
    answers: int = 0
    errors: int = 0
    tokens: int = 0

    def plus(self, rows: Sequence[OutcomeRow | Exception]) -> _Count:
        good = [row for row in rows if isinstance(row, OutcomeRow) and row.error is None]
        return _Count(
            self.answers + len(rows),
            self.errors + len(rows) - len(good),
            self.tokens + sum(row.new_tokens or 0 for row in good),
        )
