"""From a stored collection to what a policy learns from: a RewardTable.

Split it with `RewardTable.split(held_out, seed)`: by query, every task in the same proportion.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from decoders.common.errors import DraftpickError, NoSuchName
from policies.records import RewardTable

from . import rewards
from .embedders import Embedder
from .features import FEATURES, RequestContext, feature_vector
from .records import Outcome
from .rewards import Reward
from .store.dataset import Manifest, read_manifest, read_table
from .store.embeddings import embeddings_of
from .store.outcomes import Place, looping_places, outcomes_by_place

LOOPS = ("all", "without")
_ASKED = ("query_id", "task", "prompt_ids", "max_new_tokens")


@dataclass(frozen=True)
class LeftOut:
    """Rows, one a query, temperature and load, that are stored and not in a table.

    unembedded: the target failed on the query, so that nothing can be read of it.
    failed: no arm has the reward.
    looping: the target's answer repeats itself to the end, and such were not wanted.
    other_temperatures: not asked for, or none that the reward speaks of; loads likewise.
    """

    unembedded: int
    failed: int
    looping: int
    other_temperatures: int

    def __str__(self) -> str:
        """The counts above 0 in words; "" where there are none."""
        counts = {
            "where the target failed": self.unembedded,
            "where every arm failed": self.failed,
            "whose answer loops": self.looping,
            "at other temperatures or loads": self.other_temperatures,
        }
        return ", ".join(f"{count} {words}" for words, count in counts.items() if count)


def reward_table(
    folder: str | Path,
    reward: str | Reward | None = None,
    alpha: float = 0.5,
    arms: Sequence[str] | None = None,
    embedder: str | Embedder | None = None,
    temperatures: Sequence[float] | None = None,
    features: Sequence[str] | None = None,
    loops: str = "all",
    at_once: Sequence[int] | None = None,
) -> RewardTable:
    """The rewards of every stored query and arm, a row for each temperature and load.

    reward: a name, a Reward of one's own, or None for the default: `modelled`, and `measured` for a
        collection of endpoints.
    alpha: weight of likeness against cost.
    arms: a choice of them, None for all; size and latency scores are scaled by the largest and the
        slowest of the choice (Huang et al., A.5).
    embedder: what the policy is to read (see `embeddings_of`), None for what the collection was
        made with.
    temperatures: a choice of them, None for all that were collected and the reward speaks of.
    features: what the policy is to read beside (names in FEATURES), None for all that are not the
        same in every row.
    loops: "without" leaves out answers of the target that repeat themselves to the end.
    at_once: a choice of the numbers of answers that were written at once, None for all that were
        collected and the reward speaks of.

    A failed (query, arm) is NaN. A query without an embedding, or whose arms all failed, is left
    out (`read_rewards` counts them). Rows are sorted by query id, so that an interrupted sweep
    gives the same table; those of one query are a group, and a row is called as `Place.name` has
    it. Losses are 0 for a lossless arm, else what ROUGE-L lacks of 1 between the arm's
    answer and the target's at temperature 0.

    Raises DraftpickError for an unknown reward, arm, feature or embedder, an alpha outside [0, 1],
    an empty or damaged collection, a temperature or load that was not collected, and a measured
    reward where nothing was measured.
    """
    table, _ = read_rewards(
        folder, reward, alpha, arms, embedder, temperatures, features, loops, at_once
    )
    return table


def read_rewards(
    folder: str | Path,
    reward: str | Reward | None = None,
    alpha: float = 0.5,
    arms: Sequence[str] | None = None,
    embedder: str | Embedder | None = None,
    temperatures: Sequence[float] | None = None,
    features: Sequence[str] | None = None,
    loops: str = "all",
    at_once: Sequence[int] | None = None,
) -> tuple[RewardTable, LeftOut]:
    """As `reward_table`, with the count of what was left out."""
    named = None if reward is None else rewards.get(reward)
    rewards.check_alpha(alpha)
    if loops not in LOOPS:
        raise NoSuchName("choice of loops", loops, LOOPS)
    manifest = read_manifest(folder)
    chosen = named or rewards.get(rewards.default(manifest.costs))
    if chosen.needs_likeness and not manifest.identity.likeness:
        raise DraftpickError(
            f"the reward {chosen.name!r} needs what drafters write by themselves, but {folder} was "
            "collected with --no-likeness; take the reward 'modelled', or collect again without it "
            "into another --out"
        )
    if chosen.needs_measured and not manifest.identity.measured:
        raise DraftpickError(
            f"the reward {chosen.name!r} needs measured times, but {folder} was collected without "
            "--measure; collect again with it into another --out, or take the reward 'modelled'"
        )
    names = _arm_names(manifest, arms)
    if chosen.needs_costs and not manifest.costs.verify_s:
        raise DraftpickError(
            f"the reward {chosen.name!r} needs what a pass of the target costs, but {folder} was "
            "collected from endpoints, which have none; take the reward 'measured' or 'speed-price'"
        )
    if chosen.needs_prices:
        _require_prices(folder, manifest, names)
    wanted = _temperatures(folder, manifest, chosen, temperatures)
    loads = {answers - 1 for answers in _at_once(folder, manifest, chosen, at_once)}
    outcomes = outcomes_by_place(folder)
    looping = looping_places(folder) if loops == "without" else set[Place]()
    embeddings = embeddings_of(folder, embedder)
    queries = {row["query_id"]: row for row in read_table(folder, "queries", _ASKED).to_pylist()}
    places, counts = list[Place](), Counter[str]()
    for place in sorted(outcomes):
        if place.temperature not in wanted or place.running not in loads:
            counts["other"] += 1
        elif place.query not in embeddings.vectors:
            counts["unembedded"] += 1
        elif place._replace(running=0) in looping:
            counts["looping"] += 1
        else:
            places.append(place)
    values = np.array(
        [_rewards_of(outcomes[at], at, chosen, manifest, names, alpha) for at in places],
        dtype=np.float64,
    ).reshape(len(places), len(names))
    usable = np.flatnonzero(~np.isnan(values).all(axis=1))
    left_out = LeftOut(
        counts["unembedded"], len(places) - len(usable), counts["looping"], counts["other"]
    )
    places = [places[index] for index in usable.tolist()]
    if not places:
        raise DraftpickError(
            f"{folder} holds no query with a reward yet"
            + (f" (left out: {left_out})" if str(left_out) else "")
            + f"; collect more (`draftpick collect --out {folder}`), or look at its errors "
            f"(`draftpick collect --summary {folder}`)"
        )
    contexts = [_request(queries[at.query], at) for at in places]
    columns, read = _features(features, contexts)
    table = RewardTable(
        query_ids=[at.name for at in places],
        tasks=[queries[at.query]["task"] for at in places],
        embeddings=np.array([embeddings.vectors[at.query] for at in places]),
        arms=list(names),
        rewards=values[usable],
        reward_name=chosen.label(alpha),
        embedder=embeddings.embedder,
        # Of all the arms together: it says nothing of a choice of them.
        arms_fingerprint=manifest.identity.arms_fingerprint if arms is None else "",
        groups=[at.query for at in places],
        features=read,
        feature_names=columns,
        losses=np.array([_losses(outcomes, place, manifest, names) for place in places]),
        machine=_machine(manifest),
    )
    return table, left_out


def _temperatures(
    folder: str | Path, manifest: Manifest, reward: Reward, asked: Sequence[float] | None
) -> set[float]:
    stored = manifest.identity.temperatures
    if asked is None:
        return {0.0} if reward.greedy_only else set(stored)
    for temperature in asked:
        if temperature not in stored:
            raise DraftpickError(
                f"{folder} was not collected at temperature {temperature:g} (it has "
                f"{', '.join(f'{each:g}' for each in stored)}); collect into another --out with "
                "--temperatures"
            )
        if temperature > 0 and reward.greedy_only:
            raise DraftpickError(
                f"the reward {reward.name!r} is of greedy answers, and says nothing at temperature "
                f"{temperature:g}; take 'modelled', 'time-saved', 'saved-passes' or 'acceptance'"
            )
    return set(asked)


def _at_once(
    folder: str | Path, manifest: Manifest, reward: Reward, asked: Sequence[int] | None
) -> set[int]:
    stored = manifest.identity.at_once
    if asked is None:
        return {1} if reward.greedy_only else set(stored)
    for answers in asked:
        if answers not in stored:
            raise DraftpickError(
                f"{folder} was not collected for {answers} answers at once (it has "
                f"{', '.join(map(str, stored))}); collect into another --out with --at-once"
            )
        if answers > 1 and reward.greedy_only:
            raise DraftpickError(
                f"the reward {reward.name!r} is of one answer at a time, and says nothing of "
                f"{answers} at once; take 'modelled', 'time-saved', 'saved-passes' or 'acceptance'"
            )
    return set(asked)


def _request(query: dict[str, Any], at: Place) -> RequestContext:
    return RequestContext(
        prompt_ids=query["prompt_ids"],
        max_new_tokens=query["max_new_tokens"],
        temperature=at.temperature,
        running=at.running,
    )


def _features(
    asked: Sequence[str] | None, contexts: Sequence[RequestContext]
) -> tuple[tuple[str, ...], NDArray[np.float32]]:
    """Names, and values [n, f]."""
    names = tuple(FEATURES if asked is None else dict.fromkeys(asked))
    values = np.array([feature_vector(names, context) for context in contexts])
    if asked is not None:
        return names, values
    varies = (values != values[0]).any(axis=0)
    kept = tuple(name for name, does in zip(names, varies, strict=True) if does)
    return kept, values[:, varies]


def _machine(manifest: Manifest) -> str:
    """The one that the costs are of."""
    hardware = manifest.sessions[0]["hardware"]
    processor = ", ".join(hardware["gpus"]) or hardware["cpu"]
    return f"{processor}, {hardware['cores']} cores, {hardware['threads']} threads"


def _losses(
    outcomes: dict[Place, dict[str, Outcome]],
    place: Place,
    manifest: Manifest,
    names: Sequence[str],
) -> list[float]:
    """One row's, in the order of names; NaN for an arm that failed."""
    lossless = {arm.name for arm in manifest.arms if arm.lossless}
    here, greedy = outcomes[place], outcomes[Place(place.query, 0.0)]

    def loss(name: str) -> float:
        if name not in here or here[name].error is not None:
            return float("nan")
        if name in lossless:
            return 0.0
        likeness = greedy[name].rouge_l  # None where it failed there
        return float("nan") if likeness is None else 1 - likeness

    return [loss(name) for name in names]


