"""The value of a policy on a full reward table: exact, with a bootstrap interval over groups of
queries."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ..errors import PolicyError
from ..records import Float64, Policy, RewardTable, by_task
from .bootstrap import CONFIDENCE, RESAMPLES, ratio, ratio_interval
from .bounds import costs_margin, widened
from .units import Units, best_fixed_index, units_of

OPTIMISTIC = (
    "the oracle chooses by the very timings, or answers drawn at a temperature above 0, that it is "
    "judged by: it is optimistic, and so are the regret and the gap to it; `draftpick headroom` "
    "takes that off where queries were timed or drawn several times"
)

# Below this, the probability that a policy leaves to the arms that did not fail is rounding, and
# rescaling it would report noise.
LEAST_MASS = 1e-6


@dataclass(frozen=True)
class Value:
    """The expected reward of one way to choose, over the table's queries.

    mean: over queries, each counted once, whose rows are averaged first.
    low, high: bootstrap interval (groups resampled, with all of their queries; percentiles); nan
        where there are fewer than two groups.
    queries: how many counted; one on whose rows every arm that could be chosen failed does not.
    failed_mass: mean probability put on arms that failed; above 0, mean is over the arms that did
        not (rescaled).
    """

    name: str
    mean: float
    low: float
    high: float
    queries: int
    failed_mass: float = 0.0

    def interval(self, to: str = " to ") -> str:
        """The interval in words; a dash where there is none."""
        return f"{self.low:.4f}{to}{self.high:.4f}" if math.isfinite(self.low) else "-"


@dataclass(frozen=True)
class Evaluation:
    """A policy next to the reference rows, all on the same queries and the same resamples.

    rows: "greedy" and "dynamic" (the policy), "uniform", "fixed/<arm>" for every arm, "best-fixed",
        "per-task-best", "oracle".
    gain: greedy minus best-fixed, paired per query; its interval includes the costs' own error.
    best_fixed: the arm behind that row.
    by_task: task -> {row name: mean}.
    choices: [tasks, A], the share of a task's queries on which the greedy policy takes the arm.
    tasks: their order.
    optimistic: whether the oracle chooses by luck in part (`RewardTable.lucky`).
    """

    rows: list[Value]
    gain: Value
    best_fixed: str
    by_task: dict[str, dict[str, float]]
    tasks: list[str]
    choices: Float64
    optimistic: bool

    @property
    def oracle(self) -> str:
        """The oracle's name in a table."""
        return "oracle (optimistic)" if self.optimistic else "oracle"

    def __getitem__(self, name: str) -> Value:
        for row in self.rows:
            if row.name == name:
                return row
        raise KeyError(name)


def greedy_probs(probs: Float64) -> Float64:
    """[n, A] -> [n, A]: all mass on the most likely arm, the first of equals."""
    return np.asarray(np.eye(probs.shape[1])[probs.argmax(axis=1)], dtype=np.float64)


def per_query(probs: Float64, rewards: Float64) -> Float64:
    """[n] expected reward of each row, over the arms that did not fail; nan where none is left.

    probs, rewards: [n, A], nan in rewards for a failed arm. The probabilities of the arms that
    are left are rescaled to sum to 1: the value of drawing again when the drawn arm fails.
    """
    seen = ~np.isnan(rewards)
    mass = (probs * seen).sum(axis=1)
    total = (probs * np.where(seen, rewards, 0.0)).sum(axis=1)
    usable = mass > LEAST_MASS
    values = np.full(len(probs), np.nan)
    values[usable] = total[usable] / mass[usable]
    return values


