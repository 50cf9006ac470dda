"""Detection of a changed reward, by a cumulative sum of surprises."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..errors import PolicyError

SLACK = 0.5  # standard deviations; half of the smallest change that is meant to be found
THRESHOLD = 10.0  # chance alone needs tens of thousands of normal rewards to get there
MIN_REWARDS = 10  # rewards
USUAL = 20.0  # surprises of 0 that an arm's usual surprise begins with
CUT = 4.0  # one surprise counts for no more


@dataclass
class DriftDetector:
    """The Page-Hinkley test (Page 1954, Hinkley 1971) on both sides.

    rows: rewards seen since the last change.
    above, below: the sums of how far rewards were above, or below, what they usually are.
    total: the sum of surprises. Their mean is what is usual: an arm that is taken where it does
        better than a linear prediction says is no arm that has changed.
    """

    rows: int = 0
    above: float = 0.0
    below: float = 0.0
    total: float = 0.0

    def add(self, surprise: float) -> bool:
        """Tell whether the arm has changed; the test then starts again.

        surprise: reward less expectation, in standard deviations of a reward.
        """
        one = float(np.clip(surprise, -CUT, CUT))
        usual = self.total / (self.rows + USUAL)
        self.rows, self.total = self.rows + 1, self.total + one
        self.above = max(0.0, self.above + (one - usual) - SLACK)
        self.below = max(0.0, self.below - (one - usual) - SLACK)
        if self.rows < MIN_REWARDS or max(self.above, self.below) < THRESHOLD:
            return False
        self.rows, self.above, self.below, self.total = 0, 0.0, 0.0, 0.0
        return True

    def evidence(self) -> float:
        """The larger sum over the threshold: at 1 a change is called. Raises PolicyError where
        there are too few rewards to say anything."""
        if self.rows < MIN_REWARDS:
            raise PolicyError(
                f"a drift detector needs {MIN_REWARDS} rewards of an arm, and has seen "
                f"{self.rows}; answer more requests"
            )
        return max(self.above, self.below) / THRESHOLD
