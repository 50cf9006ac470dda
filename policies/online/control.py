"""The control share: what the policy gains over the best fixed arm, and whether it loses."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..records import Float64

ETA, POWER = 2.0, 1.4  # of the stitching, as in the paper's examples


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
            self, rows=self.rows + 1, total=self.total + gain, squares=self.squares + gain**2
        )

    def again(self) -> Control:
        """A new test, with less of the level."""
        return replace(self, rows=0, total=0.0, squares=0.0, tests=self.tests + 1)

    @property
    def own_level(self) -> float:
        """This test's share of the level: the chance that the sum is ever beyond the radius, on one
        side."""
        return self.level / (self.tests * (self.tests + 1))

    @property
    def radius(self) -> float:
        """Bound how far the sum may be from the truth, on either side; a gain lies between
        -1 / share and 1 / share times the limit."""
        scale = self.limit * max(1.0, 1 / self.share - 1)
        return float(stitched(self.squares, scale, self.own_level, scale**2))

    @property
    def gain(self) -> tuple[float, float, float]:
        """(mean, low, high) of a request's gain; nan and infinities before the first."""
        if not self.rows:
            return float("nan"), float("-inf"), float("inf")
        mean, radius = self.total / self.rows, self.radius / self.rows
        return mean, mean - radius, mean + radius

    @property
    def worse(self) -> bool:
        """Tell whether the policy earns less than the best fixed arm, with confidence."""
        return self.rows > 0 and self.total + self.radius < 0


def stitched(squares: Any, scale: float, level: float, start: float) -> Float64:
    """How far a sum may be above the sum of its conditional means, ever, but for a chance of
    `level`: for steps that are never less than -scale.

    squares: the sum of the squared steps so far; numbers or an array of them.
    start: the sum of squares for which the bound is made to be tight.

    The empirical-Bernstein bound of Howard, Ramdas, McAuliffe, Sekhon 2021 (Annals of Statistics
    49; theorem 4 with predictions of 0, and the polynomial stitched boundary of equation 10 for
    sub-gamma sums). The steps need not be independent, nor their means equal.
    """
    from scipy.special import zeta

    first = (ETA**0.25 + ETA**-0.25) / np.sqrt(2)
    second = (np.sqrt(ETA) + 1) / 2
    v = np.maximum(np.asarray(squares, dtype=np.float64), start)
    epochs = np.log(v / start) / np.log(ETA)
    ell = POWER * np.log1p(epochs) + np.log(float(zeta(POWER))) - np.log(level)
    linear = second * scale * ell
    return np.asarray(np.sqrt(first**2 * v * ell + linear**2) + linear)
