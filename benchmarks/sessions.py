"""How far figures by measured costs move from one session to the next.

Each collection is of the same queries and arms on one machine, made by a process of its own, so
that the answers are the same and the costs are measured anew. Of the time that an arm saves, in
percent, printed for each setting and for all together: the mean of the sessions, the standard
deviation between them, and the standard error of a mean as the measurements within one session tell
it. With --over, the same of what each arm saves more than that one; with --policy, of its choices.

    python benchmarks/sessions.py rewards-1 rewards-2 rewards-3
    python benchmarks/sessions.py rewards-1 rewards-2 rewards-3 --over hybrid --policy policy
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import policies
from collect.store.collection import Collection
from collect.table import reward_table
from collect.table_options import TableOptions
from policies.base import BasePolicy

Float64 = NDArray[np.float64]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rewards", nargs="+", type=Path, help="collections of the same queries")
    parser.add_argument("--over", help="the arm that the others are compared with")
    parser.add_argument("--policy", help="a policy of the collections' arms")
    given = parser.parse_args()
    collections = [Collection.open(folder) for folder in given.rewards]
    policy = None if given.policy is None else policies.load(given.policy)
    identity = collections[0].manifest.identity
    settings = [(t, n) for t in identity.temperatures for n in identity.at_once]
    print("setting, arm: mean, deviation between sessions, standard error within one")
    for temperature, at_once in [(None, None), *settings]:
        options = TableOptions(
            "time-saved",
            features=None if policy is None else policy.origin.features,
            temperatures=None if temperature is None else (temperature,),
            at_once=None if at_once is None else (at_once,),
        )
        tables = [saved(collection, options, policy) for collection in collections]
        label = "all" if temperature is None else f"temperature {temperature:g}, {at_once} at once"
        for name in tables[0]:
            less = (0.0, 0.0) if given.over in (None, name) else None
            means, errors = [], []
            for table in tables:
                mean, repeats = table[name]
                if less is None:
                    mean, repeats = mean - table[given.over][0], repeats - table[given.over][1]
                means.append(mean)
                errors.append(repeats.std(ddof=1) / len(repeats) ** 0.5)
            spread = np.std(means, ddof=1)
            said = f"{100 * np.mean(means):.2f}, {100 * spread:.2f}, {100 * np.mean(errors):.2f}"
            print(f"{label}, {name}{'' if less else ' more than ' + given.over}: {said}")


def saved(
    collection: Collection, options: TableOptions, policy: BasePolicy | None
) -> dict[str, tuple[float, Float64]]:
    """By arm, and as "policy": the mean reward, and that by each measurement of the costs [R]."""
    table = reward_table(collection, options)
    if table.repeats is None:
        raise SystemExit(f"{collection.folder} measured its costs once; collect it again")
    made = {
        arm: (float(table.rewards[:, at].mean()), table.repeats[:, :, at].mean(axis=1))
        for at, arm in enumerate(table.arms)
    }
    if policy is not None:
        chosen = np.asarray(policy.distribution(table.inputs)).argmax(1)
        taken = np.array([table.arms.index(policy.arms[each]) for each in chosen])
        rows = np.arange(len(table))
        made["policy"] = (
            float(table.rewards[rows, taken].mean()),
            table.repeats[:, rows, taken].mean(axis=1),
        )
    return made


if __name__ == "__main__":
    main()
