"""How fast one arm of a collection is over another, task by task, by measured costs.

With --policy also what the policy's choice gives over that arm, and how often it takes --arm.
Geometric means of the queries' ratios of seconds, prompts excluded; 95% intervals over sources.

    python benchmarks/by_task.py rewards --arm hybrid-data --over hybrid
    python benchmarks/by_task.py others --arm hybrid-data --over hybrid --policy policy
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

import policies
from collect.queries import ordered
from collect.store.collection import Collection
from collect.table import reward_table
from collect.table_options import TableOptions
from policies.evaluation.bootstrap import interval, resampled_sums


def described(logs: np.ndarray, groups: list[str]) -> str:
    """logs: [n], of the ratios. groups: the source of each."""
    names = list(dict.fromkeys(groups))
    sums = np.zeros((len(names), 2))
    for group, value in zip(groups, logs, strict=True):
        sums[names.index(group)] += value, 1.0
    drawn = resampled_sums(sums, 0, 2000)
    low, high = np.exp(interval(drawn[:, 0] / drawn[:, 1], 0.95))
    return f"{np.exp(logs.mean()):.2f} ({low:.2f} to {high:.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rewards", type=Path, help="a collection")
    parser.add_argument("--arm", required=True)
    parser.add_argument("--over", required=True, help="the arm that it is compared with")
    parser.add_argument("--policy", help="a policy of the collection's arms")
    given = parser.parse_args()
    collection = Collection.open(given.rewards)
    policy = None if given.policy is None else policies.load(given.policy)
    for temperature in collection.manifest.identity.temperatures:
        features = None if policy is None else policy.origin.features
        options = TableOptions(
            "time-saved", temperatures=(temperature,), features=features, at_once=(1,)
        )
        table = reward_table(collection, options)
        spent = 1 - table.rewards  # of plain decoding's seconds
        arm, over = (table.arms.index(name) for name in (given.arm, given.over))
        taken = np.full(len(table), arm)
        if policy is not None:
            chosen = np.asarray(policy.distribution(table.inputs)).argmax(1)
            taken = np.array([table.arms.index(policy.arms[each]) for each in chosen])
        ratios = np.log(spent[:, over] / spent[np.arange(len(table)), taken])
        known = np.isfinite(ratios)  # where neither arm failed
        for task in ordered(table.tasks):
            rows = known & (np.array(table.tasks) == task)
            groups = [table.groups[at] for at in np.flatnonzero(rows)]
            share = "" if policy is None else f", {np.mean(taken[rows] == arm):.0%} {given.arm}"
            print(f"temperature {temperature:g}, {task}: {described(ratios[rows], groups)}{share}")


if __name__ == "__main__":
    main()
