"""Beliefs about every arm's reward: Bayesian linear regression that forgets.

For arm a and what is known of a request, z (see `context`), the reward is z . theta_a plus noise.
The belief of theta_a is normal with mean V^-1 m and covariance s_a^2 V^-1, where V sums z z^T and m
sums z r over the rows of that arm, each weighted by how old it is. The table that the policy was
trained on is where V and m begin, as if it had been `queries` requests.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import PolicyError
from ..records import Float64

SHRINK = 15.0  # rows by which every weight but the mean is drawn to the table's, for ever
RIDGE = 0.05  # of a query, in every direction: a weight that the table says nothing of is about 0
MIN_NOISE = 1e-12
LEFT = 1.0  # queries of the table that are kept once the world was found to have changed
BREAKS = np.array([0.0, 0.5, 1, 1.5, 2, 2.5, 3, 4, 5, 6.5, 8.5])  # standard deviations
POINTS, WEIGHTS = np.polynomial.legendre.leggauss(6)


class Beliefs:
    """One regression an arm, with rows that count less and less.

    precision: [A, k, k], sum of weight z z^T over an arm's rows, those of the table included.
    moment: [A, k], sum of weight z r.
    table_precision, table_moment: the same for one query of the table, on average; `kept` of them
        ([A]) are never forgotten, so that no belief becomes empty and an arm that was bad long ago
        is tried again.
    noise: [A], the variance of an arm's reward around its prediction, s_a^2.
    noise_rows: [A], the number of rows behind it.
    """

    def __init__(
        self,
        precision: Float64,
        moment: Float64,
        table_precision: Float64,
        table_moment: Float64,
        noise: Float64,
        noise_rows: Float64,
        kept: Float64,
    ) -> None:
        arms, width = moment.shape
        if precision.shape != (arms, width, width) or table_precision.shape != precision.shape:
            raise PolicyError("a belief needs one square matrix and one vector for each arm")
        if not (
            noise.shape == noise_rows.shape == (arms,) and (noise > 0).all() and (kept > 0).all()
        ):
            raise PolicyError("a belief needs a noise and kept queries above 0 for each arm")
        self.precision = np.array(precision, dtype=np.float64)
        self.moment = np.array(moment, dtype=np.float64)
        self.table_precision = np.asarray(table_precision, dtype=np.float64)
        self.table_moment = np.asarray(table_moment, dtype=np.float64)
        self.noise = np.array(noise, dtype=np.float64)
        self.noise_rows = np.array(noise_rows, dtype=np.float64)
        self.kept = np.array(kept, dtype=np.float64)
        # The first weight is the arm's mean, which moves freely.
        self._shrink = SHRINK * (np.arange(width) > 0).astype(np.float64)  # [k]
        fit = np.linalg.solve(self.table_precision, self.table_moment[..., None])[..., 0]
        self._drawn_to = self._shrink * fit  # [A, k]
        self._solve()

    @classmethod
    def of_table(cls, z: Float64, rewards: Float64, queries: float, kept: float) -> Beliefs:
        """z: [n, A, k] and rewards [n, A] of a table.

        queries: weight of the table, in requests, spread evenly over its rows.
        kept: the part of it that is never forgotten.
        """
        if not 0 < kept <= queries:
            raise PolicyError(
                f"of the prior's {queries:g} queries {kept:g} cannot be kept; keep above 0 and at "
                "most all of them"
            )
        per_query = np.einsum("nak,nal->akl", z, z) / len(z)  # [A, k, k]
        moment = np.einsum("nak,na->ak", z, rewards) / len(z)
        squares = np.trace(per_query, axis1=1, axis2=2)[:, None, None] * np.eye(z.shape[2])
        fit = np.linalg.solve(per_query + 1e-6 * squares, moment[..., None])[..., 0]  # [A, k]
        residual = rewards - np.einsum("nak,ak->na", z, fit)
        noise = np.maximum(np.square(residual).mean(axis=0), MIN_NOISE)
        per_query = per_query + RIDGE * np.eye(z.shape[2])
        moment = moment + RIDGE * fit  # drawn to the fit, which stays as it is
        more = queries - kept
        rows = np.full(len(noise), float(queries))
        held = np.full(len(noise), float(kept))
        return cls(more * per_query, more * moment, per_query, moment, noise, rows, held)

    def _solve(self) -> None:
        whole = self.precision + self.kept[:, None, None] * self.table_precision
        whole = whole + np.diag(self._shrink)
        self._spread = np.asarray(np.linalg.inv(whole), dtype=np.float64)  # [A, k, k]
        right = self.moment + self.kept[:, None] * self.table_moment + self._drawn_to
        self.theta: Float64 = np.einsum("akl,al->ak", self._spread, right)

    def predict(self, z: Float64) -> tuple[Float64, Float64]:
        """(mean, standard deviation) of every arm's expected reward, [n, A] both, for z
        [n, A, k]."""
        mean = np.einsum("nak,ak->na", z, self.theta)
        variance = self.noise * np.einsum("nak,akl,nal->na", z, self._spread, z)
        return mean, np.sqrt(np.maximum(variance, 0))

    def residual(self, z: Float64, arm: int, reward: float) -> float:
        """How far a reward is from what was expected, in standard deviations of a new reward.
        z: [A, k]."""
        leverage = float(z[arm] @ self._spread[arm] @ z[arm])
        return float(
            (reward - z[arm] @ self.theta[arm]) / np.sqrt(self.noise[arm] * (1 + leverage))
        )

    def add(self, z: Float64, arm: int, reward: float, keep: float = 1.0) -> None:
        """One request: every row so far counts `keep` times as much as before, then the new one.
        z: [A, k]."""
        self.noise_rows *= keep
        self.noise_rows[arm] += 1
        surprise = self.residual(z, arm, reward) ** 2 * self.noise[arm]
        self.noise[arm] += (surprise - self.noise[arm]) / self.noise_rows[arm]
        self.noise[arm] = max(self.noise[arm], MIN_NOISE)
        self.precision *= keep
        self.moment *= keep
        self.precision[arm] += np.outer(z[arm], z[arm])
        self.moment[arm] += z[arm] * reward
        self._solve()

    def doubt(self, arm: int, rows: float) -> None:
        """Let all that is known of an arm, which may have changed, count as at most this number of
        rows, and keep LEFT queries of the table."""
        table = max(float(np.trace(self.table_precision[arm])), 1e-12)
        held = float(np.trace(self.precision[arm])) / table
        if held > rows:
            self.precision[arm] *= rows / held
            self.moment[arm] *= rows / held
        self.noise_rows[arm] = min(self.noise_rows[arm], rows)
        self.kept[arm] = min(self.kept[arm], LEFT)
        self._solve()

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Name the arrays as the constructor does."""
        return {
            "precision": self.precision,
            "moment": self.moment,
            "table_precision": self.table_precision,
            "table_moment": self.table_moment,
            "noise": self.noise,
            "noise_rows": self.noise_rows,
            "kept": self.kept,
        }


