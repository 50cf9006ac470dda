"""Hedge: exponential weights over experts that are all scored in every round (Freund and Schapire
1997), at AdaHedge's learning rate (de Rooij, van Erven, Grünwald and Koolen 2014), for experts of
which some may sit a round out (Freund, Schapire, Singer and Warmuth 1997, "Using and combining
predictors that specialize").
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Mapping
from typing import Generic, TypeVar

Expert = TypeVar("Expert", bound=Hashable)


class Hedge(Generic[Expert]):
    """What is learnt in one answer.

    experts: how many may take part in a round.
    memory: rounds, of which the last count most: what was seen so many rounds ago counts 1/e of
        what is seen now, as answers drift.
    """

    def __init__(self, experts: int, memory: float = math.inf) -> None:
        self.kept = math.exp(-1 / memory)
        self._spread = math.log(max(2, experts))
        self._leads = defaultdict[Expert, float](float)
        self._gap = 0.0  # the mixability gap, summed up

    def learn(self, gains: Mapping[Expert, float]) -> None:
        """A round's gains of the experts that took part. Each is measured against their mix, so
        that the weight which they share stays theirs."""
        weights = dict(zip(gains, self.weights(dict.fromkeys(gains, 0.0)), strict=True))
        mean = sum(weights[expert] * gain for expert, gain in gains.items())
        best = max(gain for expert, gain in gains.items() if weights[expert] > 0)
        mix, rate = best, self._rate
        if math.isfinite(rate):
            terms = [weights[e] * math.exp(rate * (gain - best)) for e, gain in gains.items()]
            mix = best + math.log(sum(terms)) / rate
        for expert, gain in gains.items():
            self._leads[expert] = self.kept * self._leads[expert] + gain - mix
        self._gap = self.kept * self._gap + max(0.0, mix - mean)

    def weights(self, hints: Mapping[Expert, float]) -> list[float]:
        """Of these experts; they sum to 1. hints: what each is expected to gain in the coming round
        (optimistic Hedge, Rakhlin and Sridharan 2013), or any multiple of it."""
        leads, rate = [self._leads[e] + hint for e, hint in hints.items()], self._rate
        behind = [max(leads) - lead for lead in leads]
        if math.isfinite(rate):
            raw = [math.exp(-rate * lag) for lag in behind]
        else:
            raw = [float(lag == 0) for lag in behind]
        return [weight / sum(raw) for weight in raw]

    def leader(self, hints: Mapping[Expert, float]) -> Expert:
        """The one of the greatest weight, the first on a tie."""
        return max(hints, key=lambda expert: self._leads[expert] + hints[expert])

    @property
    def _rate(self) -> float:
        return self._spread / self._gap if self._gap > 1e-9 else math.inf
