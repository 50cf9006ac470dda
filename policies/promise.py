"""Quality for speed under a promise: arms that change the answer, as far as their loss is bounded.

The training table is cut in two, whole groups at a time. On one part the arms' rewards and losses
are learnt; on the other the knob z is calibrated: how large a predicted loss an arm may have and
still be chosen. See ``risk`` for what the calibration says and its sources.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .base import BasePolicy, origin_of
from .errors import PolicyError, unknown
from .knn import fit_knn
from .network import Layer, NetworkPolicy
from .promised import TEMPERATURE, Promise, PromisedPolicy, fastest_allowed
from .records import Fitted, Float64, RewardTable, arm_index
from .regression import fit_regression
from .risk import Risk

MODELS = ("mean", "ridge", "knn")  # simplest first
AUTO = "auto"
STEPS = 50  # of the ladder of z


def with_temperature(table: RewardTable) -> RewardTable:
    """The table with the feature that a promise needs: temperature 0 where it has no such column.

    Only for tables of greedy answers. Raises PolicyError where a row is not named by its group, as
    the rows of a query at several temperatures are not.
    """
    if TEMPERATURE in table.feature_names:
        return table
    if table.groups != table.query_ids:
        raise PolicyError(
            f"some rows are not of greedy answers, and the table does not say which: a promise "
            f"needs the feature {TEMPERATURE!r}, so leave it among those that the policy reads"
        )
    zeros = np.zeros((len(table), 1), dtype=np.float32)
    features = np.concatenate([table.features, zeros], axis=1)
    names = (*table.feature_names, TEMPERATURE)
    return replace(table, features=features, feature_names=names)


def losses_at_most_one(table: RewardTable, lossless: list[str]) -> Float64:
    """[n, A] losses as a promise counts them: 0 for a lossless arm, 1 for a lossy one that failed.

    Raises PolicyError where the table has no losses, an arm is unknown, or a lossless one lost
    something.
    """
    if table.losses is None:
        raise PolicyError("a promise needs the arms' losses, which this table lacks; collect again")
    losses = np.where(np.isnan(table.losses), 1.0, table.losses)
    free = [arm_index(table.arms, arm) for arm in lossless]
    lost = np.nan_to_num(table.losses[:, free]).max(axis=0, initial=0)
    if lost.any():
        raise PolicyError(
            f"the arm {lossless[int(lost.argmax())]} is said to be lossless but has lost up to "
            f"{lost.max():.3g} of an answer; name it among the lossy ones"
        )
    losses[:, free] = 0.0
    return np.asarray(losses, dtype=np.float64)


@dataclass(frozen=True, eq=False)
class Ladder:
    """What is learnt before the calibration: predictors, and the z to try, ascending.

    table: what it was learnt from.
    rewards, losses: predictors, whose scores are [n, A].
    limits: [Z], the z of the steps; none where no lossy arm is ever predicted to be the fastest.
    """

    table: RewardTable
    lossless: list[str]
    rewards: BasePolicy
    losses: BasePolicy
    limits: Float64

    @property
    def free(self) -> NDArray[np.bool_]:
        """[A], whether an arm is lossless."""
        return np.array([arm in self.lossless for arm in self.table.arms])

    def climb(self, table: RewardTable) -> NDArray[np.intp]:
        """[n, Z + 1] the arm at every step, the first of which allows lossless arms alone."""
        limits = np.concatenate([[-np.inf], self.limits])
        rewards, losses = self.rewards.scores(table.inputs), self.losses.scores(table.inputs)
        return fastest_allowed(rewards, losses, self.free, greedy_rows(table), limits)


def greedy_rows(table: RewardTable) -> NDArray[np.bool_]:
    """[n], whether the row is of a request at temperature 0."""
    place = table.feature_names.index(TEMPERATURE)
    return np.asarray(table.features[:, place] <= 0)


def learn(table: RewardTable, lossless: list[str], model: str = "ridge", seed: int = 0) -> Ladder:
    """The predictors and the ladder, from the part of a table that is not calibrated on.

    model: "ridge", "knn", or "mean", each arm's mean, whatever the query is.
    """
    if model not in MODELS:
        raise unknown("model of a promise", model, (AUTO, *MODELS))
    greedy = table.rows(np.flatnonzero(greedy_rows(table)))
    lossy = replace(greedy, rewards=losses_at_most_one(greedy, lossless), losses=None)
    rewards, losses = _predictor(table, model, seed), _predictor(lossy, model, seed)
    free = np.array([arm in lossless for arm in table.arms])
    fast, lost = rewards.scores(greedy.inputs), losses.scores(greedy.inputs)  # [m, A] both
    tempting = ~free & (fast > fast[:, free].max(axis=1, keepdims=True))
    limits = np.zeros(0)
    if tempting.any():
        shares = np.linspace(0, 1, STEPS + 1)[1:]
        found = np.unique(np.quantile(lost[tempting], shares, method="inverted_cdf"))
        limits = np.nextafter(found, np.inf)  # an arm is allowed below the limit, not at it
    return Ladder(table, lossless, rewards, losses, limits)


def _predictor(table: RewardTable, model: str, seed: int) -> BasePolicy:
    if model == "mean":
        return _means(table)
    made = fit_knn(table) if model == "knn" else fit_regression(table, None, seed)
    assert isinstance(made.policy, BasePolicy)
    return made.policy


def _means(table: RewardTable) -> NetworkPolicy:
    bias = table.filled().rewards.mean(axis=0).astype(np.float32)  # [A]
    layer = Layer(np.zeros((len(table.arms), table.width), dtype=np.float32), bias)
    zeros, ones = np.zeros(table.width, dtype=np.float32), np.ones(table.width, dtype=np.float32)
    return NetworkPolicy(origin_of("mean", table, 0, {}), [layer], zeros, ones, "reward")


@dataclass(frozen=True, eq=False)
class Calibration:
    """Every step of a ladder on every calibration query: what it loses and earns.

    losses, rewards, lossy: [m, Z + 1], means over the query's greedy rows; lossy is the share that
        a lossy arm serves, a failed arm's reward the worst that the row has.
    tasks: [m].
    """

    losses: Float64
    rewards: Float64
    lossy: Float64
    tasks: list[str]

    def __len__(self) -> int:
        return len(self.tasks)

    def steps(self, risk: Risk, queries: int | None = None) -> int:
        """The last step that keeps the promise; 0 is the lossless one.

        queries: what the means are taken to be over, None for those they are over.
        """
        means = risk.comparable(self.losses[:, 1:]).mean(axis=0)
        return int(risk.steps_kept(means, queries or len(self)))


def too_few(risk: Risk, here: int, share: float) -> str:
    """The sentence for a calibration that could keep nothing."""
    surely = "in expectation"
    if risk.confidence is not None:
        surely = f"with {100 * risk.confidence:.4g}% confidence"
    least = risk.least_queries
    return (
        f"a loss of at most {risk.max_loss:g} {surely} needs at least {least} queries answered at "
        f"temperature 0 to calibrate on, even where nothing is lost, and there are {here}; collect "
        f"at least {math.ceil(least / share)} to train on, of which {share:.0%} are calibrated "
        "on, or promise less"
    )


def calibrate(ladder: Ladder, table: RewardTable) -> Calibration:
    """The ladder on queries that it was not learnt from, at least one of them greedy; rows at a
    temperature above 0 are left out. Rows of one query count as one: only queries are
    exchangeable."""
    table = table.filled()
    table = table.rows(np.flatnonzero(greedy_rows(table)))
    chosen, rows = ladder.climb(table), np.arange(len(table))[:, None]
    _, first, member = np.unique(table.groups, return_index=True, return_inverse=True)
    losses = losses_at_most_one(table, ladder.lossless)
    return Calibration(
        losses=_by_query(losses[rows, chosen], member),
        rewards=_by_query(table.rewards[rows, chosen], member),
        lossy=_by_query(~ladder.free[chosen], member),
        tasks=[table.tasks[i] for i in first],
    )


def best_model(table: RewardTable, lossless: list[str], risk: Risk, queries: int, seed: int) -> str:
    """The model that would earn most if each half of the table's greedy queries, judging what was
    learnt from the other, were as many to calibrate on; the simplest of equals, and of very few."""
    greedy = table.rows(np.flatnonzero(greedy_rows(table)))
    if len(set(greedy.groups)) < 2:
        return MODELS[0]
    halves = parted(greedy, 0.5, seed)

    def worth(model: str) -> float:
        earned = 0.0
        for learning, held in (halves, halves[::-1]):
            found = calibrate(learn(learning, lossless, model, seed), held)
            earned += float(found.rewards[:, found.steps(risk, queries)].mean())
        return earned

    return max(MODELS, key=worth)


def _by_query(values: NDArray[Any], member: NDArray[np.intp]) -> Float64:
    """[n, Z] to [m, Z]: means over the rows of each query. member: [n], whose row it is."""
    counts = np.bincount(member)  # [m]
    sums = np.zeros((len(counts), values.shape[1]))
    np.add.at(sums, member, values)
    return sums / counts[:, None]


def fit_promised(
    table: RewardTable,
    validation: RewardTable | None = None,
    seed: int = 0,
    *,
    lossless: Sequence[str] = (),
    max_loss: float = 0.05,
    confidence: float = 0.95,
    in_expectation: bool = False,
    model: str = AUTO,
    calibration_share: float = 0.5,
) -> Fitted:
    """The fastest arm that keeps a promise about the loss of greedy answers.

    lossless: the arms that do not change the answer; they serve whatever the others may not.
    max_loss: the most that is lost on average over queries.
    confidence: that this is so, over calibrations; in_expectation: ignore it and promise that the
        loss is at most max_loss on average over calibrations.
    model: of rewards and losses alike: "ridge", "knn", "mean" (one arm for every query), or "auto"
        for the one that does best on what is learnt from (`best_model`).
    calibration_share: of the queries, not learnt from.

    The table has losses and the feature ``temperature`` (see ``with_temperature``), and rewards of
    speed. Where no lossy arm can keep the promise the policy takes lossless arms alone, and where
    what it takes does not surely earn more than the best lossless arm, that arm: falling back to no
    loss leaves the promise as it is. ``Promise.z`` is None in both cases.

    Raises PolicyError where the table lacks these, every arm is lossless, none is, or there are too
    few queries to promise anything.
    """
    risk = Risk(max_loss, None if in_expectation else confidence)
    lossless = list(lossless)
    _check(table, lossless)
    learning, held = parted(table, calibration_share, seed)
    here = len({g for g, greedy in zip(held.groups, greedy_rows(held), strict=True) if greedy})
    if here < risk.least_queries or not greedy_rows(learning).any():
        raise PolicyError(too_few(risk, here, calibration_share))
    chosen = best_model(learning, lossless, risk, here, seed) if model == AUTO else model
    ladder, fixed = learn(learning, lossless, chosen, seed), learn(learning, lossless, "mean")
    found, alone = calibrate(ladder, held), calibrate(fixed, held)
    step = found.steps(risk)
    gain, gain_low = _gain(found.rewards[:, step] - alone.rewards[:, 0])
    surely = gain_low > 0
    taken = ladder if surely else fixed
    best = _constant_arms(fixed, held)  # [Z + 1]
    promise = Promise(
        max_loss=max_loss,
        confidence=risk.confidence,
        method=risk.method,
        z=float(ladder.limits[step - 1]) if step and surely else None,
        queries=len(found),
        tasks={task: found.tasks.count(task) for task in sorted(set(found.tasks))},
        loss=float(found.losses[:, step].mean()),
        gain=gain,
        gain_low=gain_low,
        best_lossless=best[0],
        best_kept=best[alone.steps(risk)],
        **_alone(held, lossless),
    )
    options = {
        "lossless": lossless,
        "max_loss": max_loss,
        "confidence": confidence,
        "in_expectation": in_expectation,
        "model": chosen,
        "calibration_share": calibration_share,
        "promise": asdict(promise),
    }
    origin = origin_of("promised", table, seed, options)
    return Fitted(PromisedPolicy(origin, taken.rewards, taken.losses, lossless), [])


def _check(table: RewardTable, lossless: list[str]) -> None:
    if TEMPERATURE not in table.feature_names:
        raise PolicyError(
            f"a promise is about greedy answers, and the table lacks the feature {TEMPERATURE!r} "
            "that tells them; `policies.with_temperature` adds it where all answers are greedy"
        )
    losses_at_most_one(table, lossless)
    if not lossless:
        raise PolicyError(
            "a promise needs a lossless arm to fall back on; collect one too, such as "
            "autoregressive"
        )
    if set(lossless) == set(table.arms):
        raise PolicyError("every arm is lossless, so that nothing is lost; promise nothing")


def _alone(table: RewardTable, lossless: list[str]) -> dict[str, Any]:
    """What a promise tells of the rows that are calibrated on."""
    greedy = greedy_rows(table)
    losses, lossy = losses_at_most_one(table, lossless)[greedy], set(table.arms) - set(lossless)
    places = [i for i, arm in enumerate(table.arms) if arm in lossy]
    assert table.losses is not None
    return {
        "arm_losses": {table.arms[i]: float(losses[:, i].mean()) for i in places},
        "failed": int(np.isnan(table.losses[greedy][:, places]).sum()),
        "sampled": int((~greedy).sum()),
    }


def _constant_arms(fixed: Ladder, table: RewardTable) -> list[str]:
    """[Z + 1] the arm that a ladder of means takes for every greedy query, step by step."""
    chosen = fixed.climb(table)[greedy_rows(table)][0]
    return [table.arms[i] for i in chosen]


def _gain(gains: Float64) -> tuple[float, float]:
    """Mean and its lower bound (one-sided, 95%, Student's t) of [m] paired gains."""
    from scipy.stats import t

    mean, m = float(gains.mean()), len(gains)
    if m < 2:
        return mean, min(mean, 0.0)
    return mean, mean - float(t.ppf(0.95, m - 1) * gains.std(ddof=1) / np.sqrt(m))


def parted(table: RewardTable, share: float, seed: int) -> tuple[RewardTable, RewardTable]:
    """(to learn from, to calibrate on): whole groups, drawn without regard to their tasks, so that
    every query is as likely as any other to be calibrated on."""
    if not 0 < share < 1:
        raise PolicyError(f"the share to calibrate on must be above 0 and below 1, not {share:g}")
    groups = np.unique(table.groups)
    count = min(max(round(share * len(groups)), 1), len(groups) - 1)
    if count < 1:
        raise PolicyError("a promise needs queries to learn from and others to calibrate on")
    drawn = set(np.random.default_rng(seed).permutation(groups)[:count].tolist())
    held = np.array([group in drawn for group in table.groups])
    return table.rows(np.flatnonzero(~held)), table.rows(np.flatnonzero(held))