def thompson(mean: Float64, spread: Float64) -> Float64:
    """[n, A]: the chance that each arm's draw is the highest, where it draws from a normal
    distribution of this mean and standard deviation ([n, A] both) on its own.

    Drawing the arm from these chances is Thompson sampling (Thompson 1933; with linear beliefs
    Agrawal, Goyal 2013), and they are its exact propensities: for one request the arms' expected
    rewards are independent normal numbers, so that P(a) = integral of the density of a times the
    other arms' distribution functions. The integral is taken by six-point Gauss-Legendre rules
    between the multiples of every arm's standard deviation in BREAKS; the result is within 1e-6 of
    the truth and scaled to sum to 1.
    """
    return np.stack([_thompson(m, s) for m, s in zip(mean, spread, strict=True)])


def _thompson(mean: Float64, spread: Float64) -> Float64:
    from scipy.special import ndtr

    spread = np.maximum(spread, 1e-9 * max(1.0, float(np.abs(mean).max())))
    reach = np.concatenate([-BREAKS[:0:-1], BREAKS])
    edges = np.unique((mean[:, None] + spread[:, None] * reach).ravel())  # ascending
    half = np.diff(edges)[:, None] / 2  # [i, 1]
    u = (edges[:-1, None] + half * (1 + POINTS)).ravel()  # [i * 6]
    area = (half * WEIGHTS).ravel()
    at = (u[:, None] - mean) / spread  # [i * 6, A]
    below = ndtr(at)
    density = np.exp(-np.square(at) / 2) / (np.sqrt(2 * np.pi) * spread)
    chances = np.empty(len(mean))
    for arm in range(len(mean)):
        others = np.delete(below, arm, axis=1).prod(axis=1)
        chances[arm] = area @ (density[:, arm] * others)
    return np.asarray(chances / chances.sum())
