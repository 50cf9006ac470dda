"""How many answers an engine wrote at a time, by when each began and ended."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray


def mean_running(spans: Sequence[tuple[float, float]]) -> NDArray[np.float64]:
    """[n], the mean number of answers under way over each one's time, itself included.

    spans: when each began and ended, in seconds; one without a duration counts those that were
        under way at that moment.
    """
    starts, ends = (np.array(column, dtype=np.float64) for column in zip(*spans, strict=True))
    times = np.unique(np.concatenate([starts, ends]))
    began = np.bincount(np.searchsorted(times, starts), minlength=len(times))
    over = np.bincount(np.searchsorted(times, ends), minlength=len(times))
    running = np.cumsum(began - over)  # from each time on to the next
    area = np.array([0.0, *accumulate(running[:-1] * np.diff(times))])
    first, last = np.searchsorted(times, starts), np.searchsorted(times, ends)
    took = ends - starts
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = (area[last] - area[first]) / took
    found: NDArray[np.float64] = np.where(took > 0, mean, np.maximum(1, running[first]))
    return np.maximum(1.0, found)


def nearest(running: NDArray[np.float64], known: Sequence[int]) -> list[int]:
    """Of the known numbers of answers the one that is nearest in proportion to each."""
    logs = np.log(np.array(known, dtype=np.float64))
    places = np.abs(np.log(running)[:, None] - logs[None]).argmin(axis=1)
    return [known[place] for place in places.tolist()]
