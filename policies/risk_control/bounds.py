"""Risk control: the largest threshold whose expected loss is bounded, by losses on n queries.

A policy with one threshold lambda is measured at an ascending grid of them, each of which allows
more loss. A group of queries, most often of one, loses the mean of what its queries lose. The
losses of n groups select the last threshold whose expected loss stays within max_loss.

Theorem. If groups are drawn independently from one distribution, their losses are independent and
in [0, 1], whatever their sizes. So for any policy, any such distribution and finite n, the expected
loss of a new group at the selected threshold is at most max_loss: with probability `confidence` by
fixed-sequence testing of Hoeffding-Bentkus p-values (2110.01052, theorem 1), on average over
calibrations by conformal risk control (2208.02814, theorem 1).

Each group counts alike: that is the mean over queries where all have one, or where a group's size
says nothing of its loss. No finite n bounds the mean over queries of groups of any sizes: most
queries may be in a group too rare to be drawn.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..errors import PolicyError
from ..records import Float64

ROUNDING = 1e-9  # without it a sum of 3 may be taken for one of 4, and a chance of 5% for more


@dataclass(frozen=True)
class Risk:
    """The largest expected loss that is allowed, and the confidence in it.

    max_loss: alpha of both papers, in (0, 1).
    confidence: the probability over calibrations, 1 - delta, that the expected loss at the selected
        threshold is at most max_loss (Learn then Test, Angelopoulos et al. 2110.01052); None bounds
        its average over calibrations instead (Conformal Risk Control, 2208.02814).

    Raises PolicyError on a number out of range.
    """

    max_loss: float
    confidence: float | None = 0.95

    def __post_init__(self) -> None:
        if not 0 < self.max_loss < 1:
            raise PolicyError(
                f"the largest loss must be above 0 and below 1, not {self.max_loss:g}; for no loss "
                "at all leave the lossy arms out"
            )
        if self.confidence is not None and not 0 < self.confidence < 1:
            raise PolicyError(
                f"the confidence must be above 0 and below 1, not {self.confidence:g}"
            )

    @property
    def method(self) -> str:
        return "conformal risk control" if self.confidence is None else "learn then test"

    @property
    def least_groups(self) -> int:
        """Count the groups below which calibration selects no threshold, even where nothing is
        lost."""
        if self.confidence is None:
            return math.ceil(1 / self.max_loss - 1 - ROUNDING)
        return math.ceil(math.log(1 - self.confidence) / math.log1p(-self.max_loss) - ROUNDING)

    def comparable(self, losses: Float64) -> Float64:
        """[n, Z] losses to what `controlled` takes the means of, [n, Z]: in expectation their
        running maximum over the thresholds, else the losses themselves."""
        if self.confidence is not None:
            return losses
        return np.asarray(np.maximum.accumulate(losses, axis=1), dtype=np.float64)

    def controlled(self, means: Float64, n: int) -> NDArray[np.intp]:
        """The number of leading thresholds at which the risk is controlled, 0 for none.

        means: [..., Z] over n groups, of losses that `comparable` gives; result: [...].

        In expectation: those with n / (n + 1) mean + 1 / (n + 1) <= max_loss. With confidence:
        fixed-sequence testing, in ascending order until the first p-value above 1 - confidence.
        """
        if self.confidence is None:
            fine = (n * means + 1) / (n + 1) <= self.max_loss + ROUNDING / n
        else:
            believed = (1 - self.confidence) * (1 + ROUNDING)
            fine = hoeffding_bentkus(means, n, self.max_loss) <= believed
        return np.asarray(np.cumprod(fine, axis=-1).sum(axis=-1), dtype=np.intp)


def hoeffding_bentkus(means: Float64, n: int, max_loss: float) -> Float64:
    """p-values of "the expected loss is above max_loss", from means over n losses in [0, 1].

    The smaller of exp(-n KL(min(mean, max_loss) | max_loss)) and e P(Bin(n, max_loss) <= ceil(n
    mean)), the Hoeffding-Bentkus inequality of Bates et al. 2101.02703.
    """
    from scipy.special import rel_entr
    from scipy.stats import binom

    low = np.minimum(means, max_loss)
    divergence = rel_entr(low, max_loss) + rel_entr(1 - low, 1 - max_loss)
    bentkus = math.e * binom.cdf(np.ceil(n * means - ROUNDING), n, max_loss)
    return np.asarray(np.minimum(np.minimum(np.exp(-n * divergence), bentkus), 1), dtype=np.float64)
