"""Has an arm's reward changed? A cumulative sum of surprises says so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import PolicyError

SLACK = 0.5  # standard deviations; half of the smallest change that is meant to be found
THRESHOLD = 10.0  # chance alone needs tens of thousands of normal rewards to get there
LEAST = 10  # rewards
CUT = 4.0  # one surprise counts for no more


@dataclass
class DriftDetector:
    """Page's cumulative sum test (Page 1954; "Page-Hinkley" in drift detection), on both sides.

    rows: rewards seen since the last change.
    above, below: the sums of how far rewards were above, or below, what was expected.
    """

    rows: int = 0
    above: float = 0.0
    below: float = 0.0

    def add(self, surprise: float) -> bool:
        """Whether the arm has changed; then it begins anew.

        surprise: reward less expectation, in standard deviations of a reward.
        """
        one = float(np.clip(surprise, -CUT, CUT))
        self.rows += 1
        self.above = max(0.0, self.above + one - SLACK)
        self.below = max(0.0, self.below - one - SLACK)
        if self.rows < LEAST or max(self.above, self.below) < THRESHOLD:
            return False
        self.rows, self.above, self.below = 0, 0.0, 0.0
        return True

    def evidence(self) -> float:
        """The larger sum over the threshold: at 1 a change is called. Raises PolicyError where
        there are too few rewards to say anything."""
        if self.rows < LEAST:
            raise PolicyError(
                f"a drift detector needs {LEAST} rewards of an arm to say anything, and has seen "
                f"{self.rows}; answer more requests"
            )
        return max(self.above, self.below) / THRESHOLD

    def settings(self) -> dict[str, Any]:
        return dict(vars(self))
