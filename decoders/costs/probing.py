"""When a draft is made that is not expected to pay, so that what is expected may turn out wrong."""

from __future__ import annotations

FIRST, LONGEST = 4, 64  # rounds without a draft after a rejected one, at first and at last


class ProbeSchedule:
    """Within one answer: in its first round, round after round as long as drafts are accepted, and
    after a rejection once in FIRST rounds, twice as many after each further one up to LONGEST."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Begin anew, as a draft is expected to pay."""
        self._left, self._wait = 0, FIRST

    def should_probe(self) -> bool:
        """Whether a round in which no draft is expected to pay makes one; asked once a round."""
        self._left -= self._left > 0
        return self._left == 0

    def rejected(self) -> None:
        """None of a draft's tokens was accepted."""
        self._left, self._wait = self._wait + 1, min(2 * self._wait, LONGEST)
