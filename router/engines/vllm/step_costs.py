"""Costs of an engine's step, by the tokens that it verifies, and which drafted tokens pay."""

from __future__ import annotations

from collections.abc import Sequence

MEMORY = 0.995  # what a step counts after one more
PRIOR = 0.03  # cost of a token more, in steps over no token at all
PRIOR_SPREAD = 64.0  # how sure that is: as a sum of squared deviations of tokens
OUTLIER = 5.0  # a step this many times as long as usual was held up by something else
FIRST_STEPS = 8  # steps until it is known what is usual, or that another time is usual now


class StepCosts:
    """Seconds of a step = base + a_token * tokens: least squares that forget, drawn to PRIOR while
    all steps are alike.

    a_token: cost of a token more at first, in steps over no token.
    rows: requests that the coming step decodes.
    """

    def __init__(self, a_token: float = PRIOR) -> None:
        self._prior = a_token
        self.seen, self.rows = 0, 1
        self._odd = 0  # steps in a row that were outliers
        self._weight = self._x = self._y = 0.0  # sum of weights; means of tokens and seconds
        self._xx = self._xy = 0.0  # sums of squares and products around the means

    def observe(self, tokens: int, seconds: float) -> None:
        """A step that verified this many tokens, one of each row and all drafts, and read no
        prompt."""
        odd = self.seen >= FIRST_STEPS and seconds > OUTLIER * self._y
        self._odd = self._odd + 1 if odd else 0
        if seconds <= 0 or 0 < self._odd < FIRST_STEPS:
            return
        self.seen += 1
        self._weight = MEMORY * self._weight + 1
        dx, dy = tokens - self._x, seconds - self._y
        self._x += dx / self._weight
        self._y += dy / self._weight
        self._xx = MEMORY * self._xx + dx * (tokens - self._x)
        self._xy = MEMORY * self._xy + dx * (seconds - self._y)

    @property
    def usual(self) -> float:
        """Seconds of a step; 0 where none was seen."""
        return self._y

    @property
    def line(self) -> tuple[float, float]:
        """(base, a_token) in seconds; in units of the base where nothing was seen."""
        if not self.seen:
            return 1.0, self._prior
        first = self._prior * self._y / (1 + self._prior * self._x)
        slope = (self._xy + PRIOR_SPREAD * first) / (self._xx + PRIOR_SPREAD)
        slope = min(max(slope, 0.0), self._y / max(self._x, 1.0))
        return self._y - slope * self._x, slope


def slots(
    chances: Sequence[Sequence[float]], line: tuple[float, float], fixed: Sequence[float] = ()
) -> list[int]:
    """How many drafted tokens of each row give the most tokens a second in one step over all rows,
    the fewest of equals.

    chances: by row, at i, that its first i + 1 drafted tokens are all accepted; never growing.
    line: seconds of a step, (base, a token more).
    fixed: chances of tokens that are sent anyhow.

    Every row gives a token without a draft. A token of chance p is worth its slot while
    p / a_token is above the tokens a second without it, so they are taken in falling order of p: as
    tokens a second are a ratio of two sums, that is the best of all choices. (Liu et al. 2024,
    arXiv 2406.14066, maximise the same goodput over one length for all rows.)
    """
    base, a_token = line
    tokens = len(chances) + sum(fixed)
    seconds = base + a_token * (len(chances) + len(fixed))
    taken = [0] * len(chances)
    ordered = sorted(
        (-chance, at, row) for row, each in enumerate(chances) for at, chance in enumerate(each)
    )
    for lost, _, row in ordered:
        if -lost * seconds <= a_token * tokens:
            break
        tokens -= lost
        seconds += a_token
        taken[row] += 1
    return taken
