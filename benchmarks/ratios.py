"""How many times faster one way is than another, with its 95% interval."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from policies.evaluation.bootstrap import group_index, group_sums, interval, resampled_sums


def faster(ours: ArrayLike, theirs: ArrayLike, units: Sequence[str] = ()) -> dict[str, float]:
    """Ratio of the sums of tokens over the sums of seconds, by resampling units.

    ours, theirs: [n, 2], tokens and seconds of each request. units: [n], what each request belongs
    to (a conversation, a query); without them each is a unit of its own.
    """
    columns = np.hstack([np.asarray(ours, float), np.asarray(theirs, float)])  # [n, 4]
    names = list(units) or [str(row) for row in range(len(columns))]
    sums = group_sums(columns, group_index(names))  # [G, 4]
    drawn = np.vstack([sums.sum(0), resampled_sums(sums, 0)])
    ratios = drawn[:, 0] / drawn[:, 1] / (drawn[:, 2] / drawn[:, 3])
    low, high = interval(ratios[1:])
    return {"ratio": float(ratios[0]), "low": low, "high": high}
