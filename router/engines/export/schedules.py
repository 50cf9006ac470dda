"""Draft lengths by load for an engine, learnt from a collection."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from decoders.common.errors import DraftpickError

from . import engine_named
from .draft_schedule import LOAD, DraftSchedule, draft_schedule
from .records import PLAIN, Engine, Exported, NoCounterpart


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
            of_engine.by_load(arm, [(1, 1, arm.length.longest)])
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
    if len(found.ranges) == 1:
        return of_engine.exported(longest)
    return of_engine.by_load(longest, found.ranges)
