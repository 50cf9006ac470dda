"""The gain that a policy could have over the best fixed arm, before any is trained.

Every choice is made on other queries than those that it is judged on (five folds), but for the
oracle and the best fixed arm, which is chosen on all of them, as the guard does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from decoders.common.errors import NoSuchName

from ..errors import PolicyError
from ..evaluation.bootstrap import ratio_interval
from ..evaluation.bounds import gain_of, resamples
from ..evaluation.evaluate import references
from ..evaluation.scale import percent
from ..evaluation.units import Units, best_fixed_index, units_of
from ..learners.binned import MAX_BINS, bins_of, splitting_features, splitting_pairs
from ..records import Float64, RewardTable
from .advice import ArmWins, Choice, Headroom, Part, advice
from .crossfit import (
    MIN_GROUPS,
    Chooser,
    best_fixed,
    cross_fit,
    earned,
    folds_of,
    gains_by_costs,
    learned,
    too_few,
    usable,
)

LEARNERS = {"ridge": "regression", "kNN": "knn"}


def headroom(table: RewardTable, by: Sequence[str] = (), seed: int = 0) -> Headroom:
    """The headroom of a table.

    by: features to look at; without any, all that split the table (`splitting_features`).

    The oracle of a query that is there once is optimistic where rewards are timed, and where a
    single drawn answer judges them. Where the table does not say which were drawn, rows with a
    temperature above 0 are taken for it.

    Raises PolicyError for a feature that the table lacks, for a single arm, for fewer than 20
    queries, and for a table that `usable` refuses.
    """
    for name in by:
        if name not in table.feature_names:
            raise NoSuchName("feature", name, table.feature_names)
    found = usable(table)
    rows = found.table
    units = units_of(rows)
    if len(rows.arms) < 2:
        raise PolicyError(
            f"the table has one arm, {rows.arms[0]}, so that there is nothing to choose; collect "
            "with more arms"
        )
    if units.groups < MIN_GROUPS:
        raise PolicyError(too_few(units, "to estimate the headroom"))
    oracle = oracle_of(rows, seed)
    folds = folds_of(rows, seed)
    features = list(by) or splitting_features(rows)
    together = [pair for pair in splitting_pairs(rows) if set(pair) <= set(features)]
    choosers = _choosers(features, together, len(set(rows.tasks)) > 1, seed)
    probs = {"best fixed": best_fixed(rows, rows)}
    probs |= {name: cross_fit(rows, folds, one) for name, (_, one) in choosers.items()}
    values = {name: earned(rows, chosen) for name, chosen in probs.items()}
    arms = {name: chosen.argmax(axis=1) for name, chosen in probs.items()}
    arms["oracle"], values["oracle"] = rows.best_arms(), oracle.values
    kinds = {"best fixed": "fixed"} | {name: kind for name, (kind, _) in choosers.items()}
    kinds["oracle"] = "oracle"
    choices = _judged(values, arms, probs, kinds, rows, units, seed)
    arm = rows.arms[best_fixed_index(rows)]
    known = rows.drawn is not None and not rows.timed
    optimistic = oracle.drawn_once > 0 if known else rows.lucky and oracle.single > 0
    draws = rows.draws[rows.draws > 0]
    made = Headroom(
        reward=rows.reward_name,
        queries=units.queries,
        groups=units.groups,
        best_fixed=arm,
        choices=choices,
        parts=_parts(rows, values["best fixed"], oracle.values, features),
        arms=_wins(rows),
        repeated=oracle.repeated,
        single=oracle.single,
        optimistic=optimistic,
        draws=int(draws.min()) if len(draws) else 0,
        oracle_at_most=float(units.by_query(oracle.at_most).mean()),
        left_out=found.words(),
        advice=[],
    )
    return replace(made, advice=advice(made, _lead(rows, arm)))


def _choosers(
    features: Sequence[str], together: Sequence[tuple[str, str]], tasks: bool, seed: int
) -> dict[str, tuple[str, Chooser]]:
    """Name -> (kind, chooser), simplest first."""
    found: dict[str, tuple[str, Chooser]] = {}
    for name in features:
        found[f"best by {name}"] = ("feature", learned("binned", seed, {"feature": name}))
    for feature, second in together:
        options = {"feature": feature, "second_feature": second}
        found[f"best by {feature} and {second}"] = ("feature", learned("binned", seed, options))
    if tasks:
        found["best by task"] = "task", lambda train, held: references(held, train)["per-task-best"]
    for name, policy in LEARNERS.items():
        found[name] = ("learner", learned(policy, seed, {}))
    return found


def _judged(
    values: dict[str, Float64],
    arms: dict[str, NDArray[np.intp]],
    probs: dict[str, Float64],
    kinds: dict[str, str],
    rows: RewardTable,
    units: Units,
    seed: int,
) -> list[Choice]:
    each = {name: units.by_query(found) for name, found in values.items()}  # [Q]
    fixed = each["best fixed"]
    counts, one_more = units.resample(seed), resamples(units, seed)
    base = float(fixed.mean())
    gap = float(each["oracle"].mean()) - base
    tests = len(each) - 2  # the best fixed arm and the oracle are not chosen from
    choices = []
    for name, mine in each.items():
        low, high = ratio_interval(mine, np.ones(len(mine)), units.group_of_query, counts)
        by_costs = None
        if name in probs:  # of the oracle no bound is told
            by_costs = gains_by_costs(rows, probs[name], probs["best fixed"], units)
        gain = gain_of(mine - fixed, units, one_more, tests, by_costs)
        choices.append(
            Choice(
                name=name,
                kind=kinds[name],
                mean=float(mine.mean()),
                low=low,
                high=high,
                gain=gain,
                percent=percent(gain.mean, base, rows.reward_name),
                gap_share=gain.mean / gap if gap > 0 else None,
                arms=_shares(arms[name], rows.arms, units),
            )
        )
    return choices


def _shares(chosen: NDArray[np.intp], arms: Sequence[str], units: Units) -> dict[str, float]:
    counts = np.bincount(chosen, units.share_of_row, len(arms))
    return {arms[i]: float(counts[i]) for i in np.argsort(-counts, kind="stable") if counts[i]}


def _parts(
    rows: RewardTable, fixed: Float64, oracle: Float64, features: Sequence[str]
) -> list[Part]:
    tasks = sorted(set(rows.tasks))
    members = [("task", task, np.array([t == task for t in rows.tasks])) for task in tasks]
    for name in features:
        bins = bins_of(_column(rows, name), MAX_BINS)
        which = bins.of(_column(rows, name))
        members += [(name, words, which == i) for i, words in enumerate(bins.names())]
    count = units_of(rows).share_of_row
    gap = float(count @ (oracle - fixed))
    found = []
    for by, name, mask in members:
        if not mask.any():
            continue
        here = count[mask]
        means = np.average(rows.rewards[mask], 0, here)
        arm = int(means.argmax())
        share = float(here @ (oracle - fixed)[mask]) / gap if gap > 0 else None
        at_fixed, at_oracle = (float(np.average(e[mask], None, here)) for e in (fixed, oracle))
        found.append(
            Part(by, name, int(mask.sum()), rows.arms[arm], float(means[arm]),
                 at_fixed, at_oracle, share)
        )  # fmt: skip
    return found


def _wins(rows: RewardTable) -> list[ArmWins]:
    count, ordered = units_of(rows).share_of_row, np.sort(rows.rewards, axis=1)
    top, lead = ordered[:, -1], ordered[:, -1] - ordered[:, -2]
    winners = rows.rewards == top[:, None]
    shares = winners / winners.sum(axis=1, keepdims=True)
    return [
        ArmWins(
            arm=arm,
            mean=float(count @ rows.rewards[:, i]),
            wins=float(count @ shares[:, i]),
            lead=float(np.average(lead[won], None, count[won])) if won.any() else None,
        )
        for i, (arm, won) in enumerate(zip(rows.arms, winners.T, strict=True))
    ]


def _lead(rows: RewardTable, arm: str) -> float:
    """Average the lead of the best arm over this one, over the rows on which it is another."""
    behind = rows.rewards.max(axis=1) - rows.rewards[:, rows.arms.index(arm)]
    there = behind > 0
    if not there.any():
        return 0.0
    return float(np.average(behind[there], None, units_of(rows).share_of_row[there]))


def _column(rows: RewardTable, name: str) -> NDArray[Any]:
    return rows.features[:, rows.feature_names.index(name)]


@dataclass(frozen=True, eq=False)
class Oracle:
    """The reward of choosing the best arm of every query, with the optimism of noise taken off
    where answers were repeated.

    Choosing by all of an arm's noisy rewards and valuing it by the same leans high; choosing by one
    half of them and valuing by the other leans low, as half of them chooses worse than all. The
    truth lies between.

    values: [n], at least, where noise is taken off.
    at_most: [n], with the noise.
    repeated: queries that are in the table more than once, or for which several answers were drawn,
        whose noise is taken off.
    single: the others.
    drawn_once: how many of those are judged by a single drawn answer.
    """

    values: Float64
    at_most: Float64
    repeated: int
    single: int
    drawn_once: int


def oracle_of(table: RewardTable, seed: int = 0) -> Oracle:
    """The oracle of a table without gaps.

    Rows of one query with the same features are repeats of one query. The best of several noisy
    rewards looks better than it is; where a query has repeats, they are parted at random into two
    halves, the arm that is best on the one is valued on the other, and the other way round, and
    both values are averaged. So are the draws of a row (`RewardTable.drawn`). A query that is there
    once counts at its maximum, which is exact where the reward has no noise, and optimistic where
    it has.
    """
    members: dict[tuple[str, bytes], list[int]] = {}
    for i, query in enumerate(table.query_of):
        members.setdefault((query, table.features[i].tobytes()), []).append(i)
    values = table.rewards.max(axis=1)
    at_most = values.copy()
    rng = np.random.default_rng(seed)
    repeated = [np.array(rows) for rows in members.values() if len(rows) > 1]
    for rows in repeated:
        values[rows] = _by_halves(table.rewards[rows], rng)
        at_most[rows] = table.rewards[rows].mean(axis=0).max()
    draws, drawn_once, several = table.draws, 0, 0
    for row in (rows[0] for rows in members.values() if len(rows) == 1):
        drawn_once += int(draws[row] == 1)
        if draws[row] > 1 and table.drawn is not None:
            each = table.drawn[:, row]
            values[row] = _by_halves(each[~np.isnan(each).any(axis=1)], rng)
            several += 1
    found = len(repeated) + several
    return Oracle(values, at_most, found, len(members) - found, drawn_once)


def _by_halves(rewards: Float64, rng: np.random.Generator) -> float:
    """Judge one query by its [k, A] rewards, k > 1."""
    order = rng.permutation(len(rewards))
    one, other = rewards[order[: len(order) // 2]], rewards[order[len(order) // 2 :]]
    return (_chosen_on(one, other) + _chosen_on(other, one)) / 2


def _chosen_on(one: Float64, other: Float64) -> float:
    return float(other[:, int(one.mean(axis=0).argmax())].mean())
