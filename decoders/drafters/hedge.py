"""Hedge: exponential weights over experts that are all scored in every round (Freund and Schapire
1997), of which some may sit a round out (Freund, Schapire, Singer and Warmuth 1997, "Using and
combining predictors that specialize").
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence


class Hedge:
    """What is learnt of `experts` in one answer.

    memory: rounds. What was seen so many rounds ago counts 1/e of what is seen now, as answers
        drift; the learning rate is sqrt(8 ln(experts) / memory), the best one for so many rounds
        (Cesa-Bianchi and Lugosi 2006, theorem 2.2).
    """

    def __init__(self, experts: int, memory: float) -> None:
        self.kept = math.exp(-1 / memory)
        self._rate = math.sqrt(8 * math.log(max(2, experts)) / memory)
        self._leads = [0.0] * experts
        self._best = 0.0

    def learn(self, gains: Mapping[int, float]) -> None:
        """A round's gains, above 0, of the experts that took part; each is measured against the
        mean of these by weight."""
        weights = self.weights(list(gains))
        self._best = max(self._best, *gains.values())
        mean = sum(w * gain for w, gain in zip(weights, gains.values(), strict=True))
        for expert, gain in gains.items():
            self._leads[expert] = self.kept * self._leads[expert] + gain - mean

    def weights(self, among: Sequence[int]) -> list[float]:
        """Of these experts; they sum to 1."""
        most, rate = max(self._leads[e] for e in among), self._rate / max(self._best, 1e-9)
        raw = [math.exp(rate * (self._leads[expert] - most)) for expert in among]
        return [weight / sum(raw) for weight in raw]

    def leader(self, among: Sequence[int]) -> int:
        """The one of the greatest weight, the first on a tie."""
        return max(among, key=lambda expert: self._leads[expert])
