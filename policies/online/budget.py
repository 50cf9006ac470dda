"""The exploration budget: a share of the best fixed arm's reward that may be lost to trying."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..records import Float64


@dataclass(frozen=True)
class Budget:
    """How much of the budget is spent, by careful reckoning.

    share: of the best fixed arm's reward, in [0, 1]. 0 allows only arms whose lower bound is as
    good.
    earned: what all requests so far allowed to lose.
    lost: what requests that another arm answered have lost; below 0 where they gained.

    As in conservative bandits (Wu et al. 2016; Kazerouni et al. 2017), an arm may be tried where
    the reward of the past and the least that this arm may earn stay above 1 - share of what the
    best fixed arm may have earned. What that arm would have earned is not seen: its upper bound
    counts, and of the arm to be tried the lower one. Both forget with the beliefs, so that no
    credit of long ago is spent at once.
    """

    share: float
    earned: float = 0.0
    lost: float = 0.0

    def allowed(self, low: Float64, high: Float64, best: int) -> Any:
        """[n, A] whether each arm may be taken; the best fixed one always may.

        low, high: [n, A] bounds of every arm's expected reward.
        """
        credit = self.earned + self.share * np.maximum(low[:, [best]], 0)
        fine = self.lost + (high[:, [best]] - low) <= credit
        fine[:, best] = True
        return fine

    def add(self, reward: float, low: float, high: float, of_best: bool, keep: float) -> Budget:
        """One answer. low, high: bounds of the best fixed arm's expected reward."""
        return replace(
            self,
            earned=keep * self.earned + self.share * max(low, 0.0),
            lost=keep * self.lost + (0.0 if of_best else high - reward),
        )
