"""From beliefs to chances: Thompson sampling and LinUCB."""

from __future__ import annotations

import numpy as np

from ..records import Float64

BREAKS = np.array([0.0, 0.5, 1, 1.5, 2, 2.5, 3, 4, 5, 6.5, 8.5])  # standard deviations
POINTS, WEIGHTS = np.polynomial.legendre.leggauss(6)


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


def linucb(mean: Float64, spread: Float64, width: float) -> Float64:
    """[n, A]: all on the arm whose mean plus `width` standard deviations is the highest, the first
    of equals (Li et al. 2010, algorithm 1)."""
    best = (mean + width * spread).argmax(axis=1)
    return np.asarray(np.eye(mean.shape[1])[best], dtype=np.float64)
