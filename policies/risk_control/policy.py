"""A policy under risk control: the arm with the highest predicted reward among those allowed.

``fitting.fit_risk_control`` makes one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from decoders.common.tensor_files import below

from ..base import BasePolicy, as_rows
from ..errors import PolicyError
from ..learners.knn import NeighbourPolicy
from ..learners.network import NetworkPolicy
from ..records import Decision, Float32, Float64, Origin

TEMPERATURE = "temperature"  # the feature by which a request is known to be greedy (0)
PREDICTORS: dict[str, type[BasePolicy]] = {
    cls.kind: cls for cls in (NetworkPolicy, NeighbourPolicy)
}


@dataclass(frozen=True)
class Guarantee:
    """The bound on a policy's loss, and the calibration that it rests on.

    max_loss: the largest mean loss of answers at temperature 0; where queries share sources, of
        sources, each of which loses the mean of its queries.
    confidence: None where the bound holds in expectation over calibrations.
    method: "learn then test" or "conformal risk control".
    threshold: lambda; lossy arms with a predicted loss below it are allowed; None allows none.
    queries: calibration queries.
    sources: independent groups that they are in; None for each query its own.
    tasks: how many of them are of each task.
    loss: that mean on them under the policy.
    gain: their mean reward under the policy less that of the best lossless arm.
    gain_low: its lower bound (one-sided, 95%, `gain_of`); None where there are too few queries
        for one. Where it is not above 0, the policy is
        the best lossless arm for every query, threshold is None and nothing is lost.
    arm_losses: their mean loss under each lossy arm alone.
    failed: how often a lossy arm failed on one of them, which counts as a loss of 1.
    sampled: rows at temperatures above 0, to which the bound does not apply.
    best_lossless: the lossless arm with the highest mean reward.
    best_controlled: the fixed arm with the highest mean reward whose own loss is under control,
        calibrated the same way on the same queries.
    """

    max_loss: float
    confidence: float | None
    method: str
    threshold: float | None
    queries: int
    tasks: dict[str, int]
    loss: float
    gain: float
    gain_low: float | None
    arm_losses: dict[str, float]
    failed: int
    sampled: int
    best_lossless: str
    best_controlled: str
    sources: int | None = None

    def __str__(self) -> str:
        """One sentence for people."""
        strength = (
            "on average over calibrations"
            if self.confidence is None
            else f"with {100 * self.confidence:.4g}% confidence"
        )
        tasks = ", ".join(f"{task} {n}" for task, n in self.tasks.items())
        of = "" if self.sources is None else f" of {self.sources} sources"
        over = f"the {self.queries} calibration queries{of} ({tasks})"
        if self.threshold is not None:
            alike = "" if self.sources is None else " over sources, which count alike"
            return (
                f"Guaranteed {strength}: greedy answers to queries like {over} lose at most "
                f"{self.max_loss:g} on average{alike}; other traffic voids this, and requests at a "
                "temperature above 0 are left to lossless arms."
            )
        losses = ", ".join(f"{arm} {loss:.3f}" for arm, loss in self.arm_losses.items())
        why = (
            f"what loses at most {self.max_loss:g} {strength} is not faster than "
            f"{self.best_lossless} with 95% confidence"
            if self.loss > 0
            else f"none that is faster is shown to lose at most {self.max_loss:g} {strength}"
        )
        return (
            f"No lossy arm is used: on {over}, where they lose {losses}, {why}. Every answer is "
            "lossless; allow more loss, or collect more queries."
        )


class RiskControlPolicy(BasePolicy):
    """The arm with the highest predicted reward among the lossless ones and, for a greedy request,
    those whose predicted loss is below the guarantee's threshold.

    rewards, losses: predictors, whose scores are [n, A].
    lossless: arms that are always allowed, at least one.

    The input holds the request's temperature among its features.
    """

    kind = "risk-control"

    def __init__(
        self, origin: Origin, rewards: BasePolicy, losses: BasePolicy, lossless: list[str]
    ) -> None:
        super().__init__(origin)
        if TEMPERATURE not in origin.features:
            raise PolicyError(f"a policy under risk control reads the feature {TEMPERATURE!r}")
        if not lossless or not set(lossless) <= set(origin.arms):
            raise PolicyError("a policy under risk control needs a lossless arm among its arms")
        self.guarantee = Guarantee(**origin.options["guarantee"])
        self._rewards, self._losses = rewards, losses
        self._lossless = list(lossless)
        self._free = np.array([arm in lossless for arm in origin.arms])  # [A]
        self._place = origin.dimension + origin.features.index(TEMPERATURE)

    @property
    def lossless(self) -> list[str]:
        """The arms that may serve any request."""
        return list(self._lossless)

    def scores(self, x: Any) -> Float64:
        """[n, A] predicted rewards, those of arms that are not allowed included."""
        return self._rewards.scores(x)

    def distribution(self, x: Any) -> Float64:
        rows = as_rows(x, self.origin.width)
        return self._fastest(rows, self.scores(rows))

    def choose(self, x: Any, rng: np.random.Generator | None = None) -> Decision:
        rows = as_rows(x, self.origin.width)
        scores = self.scores(rows)
        return self.decide(scores, self._fastest(rows, scores), rng)

    def _fastest(self, rows: Float32, rewards: Float64) -> Float64:
        """[n, A]: all on the allowed arm with the highest predicted reward."""
        thresholds = [-np.inf if self.guarantee.threshold is None else self.guarantee.threshold]
        greedy = rows[:, self._place] <= 0
        predicted = self._losses.scores(rows)
        chosen = fastest_allowed(rewards, predicted, self._free, greedy, np.array(thresholds))
        return np.asarray(np.eye(rewards.shape[1])[chosen[:, 0]], dtype=np.float64)

    def arrays(self) -> dict[str, NDArray[Any]]:
        parts = (("rewards", self._rewards), ("losses", self._losses))
        return {f"{part}.{k}": v for part, of in parts for k, v in of.arrays().items()}

    def settings(self) -> dict[str, Any]:
        return {
            "lossless": self._lossless,
            "rewards": {"kind": self._rewards.kind, "settings": self._rewards.settings()},
            "losses": {"kind": self._losses.kind, "settings": self._losses.settings()},
        }

    @classmethod
    def rebuild(
        cls, origin: Origin, settings: dict[str, Any], arrays: dict[str, NDArray[Any]]
    ) -> RiskControlPolicy:
        def predictor(part: str) -> BasePolicy:
            made = PREDICTORS[settings[part]["kind"]]
            own = below(arrays, f"{part}.")
            return made.rebuild(origin, settings[part]["settings"], own)

        return cls(origin, predictor("rewards"), predictor("losses"), settings["lossless"])


def fastest_allowed(
    rewards: Float64,
    losses: Float64,
    free: NDArray[np.bool_],
    greedy: NDArray[np.bool_],
    thresholds: Float64,
) -> NDArray[np.intp]:
    """[n, Z] index of the arm with the highest predicted reward, the first of equals, among those
    that a limit allows: the free ones, and for a greedy request those that lose less than it.

    rewards, losses: [n, A] predicted; free: [A]; greedy: [n]; thresholds: [Z].
    """
    small = (losses[:, None] < thresholds[None, :, None]) & greedy[:, None, None]  # [n, Z, A]
    return np.asarray(
        np.where(free | small, rewards[:, None], -np.inf).argmax(axis=2), dtype=np.intp
    )
