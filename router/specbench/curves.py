"""Readings of a curve: how fast at a wanted quality, how good within a given time.

A curve is a list of points (latency, quality) joined by straight lines in the order of the swept
values; without an order only the points themselves count.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

XY = tuple[float, float]
EQUAL = 1e-9  # sums of the same numbers in another order may differ by so much


def latency_at(points: Sequence[XY], quality: float, joined: bool = True) -> float | None:
    """The least latency at which the curve is at least so good; None where it never is."""
    reached = [x for x, y in points if y >= quality - EQUAL]
    if joined:
        reached += [x for x, y in _crossings(points, axis=1, at=quality)]
    return min(reached, default=None)


def quality_within(points: Sequence[XY], latency: float, joined: bool = True) -> XY | None:
    """(latency, quality) of the best place on the curve that is at least so fast, the fastest on a
    tie; None where nothing is."""
    within = [(x, y) for x, y in points if x <= latency + EQUAL]
    if joined:
        within += _crossings(points, axis=0, at=latency)
    return max(within, key=lambda xy: (xy[1], -xy[0]), default=None)


def _crossings(points: Sequence[XY], axis: int, at: float) -> Iterator[XY]:
    """Where the lines between neighbours cross `at` on an axis. On a straight line the extremes
    lie at its ends or at such a crossing, so nothing else need be looked at."""
    for one, other in pairwise(points):
        if min(one[axis], other[axis]) < at < max(one[axis], other[axis]):
            share = (at - one[axis]) / (other[axis] - one[axis])
            x, y = (a + share * (b - a) for a, b in zip(one, other, strict=True))
            yield x, y