def _arm_names(manifest: Manifest, asked: Sequence[str] | None) -> tuple[str, ...]:
    stored = tuple(arm.name for arm in manifest.arms)
    for name in asked or ():
        if name not in stored:
            raise NoSuchName("arm in this collection", name, stored)
    return tuple(asked) if asked else stored


def _require_prices(folder: str | Path, manifest: Manifest, names: Sequence[str]) -> None:
    priced = ("prompt_price", "completion_price")
    without = [
        arm.name
        for arm in manifest.arms
        if arm.name in names
        and not (
            all(arm.recipe.get(price) is not None for price in priced)
            and any(arm.recipe[price] > 0 for price in priced)
        )
    ]
    if without:
        raise DraftpickError(
            f"{', '.join(without)} of {folder} has no price above 0, as endpoints may have; give "
            "`prompt_price` and `completion_price` in the arms file (of a machine of your own, "
            "what an hour costs over the tokens it gives) and collect into another --out"
        )


def _rewards_of(
    outcomes: dict[str, Outcome],
    place: Place,
    reward: Reward,
    manifest: Manifest,
    names: Sequence[str],
    alpha: float,
) -> list[float]:
    """One place's rewards in the order of names; NaN for an arm that failed."""
    plain = next((arm.name for arm in manifest.arms if arm.autoregressive), None)
    baseline = outcomes.get(plain) if plain else None  # chosen or not
    arms = {arm.name: arm for arm in manifest.arms if arm.name in names}
    costs = manifest.costs.of_answers(place.running + 1)
    context = rewards.Context(arms=arms, costs=costs, autoregressive=baseline, alpha=alpha)
    return [
        rewards.compute(reward, outcomes[name], context) if name in outcomes else float("nan")
        for name in names
    ]
