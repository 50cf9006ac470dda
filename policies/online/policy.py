"""A policy that goes on learning from the requests that it serves."""

from __future__ import annotations

import math
import threading
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from decoders.common.tensor_files import below

from ..base import BasePolicy, as_rows
from ..errors import PolicyError
from ..records import Decision, Float64, Origin, arm_index
from .beliefs import Beliefs, thompson
from .budget import Budget
from .context import Context
from .control import Control
from .drift import DriftDetector

AFTER_DRIFT = 5.0  # rows that an arm's belief counts as once its reward has changed,
OTHERS = 100.0  # and those of the other arms, whose world may have changed too
SETTLED = 3.0  # standard errors by which another arm must be better on average to be the best fixed


@dataclass(frozen=True)
class Status:
    """The state of an online policy.

    requests: learned from.
    best_fixed: the arm that it is compared with, and falls back to.
    gain, gain_low, gain_high: what it earns more than that arm, on average since the last change;
        the bounds hold at every moment.
    confidence: of both bounds, which grows with the changes found.
    switched_back: whether every request now goes to the best fixed arm.
    drifts: changes found, by arm.
    """

    requests: int
    best_fixed: str
    gain: float
    gain_low: float
    gain_high: float
    confidence: float
    switched_back: bool
    drifts: dict[str, int]


@dataclass
class State:
    """All that changes besides the beliefs. best: place of the best fixed arm."""

    best: int
    control: Control
    budget: Budget
    detectors: list[DriftDetector]
    drifts: list[int]
    requests: int = 0
    switched: bool = False


