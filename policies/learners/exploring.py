"""A policy with added exploration, so that its log is informative about every arm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ..errors import PolicyError
from ..evaluation.evaluate import greedy_probs
from ..records import Decision, Float64, Origin, Policy


class ExploringPolicy:
    """Chooses like another policy, but uniformly at random for a share of the draws.

    share: in (0, 1]; every arm's propensity is at least share / A. Of a policy under risk
        control only the lossless arms are drawn, so that its guarantee holds.
    greedy: else the other policy's best arm (epsilon-greedy); False for a draw from it.

    Without rng, `choose` takes the other policy's best arm. Raises PolicyError for another share.
    """

    def __init__(self, policy: Policy, share: float, greedy: bool = True) -> None:
        if not 0 < share <= 1:
            raise PolicyError(f"the share of draws that explore must be in (0, 1], not {share:g}")
        self.policy, self.share, self.greedy = policy, share, greedy

    @property
    def name(self) -> str:
        return f"{self.policy.name}+explore"

    @property
    def arms(self) -> list[str]:
        return self.policy.arms

    @property
    def embedder(self) -> str:
        return self.policy.embedder

    @property
    def origin(self) -> Origin:
        return self.policy.origin

    @property
    def fingerprint(self) -> str:
        """Describe the other policy, and what was added."""
        known = getattr(self.policy, "fingerprint", self.policy.name)
        return f"{known}+{'' if self.greedy else 'drawn+'}{self.share:g}"

    @property
    def lossless(self) -> list[str]:
        """The arms that may answer though the other policy has not chosen them: all, where it
        bounds no loss."""
        return list(getattr(self.policy, "lossless", self.arms))

    def scores(self, x: Any) -> Float64:
        return self.policy.scores(x)

    def distribution(self, x: Any) -> Float64:
        """[n, A] probabilities; every row sums to 1."""
        probs = self.policy.distribution(x)
        probs = greedy_probs(probs) if self.greedy else probs
        drawn = np.array([arm in self.lossless for arm in self.arms]) / len(self.lossless)
        return np.asarray((1 - self.share) * probs + self.share * drawn)

    def choose(self, x: Any, rng: np.random.Generator | None = None) -> Decision:
        """Choose an arm, as `Policy.choose`."""
        best = self.policy.choose(x)
        if rng is None:
            return best
        probs = self.distribution(x)[0]
        index = int(rng.choice(len(probs), p=probs))
        return Decision(self.arms[index], index, float(probs[index]), best.scores)

    def save(self, folder: str | Path) -> Path:
        """Writes the other policy: exploring is how it is used, not what it is."""
        return self.policy.save(folder)