def value(
    policy: Policy,
    table: RewardTable,
    *,
    greedy: bool = False,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Value:
    """The policy's exact value: the mean over queries of sum_a pi(a|x) r(x, a).

    greedy: take the most likely arm instead of sampling. Raises PolicyError where the policy's
    arms are not the table's.
    """
    probs = aligned(policy, table)
    probs = greedy_probs(probs) if greedy else probs
    units = units_of(table)
    counts = units.resample(seed, resamples)
    name = "greedy" if greedy else "dynamic"
    return _value(name, probs, table.rewards, units, counts)


def references(table: RewardTable, train: RewardTable | None = None) -> dict[str, Float64]:
    """Row name -> [n, A] probabilities, for every reference row.

    train: where the best fixed arm and the best arm of each task are chosen; the table itself
    where it is None, which is optimistic for both. A task that train does not have takes the best
    fixed arm. The oracle always sees the table. Raises PolicyError where the arms differ.
    """
    chosen_on = table if train is None else train
    if chosen_on.arms != table.arms:
        raise PolicyError(
            f"the training table has the arms {', '.join(chosen_on.arms)}, the other one "
            f"{', '.join(table.arms)}; evaluate on a table of the same arms"
        )
    n, size = table.rewards.shape
    rows = {"uniform": np.full((n, size), 1 / size)}
    for i, arm in enumerate(table.arms):
        rows[f"fixed/{arm}"] = np.tile(np.eye(size)[i], (n, 1))
    best = best_fixed_index(chosen_on)
    rows["best-fixed"] = rows[f"fixed/{table.arms[best]}"]
    of_task = {task: _best_of_task(chosen_on, task, best) for task in sorted(set(table.tasks))}
    rows["per-task-best"] = np.eye(size)[[of_task[task] for task in table.tasks]]
    rows["oracle"] = np.eye(size)[
        np.where(np.isnan(table.rewards), -np.inf, table.rewards).argmax(1)
    ]
    return rows


def report(
    policy: Policy,
    table: RewardTable,
    train: RewardTable | None = None,
    *,
    probs: Float64 | None = None,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Evaluation:
    """The policy, greedy and dynamic, next to all reference rows (see ``references`` for train).

    probs: [n, A], what the policy chooses on the table's rows, where it is known by other means
        than asking it, such as by cross-fitting.
    """
    probs = aligned(policy, table) if probs is None else probs
    distributions = {"greedy": greedy_probs(probs), "dynamic": probs} | references(table, train)
    units = units_of(table)
    counts = units.resample(seed, resamples)
    rows = [_value(name, pi, table.rewards, units, counts) for name, pi in distributions.items()]
    each = {
        name: _by_query(per_query(pi, table.rewards), units) for name, pi in distributions.items()
    }
    ours, theirs = distributions["greedy"], distributions["best-fixed"]

    def apart(rewards: Float64) -> Float64:
        """[Q], how much more we earn."""
        return _by_query(per_query(ours, rewards) - per_query(theirs, rewards), units)

    gains = apart(table.rewards)
    low, high = _interval(gains, units, counts)
    if table.repeats is not None:
        moved = [_mean(apart(rewards)) for rewards in table.repeats]
        mean = _mean(gains)
        margin = costs_margin(mean, np.array(moved), (1 + CONFIDENCE) / 2)
        low, high = widened(mean, (low, high), margin)
    paired = int((~np.isnan(gains)).sum())
    place = {query: i for i, query in enumerate(dict.fromkeys(table.query_of))}
    of_task = by_task(table.query_of, table.tasks)
    members = {task: [place[query] for query in queries] for task, queries in of_task.items()}
    chosen, tasks = units.by_query(ours), list(members)
    return Evaluation(
        rows=rows,
        gain=Value("greedy - best-fixed", _mean(gains), low, high, paired),
        best_fixed=table.arms[best_fixed_index(table if train is None else train)],
        by_task={t: {name: _mean(v[members[t]]) for name, v in each.items()} for t in tasks},
        tasks=tasks,
        choices=np.stack([chosen[members[t]].mean(axis=0) for t in tasks]),
        optimistic=table.lucky,
    )


def aligned(policy: Policy, table: RewardTable) -> Float64:
    """[n, A]: the policy's distribution in the table's arm order; arms it does not know get 0.

    Raises PolicyError where the policy has an arm that the table lacks.
    """
    missing = [arm for arm in policy.arms if arm not in table.arms]
    if missing:
        raise PolicyError(
            f"the policy chooses among {', '.join(policy.arms)}, but the table has no rewards "
            f"for {', '.join(missing)}; collect them or train a policy for the table's arms"
        )
    probs = np.zeros(table.rewards.shape)
    probs[:, [table.arms.index(arm) for arm in policy.arms]] = policy.distribution(
        table.read_by(policy.origin)
    )
    return probs


def _best_of_task(table: RewardTable, task: str, otherwise: int) -> int:
    rows = [i for i, t in enumerate(table.tasks) if t == task]
    if not rows or np.isnan(table.rewards[rows]).all():
        return otherwise
    return best_fixed_index(table.rows(rows))


def _value(name: str, probs: Float64, rewards: Float64, units: Units, counts: Float64) -> Value:
    values = _by_query(per_query(probs, rewards), units)
    low, high = _interval(values, units, counts)
    failed = float(units.by_query((probs * np.isnan(rewards)).sum(axis=1)).mean())
    return Value(name, _mean(values), low, high, int((~np.isnan(values)).sum()), failed)


def _by_query(values: Float64, units: Units) -> Float64:
    """[n] to [Q], the mean of each query's rows that count; nan where none does."""
    seen = ~np.isnan(values)
    return ratio(units.by_query(np.where(seen, values, 0.0)), units.by_query(seen))


def _mean(values: Float64) -> float:
    seen = values[~np.isnan(values)]
    return float(seen.mean()) if len(seen) else math.nan


def _interval(values: Float64, units: Units, counts: Float64) -> tuple[float, float]:
    """`ratio_interval` of the mean of [Q] values, counts [B, G]."""
    seen = ~np.isnan(values)
    return ratio_interval(np.where(seen, values, 0.0), seen, units.group_of_query, counts)