class OnlinePolicy(BasePolicy):
    """Thompson sampling over beliefs that began with an offline table.

    width: what the beliefs' standard deviations are multiplied by before they are drawn from.
    explore: the share of requests, of those that the budget leaves free, that any arm answers, all
        alike: arms that beliefs have given up are seen now and then.
    sure: of the budget's bounds, in standard deviations of one arm's expected reward on one
        request.
    keep: what a row counts after one more request; below 1 it is forgotten.
    lowest: the reward of an arm that failed.
    traffic: [A, k], what requests look like on average.

    `update` learns from an answer; `choose` and `update` may be called from any number of threads.
    A policy whose arms are drawn (`choose` with rng) keeps its control share and knows its gain;
    without rng the most likely arm is taken.
    """

    kind = "online"

    def __init__(
        self,
        origin: Origin,
        context: Context,
        beliefs: Beliefs,
        state: State,
        traffic: Float64,
        *,
        width: float,
        explore: float,
        sure: float,
        keep: float,
        lowest: float,
    ) -> None:
        super().__init__(origin)
        if beliefs.moment.shape != traffic.shape or len(traffic) != len(origin.arms):
            raise PolicyError("an online policy needs a belief for each of its arms")
        if not 0 <= state.best < len(origin.arms):
            raise PolicyError("an online policy's best fixed arm is none of its arms")
        self._context, self._beliefs, self._state = context, beliefs, state
        self._traffic = np.array(traffic, dtype=np.float64)
        self._width, self._sure = float(width), float(sure)
        self._explore, self._keep, self._lowest = float(explore), float(keep), float(lowest)
        self._lock = threading.RLock()

    def scores(self, x: Any) -> Float64:
        """[n, A] expected rewards."""
        z = self._context.of(x)
        with self._lock:
            return self._beliefs.predict(z)[0]

    def distribution(self, x: Any) -> Float64:
        return self._chances(self._context.of(x))[1]

    def choose(self, x: Any, rng: np.random.Generator | None = None) -> Decision:
        mean, chances = self._chances(self._context.of(x))
        decision = self.decide(mean, chances, rng)
        return decision if rng is None else replace(decision, probabilities=chances[0].tolist())

    def _chances(self, z: Float64) -> tuple[Float64, Float64]:
        """(expected rewards, chances), [n, A] both."""
        with self._lock:
            mean, spread = self._beliefs.predict(z)
            best, switched = self._state.best, self._state.switched
            control, budget = self._state.control, self._state.budget
        always = np.zeros_like(mean)
        always[:, best] = 1.0
        if switched:
            return mean, always
        wanted = thompson(mean, self._width * spread)
        wanted = (1 - self._explore) * wanted + self._explore / wanted.shape[1]
        sure = self._sure * spread
        wanted = wanted * budget.allowed(mean - sure, mean + sure, best)
        wanted[:, best] += 1 - wanted.sum(axis=1)
        return mean, (1 - control.share) * wanted + control.share * always

    def update(
        self, x: Any, arm: str, reward: float, propensity: float = 1.0, *, own: bool = True
    ) -> None:
        """Learn from one answer.

        x: [d + f], what the arm was chosen by.
        reward: nan where the arm failed, which counts as the worst reward of the offline table.
        propensity: the chance that the arm had.
        own: this policy chose the arm. What others chose teaches about the arms, and says nothing
            of what this policy gains or spends.

        Raises PolicyError for an arm that the policy does not have, an infinite reward, or a
        propensity outside (0, 1].
        """
        at = arm_index(self.arms, arm)
        rows = as_rows(x, self.origin.width)
        if len(rows) != 1:
            raise PolicyError(f"update takes one answer at a time, not {len(rows)}")
        if not 0 < propensity <= 1:
            raise PolicyError(f"the propensity of an arm is in (0, 1], not {propensity:g}")
        if math.isinf(reward):
            raise PolicyError("a reward is infinite; use nan for an arm that failed")
        z = self._context.of(rows)
        earned = self._lowest if math.isnan(reward) else float(reward)
        with self._lock:
            self._learn(z, at, earned, float(propensity), own)

    def _learn(self, z: Float64, arm: int, reward: float, propensity: float, own: bool) -> None:
        state, best = self._state, self._state.best
        if own:
            self._account(z, arm, reward, propensity)
        changed = state.detectors[arm].add(self._beliefs.residual(z[0], arm, reward))
        self._beliefs.add(z[0], arm, reward, self._keep)
        self._traffic += (1 - self._keep) * (z[0] - self._traffic)
        state.requests += 1
        if changed:
            state.drifts[arm] += 1
            for other in range(len(self.arms)):
                self._beliefs.doubt(other, AFTER_DRIFT if other == arm else OTHERS)
        state.best = self._best_fixed()
        if changed or state.best != best:  # what was measured was of another world
            state.control = state.control.again()
            state.budget = Budget(state.budget.share)
            state.switched = False
        elif state.control.worse:
            state.switched = True

    def _account(self, z: Float64, arm: int, reward: float, propensity: float) -> None:
        """Book an answer in the control share and the budget."""
        state, best = self._state, self._state.best
        mean, spread = self._beliefs.predict(z)
        expected, sure = float(mean[0, best]), self._sure * float(spread[0, best])
        of_best = arm == best
        if of_best or propensity < 1:  # else the best fixed arm had no chance
            state.control = state.control.add(reward, expected, of_best, propensity)
        state.budget = state.budget.add(
            reward, expected - sure, expected + sure, of_best, self._keep
        )

    def _best_fixed(self) -> int:
        """The arm with the highest expected reward over requests as they come; the one that was it
        before, unless another is better by three standard errors."""
        mean, spread = self._beliefs.predict(self._traffic[None])
        best = self._state.best
        other = int(mean[0].argmax())
        lead = float(mean[0, other] - mean[0, best])
        doubt = float(np.hypot(spread[0, other], spread[0, best]))
        return other if lead > SETTLED * doubt else best

    @property
    def status(self) -> Status:
        with self._lock:
            state = self._state
            mean, low, high = state.control.gain
            return Status(
                requests=state.requests,
                best_fixed=self.arms[state.best],
                gain=mean,
                gain_low=low,
                gain_high=high,
                confidence=1 - 2 * state.control.own_level,
                switched_back=state.switched,
                drifts=dict(zip(self.arms, state.drifts, strict=True)),
            )

    def drift_evidence(self, arm: str) -> float:
        """How near the arm is to being called changed, 1 where it is. Raises PolicyError for an
        unknown arm, and where it has too few rewards to say anything."""
        with self._lock:
            return self._state.detectors[arm_index(self.arms, arm)].evidence()

    def arrays(self) -> dict[str, NDArray[Any]]:
        with self._lock:
            beliefs = {f"beliefs.{k}": v.copy() for k, v in self._beliefs.arrays().items()}
            return self._context.arrays() | beliefs | {"traffic": self._traffic.copy()}

    def settings(self) -> dict[str, Any]:
        with self._lock:
            return {
                "width": self._width,
                "explore": self._explore,
                "sure": self._sure,
                "keep": self._keep,
                "lowest": self._lowest,
                "offline": self._context.offline.settings(),
                "state": asdict(self._state),
            }

    def save(self, folder: str | Path) -> Path:
        with self._lock:  # numbers and settings of the same moment
            return super().save(folder)

    @classmethod
    def rebuild(
        cls, origin: Origin, settings: dict[str, Any], arrays: dict[str, NDArray[Any]]
    ) -> OnlinePolicy:
        settings = dict(settings)
        held = settings.pop("state")
        context = Context.rebuild(origin, settings.pop("offline"), arrays)
        parts = {
            "control": Control(**held["control"]),
            "budget": Budget(**held["budget"]),
            "detectors": [DriftDetector(**one) for one in held["detectors"]],
        }
        state = State(**(held | parts))
        beliefs = Beliefs(**below(arrays, "beliefs."))
        return cls(origin, context, beliefs, state, arrays["traffic"], **settings)
