"""The control share: what the policy gains over the best fixed arm, and whether it loses."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from .sequence import stitched


@dataclass(frozen=True)
class Control:
    """A sequential test on requests of which a share is always left to the best fixed arm.

    share: of the requests, in (0, 1); so that arm's propensity is never below it.
    limit: a reward counts at most so far above or below what the best fixed arm was expected to
        earn on that request.
    level: the chance that a policy which is not worse is ever called so.
    rows: requests so far.
    total: sum of their gains.
    squares: sum of their squares.
    tests: how many tests there were, this one included; the k-th has level / (k (k + 1)), so that
        all of them together have the level.

    With e the limited difference between reward and expectation, and p the propensity of the best
    fixed arm, a request's gain is e, less e / p where that arm answered: its mean is what the
    policy earns over the arm on that request, whatever is expected (it only lowers the variance).
    """

    share: float
    limit: float
    level: float = 0.05
    rows: int = 0
    total: float = 0.0
    squares: float = 0.0
    tests: int = 1

    def add(self, reward: float, expected: float, of_best: bool, propensity: float) -> Control:
        """expected: of the best fixed arm. of_best: whether it answered. propensity: of the arm
        that did."""
        e = float(np.clip(reward - expected, -self.limit, self.limit))
        gain = e - e / max(propensity, self.share) if of_best else e
        return replace(
            self,
            rows=self.rows + 1,
            total=self.total + gain,
            squares=self.squares + gain**2,
        )

    def again(self) -> Control:
        """A new test, with less of the level."""
        return replace(self, rows=0, total=0.0, squares=0.0, tests=self.tests + 1)

    @property
    def radius(self) -> float:
        """So far the sum may be from the truth, on either side; a gain lies between -1 / share and
        1 / share times the limit."""
        level = self.level / (self.tests * (self.tests + 1))
        scale = self.limit * max(1.0, 1 / self.share - 1)
        return float(stitched(self.squares, scale, level, scale**2))

    @property
    def gain(self) -> tuple[float, float, float]:
        """(mean, low, high) of a request's gain; nan and infinities before the first."""
        if not self.rows:
            return float("nan"), float("-inf"), float("inf")
        mean, radius = self.total / self.rows, self.radius / self.rows
        return mean, mean - radius, mean + radius

    @property
    def worse(self) -> bool:
        """Whether the policy earns less than the best fixed arm, with confidence."""
        return self.rows > 0 and self.total + self.radius < 0
