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
    errors: int = 0
    tokens: int = 0
    seconds: float = 0.0

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
        self._on_progress, self._began = on_progress, time.perf_counter()
        self._stored = self._now = SweepProgress(already, total)
        on_progress(self._now)

    def made(self, rows: Sequence[OutcomeRow | Exception]) -> None:
        """Rows of the group at work, not yet stored."""
        self._now = self._after(self._now, rows)
        self._on_progress(self._now)

    def stored(self, rows: Sequence[OutcomeRow]) -> None:
        """All rows of a group, whether `made` was called with them or not."""
        told, self._stored = self._now, self._after(self._stored, rows)
        self._now = self._stored
        if told.done != self._now.done:
            self._on_progress(self._now)

    def _after(
        self, before: SweepProgress, rows: Sequence[OutcomeRow | Exception]
    ) -> SweepProgress:
        good = [row for row in rows if isinstance(row, OutcomeRow) and row.error is None]
        return SweepProgress(
            before.done + len(rows),
            before.total,
            before.errors + len(rows) - len(good),
            before.tokens + sum(row.new_tokens or 0 for row in good),
            time.perf_counter() - self._began,
        )
