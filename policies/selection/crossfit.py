"""Cross-fitting: every query is judged by a choice that was made without it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import PolicyError
from ..evaluation.evaluate import aligned
from ..evaluation.units import Units, best_fixed_index
from ..fitting import fit
from ..fixed import one_hot
from ..records import Float64, RewardTable, by_task


def subsample(table: RewardTable, queries: int, seed: int) -> RewardTable:
    """`queries` of the table's, every task in its proportion, with all of their rows.

    For one seed a smaller choice is part of every larger one. Raises PolicyError for fewer than 1
    and for more than there are.
    """
    known = len(set(table.query_of))
    if not 1 <= queries <= known:
        raise PolicyError(
            f"cannot learn from {queries} queries: the table has {known}; take 1 to {known}, or "
            "collect more"
        )
    rng = np.random.default_rng(seed)
    place: dict[str, float] = {}  # where in its task's random order, from 0 to 1
    for members in by_task(table.query_of, table.tasks).values():
        for rank, i in enumerate(rng.permutation(len(members))):
            place[members[i]] = (rank + rng.random()) / len(members)
    kept = set(sorted(place, key=lambda query: place[query])[:queries])
    return table.rows([i for i, query in enumerate(table.query_of) if query in kept])


FOLDS = 5
MIN_GROUPS = 20  # groups of queries below which nothing is estimated

# (training rows, other rows) -> [m, A], a distribution over arms for each of the other rows
Chooser = Callable[[RewardTable, RewardTable], Float64]


@dataclass(frozen=True, eq=False)
class Usable:
    """A table without gaps, and what was left out or filled to make it one.

    kept: [m], which rows of the original are left.
    dropped: rows on which every arm failed.
    failed: (row, arm) pairs that failed on the rows that are left; they count as the row's worst
        reward, in what is learnt and in what is judged.
    """

    table: RewardTable
    kept: NDArray[np.intp]
    dropped: int
    failed: int

    def words(self) -> str:
        """Say what was left out; empty where nothing was."""
        sentences = []
        if self.dropped:
            sentences.append(f"{self.dropped} rows on which every arm failed are left out")
        if self.failed:
            sentences.append(f"{self.failed} failed answers count as the worst of their query")
        return "; ".join(sentences)


def usable(table: RewardTable) -> Usable:
    """The table as cross-fitting reads it.

    Raises PolicyError where a row is there twice, where one row's name has two groups, and where no
    arm ever succeeded.
    """
    seen: set[tuple[str, bytes, bytes]] = set()
    group_of: dict[str, str] = {}
    for i, name in enumerate(table.query_ids):
        row = (name, table.features[i].tobytes(), table.rewards[i].tobytes())
        if row in seen:
            raise PolicyError(f"the query {name!r} is in the table twice; leave one of them out")
        seen.add(row)
        if group_of.setdefault(name, table.groups[i]) != table.groups[i]:
            raise PolicyError(
                f"the query {name!r} is in two groups, {group_of[name]!r} and "
                f"{table.groups[i]!r}; rows of one query need the same group"
            )
    filled = table.filled()
    kept = ~np.isnan(table.rewards).all(axis=1)
    failed = int(np.isnan(table.rewards[kept]).sum())
    return Usable(filled, np.flatnonzero(kept), int((~kept).sum()), failed)


def folds_of(table: RewardTable, seed: int) -> NDArray[np.intp]:
    """[n], each row's fold: groups stay together, and every task is spread over all folds."""
    rng = np.random.default_rng(seed)
    fold_of: dict[str, int] = {}
    for members in by_task(table.groups, table.tasks).values():
        for i in rng.permutation(len(members)):
            fold_of[members[i]] = len(fold_of) % FOLDS  # goes on where the last task ended
    return np.array([fold_of[group] for group in table.groups], dtype=np.intp)


def cross_fit(table: RewardTable, fold_of: NDArray[np.intp], chooser: Chooser) -> Float64:
    """[n, A], each row's distribution over arms, chosen from the other folds alone."""
    probs = np.empty(table.rewards.shape)
    for fold in np.unique(fold_of):
        held = np.flatnonzero(fold_of == fold)
        train = np.flatnonzero(fold_of != fold)
        probs[held] = chooser(table.rows(train), table.rows(held))
    return probs


def earned(table: RewardTable, probs: Float64) -> Float64:
    """[n], what the most likely arms earn; of a table without gaps, as `usable` gives it."""
    return np.asarray(table.rewards[np.arange(len(table)), probs.argmax(axis=1)])


def gains_by_costs(
    table: RewardTable, ours: Float64, theirs: Float64, units: Units
) -> Float64 | None:
    """[R], by each measurement of the costs, the mean over queries of what the most likely arms of
    `ours` [n, A] earn more than those of `theirs`; None where costs play no part or were measured
    once."""
    if table.repeats is None:
        return None
    rows = np.arange(len(table))
    mine, base = (table.repeats[:, rows, chosen.argmax(axis=1)] for chosen in (ours, theirs))
    return np.asarray(units.by_query((mine - base).T).mean(axis=0))


def best_fixed(train: RewardTable, held: RewardTable) -> Float64:
    """A Chooser: the best fixed arm."""
    return np.tile(one_hot(len(train.arms), best_fixed_index(train)), (len(held), 1))


def learned(policy: str, seed: int, options: dict[str, Any]) -> Chooser:
    """A Chooser: the distribution of a policy trained by `fit`."""

    def chooser(train: RewardTable, held: RewardTable) -> Float64:
        return aligned(fit(policy, train, None, seed, **options).policy, held)

    return chooser


def too_few(units: Units, purpose: str, least: int = MIN_GROUPS) -> str:
    """A sentence for a table of fewer groups than that."""
    what = "" if units.groups == units.queries else " independent sources"
    return f"{units} are too few {purpose}; collect at least {least}{what}"
