"""How long drafts should be by the number of requests that run, learnt from a collection under the
guard: what vLLM calls `num_speculative_tokens_per_batch_size`."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from decoders.common.errors import DraftpickError

from .engines import PLAIN, Engine, Exported, NoCounterpart, engine_named

if TYPE_CHECKING:
    from policies import Policy
    from policies.records import RewardTable

LOAD = "requests-running"
BY_LOAD = f"binned by {LOAD}"  # as the guard calls it


@dataclass(frozen=True)
class DraftSchedule:
    """ranges: (least, most, tokens of a draft) by requests that run, from 1 on without gaps; one
    range where one length is the best for all that is known.
    arm: the best fixed one.
    verdict: the guard's, with the gain and its bound.
    """

    ranges: tuple[tuple[int, int, int], ...]
    arm: str
    verdict: str

    @property
    def longest(self) -> int:
        return max(tokens for _, _, tokens in self.ranges)


@dataclass(frozen=True)
class Scheduled:
    """arms: those that it chose from. reward: what it is the best by. options: the engine's."""

    arms: tuple[str, ...]
    found: DraftSchedule
    reward: str
    options: Exported


def scheduled(engine: str, collection: Path, reward: str | None = None) -> list[Scheduled]:
    """One for each kind of arms of the collection that differ in nothing but their draft length,
    plain decoding among them.

    Raises DraftpickError where the collection is of one load, or the engine has no such arms;
    NoSuchName for an unknown engine.
    """
    from collect.store.collection import Collection
    from collect.table import reward_table
    from collect.table_options import TableOptions
    from decoders.recipes.kinds import recipe_of

    of_engine = engine_named(engine)
    held = Collection.open(collection)
    plain = list[str]()
    families = dict[str, dict[str, Any]]()
    why: NoCounterpart | None = None
    for info in held.manifest.arms:
        arm: Any = recipe_of({**info.recipe, "name": info.name})
        if arm.kind == "autoregressive":
            plain.append(info.name)
            continue
        try:
            of_engine.exported(arm, [(1, 1, arm.length.longest)])
        except NoCounterpart as reason:
            why = why or reason
            continue
        rest = arm.model_dump(mode="json", exclude={"name": True, "length": {"k"}})
        families.setdefault(json.dumps(rest, sort_keys=True), {})[info.name] = arm
    made = list[Scheduled]()
    for family in families.values():
        names = (*plain, *family)
        if len(names) < 2:
            continue
        table = reward_table(held, TableOptions(reward=reward, arms=names, features=(LOAD,)))
        lengths = {name: family[name].length.longest if name in family else 0 for name in names}
        found = draft_schedule(table, lengths)
        made.append(Scheduled(names, found, table.reward_name, _options(of_engine, found, family)))
    if not made:
        raise DraftpickError(
            f"{collection} has no two arms for {engine} that differ in their draft length alone"
            + (f" ({why})" if why else "")
            + "; collect such arms at several loads"
        )
    return made


def _options(of_engine: Engine, found: DraftSchedule, family: dict[str, Any]) -> Exported:
    """The best arm's own where one length is best."""
    if not found.longest:
        return PLAIN
    longest = next(arm for arm in family.values() if arm.length.longest == found.longest)
    return of_engine.exported(longest, found.ranges if len(found.ranges) > 1 else None)


def draft_schedule(table: RewardTable, lengths: Mapping[str, int], seed: int = 0) -> DraftSchedule:
    """table: of arms that differ in their length alone; it has LOAD among its features.
    lengths: arm -> tokens of its drafts, 0 for plain decoding.

    By load only where that is better than the best fixed arm with 95% confidence; else that arm's
    length. Raises DraftpickError where the table is of one load.
    """
    from policies.selection.guard import guarded

    loads = table.features[:, table.feature_names.index(LOAD)]
    if len(np.unique(loads)) < 2:
        raise DraftpickError(
            "draft lengths by load need a collection at several loads; collect with --at-once "
            "1,8,32"
        )
    kept = guarded(table, seed=seed, policy="binned", options={"feature": LOAD})
    most = 1 + round(math.expm1(float(loads.max())))
    if kept.saved == BY_LOAD:
        ranges = _ranges(kept.fitted.policy, lengths, most)
    else:
        ranges = ((1, most, lengths[kept.best_fixed]),)
    return DraftSchedule(ranges, kept.best_fixed, kept.verdict)


def _ranges(
    policy: Policy, lengths: Mapping[str, int], most: int
) -> tuple[tuple[int, int, int], ...]:
    """What the policy takes while 1, 2, ..., `most` requests run."""
    others = np.log1p(np.arange(most, dtype=np.float32))[:, None]  # [most, 1]
    taken = [lengths[policy.arms[at]] for at in policy.distribution(others).argmax(axis=1)]
    ranges: list[tuple[int, int, int]] = []
    for running, tokens in enumerate(taken, 1):
        if ranges and ranges[-1][2] == tokens:
            ranges[-1] = (ranges[-1][0], running, tokens)
        else:
            ranges.append((running, running, tokens))
    return tuple(ranges)
