"""A bound on a sum that holds at every moment, however often one looks at it."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..records import Float64

ETA, POWER = 2.0, 1.4  # of the stitching, as in the paper's examples


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
