"""What figures of a collection leave out, because it was collected before it was counted."""

from __future__ import annotations

from . import rewards
from .rewards import Reward
from .store.collection import Collection


def cautions(collection: Collection, reward: str | Reward | None = None) -> list[str]:
    """Sentences about a reward of a collection; none where there is nothing to say.

    reward: None for the collection's default.
    """
    costs = collection.manifest.costs
    asked = rewards.get(rewards.default(costs) if reward is None else reward)
    if not asked.needs_costs or not costs.verify_s:
        return []
    found = []
    if not costs.repeats:
        found.append(
            "the costs of passes, drafts and rounds were measured once here, so that no interval "
            "includes their error; a new collection measures them several times"
        )
    if asked.uses_widths:
        rows = [row for arms in collection.outcomes.values() for row in arms.values() if row.rounds]
        old = sum(row.widths is None for row in rows)
        if old:
            found.append(
                f"{old} of {len(rows)} rows are of an earlier version that did not count how many "
                "tokens each pass read; theirs are priced at the mean width"
            )
    return found
