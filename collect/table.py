"""From a stored collection to what a policy learns from: a RewardTable.

Split it with `RewardTable.split(held_out, seed)`: by query, every task in the same proportion.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from decoders.common.errors import DraftpickError, NoSuchName
from decoders.costs.measured import Costs
from policies.records import RewardTable

from . import rewards
from .features import FEATURES, RequestContext, feature_vector, varying
from .queries import independent, text_name
from .records import Outcome, OutcomeKey, QueryRow
from .rewards import Reward
from .store.collection import Collection
from .store.manifest import Manifest
from .table_options import TableOptions


@dataclass(frozen=True)
class LeftOut:
    """Rows, one a query, temperature and load, that are stored and not in a table. Where a row has
    several draws, those that are not repetitive are what it is made of.

    unembedded: the target failed on the query, so that nothing can be read of it.
    failed: no arm has the reward.
    repetitive: the target's answer repeats itself to the end, and such were not wanted.
    other_temperatures: not asked for, or none that the reward speaks of; loads likewise.
    repeated: queries of the table that have the text of another; they are in it, as one group.
    """

    unembedded: int
    failed: int
    repetitive: int
    other_temperatures: int
    repeated: int = 0

    def __str__(self) -> str:
        """The counts above 0 in words; "" where there are none."""
        counts = {
            "where the target failed": self.unembedded,
            "where every arm failed": self.failed,
            "whose answer is repetitive": self.repetitive,
            "at other temperatures or loads": self.other_temperatures,
        }
        return ", ".join(f"{count} {words}" for words, count in counts.items() if count)

    @property
    def cautions(self) -> list[str]:
        """A sentence about queries of one text, where there are any."""
        if not self.repeated:
            return []
        return [
            f"{self.repeated} queries have the text of another under another id; queries of one "
            "text count as one group, and are learnt from or judged on together"
        ]


class NoRewards(DraftpickError):
    """No query has a reward at the temperatures and loads that were asked for."""


def reward_table(collection: Collection, options: TableOptions | None = None) -> RewardTable:
    """The rewards of every stored query and arm, a row for each temperature and load.

    Where several answers were drawn, a row's rewards are means over the draws, and `drawn` has each
    draw's; an arm that failed on a draw on which another did not has failed.

    A failed (query, arm) is NaN. A query without an embedding, or whose arms all failed, is left
    out (`read_rewards` counts them). Rows are sorted by query id, so that an interrupted sweep
    gives the same table. A query's group is the one in its file, else its own, joined with those
    of the same text. A row is called as `OutcomeKey.name` has it. Losses are 0 for a lossless arm,
    else what ROUGE-L lacks of 1 between the arm's answer and the target's at temperature 0.

    Raises DraftpickError for an unknown arm, feature or embedder, an empty or damaged collection, a
    temperature or load that was not collected, and a reward whose numbers were not collected.
    """
    return read_rewards(collection, options)[0]


def _nothing(
    collection: Collection, left_out: LeftOut, hot: Container[float], loads: Container[int]
) -> str:
    """Say why no row is left, and with which error one failed."""
    folder = collection.folder
    why = f" (left out: {left_out})" if str(left_out) else ""
    failed = (
        f"; an error of its `error` column in {folder}/outcomes: {row.query_id}, {arm}: {row.error}"
        for key, rows in sorted(collection.outcomes.items())
        if key.temperature in hot and key.running in loads
        for arm, row in rows.items()
        if row.error
    )
    more = f"; collect more (`draftpick collect --out {folder}`)"
    return f"{folder} holds no query with a reward yet{why}{next(failed, more)}"


def fingerprint_of(manifest: Manifest, names: Sequence[str]) -> str:
    """Fingerprint of some of a collection's arms, as an engine gives it; "" where it cannot be
    told.

    The collection has one of all its arms together. One of a choice of them is made of their
    recipes, and counts only if the recipes of all of them still give the collection's: draft models
    count by their files, which may have changed since.
    """
    whole = manifest.identity.arms_fingerprint
    if set(names) == {info.name for info in manifest.arms}:
        return whole
    from decoders.arms.file import fingerprint  # with PyTorch, a second
    from decoders.recipes.kinds import recipe_of

    try:
        arms = {info.name: recipe_of({**info.recipe, "name": info.name}) for info in manifest.arms}
        same = fingerprint(arms) == whole
        return fingerprint({name: arms[name] for name in names}) if same else ""
    except (DraftpickError, ValueError, OSError):  # of a plugin that is not loaded, or files gone
        return ""


def read_rewards(
    collection: Collection, options: TableOptions | None = None
) -> tuple[RewardTable, LeftOut]:
    """The reward table, with the count of what was left out."""
    options = options or TableOptions()
    manifest = collection.manifest
    names = _arm_names(manifest, options.arms)
    reward = _reward(collection, options.reward, names)
    wanted = _temperatures(collection, reward, options.temperatures)
    loads = {answers - 1 for answers in _at_once(collection, reward, options.at_once)}
    outcomes, queries = collection.outcomes, collection.queries
    repetitive = collection.repetitive if options.repetitive == "without" else set[OutcomeKey]()
    embeddings = collection.embeddings(options.embedder)
    draws_of: dict[OutcomeKey, list[OutcomeKey]] = {}  # by the row, as its first draw is called
    for key in sorted(outcomes):
        draws_of.setdefault(key._replace(draw=0), []).append(key)
    keys, counts = list[OutcomeKey](), Counter[str]()
    for key, draws in draws_of.items():
        draws[:] = [each for each in draws if each._replace(running=0) not in repetitive]
        if key.temperature not in wanted or key.running not in loads:
            counts["other"] += 1
        elif key.query not in embeddings.vectors:
            counts["unembedded"] += 1
        elif not draws:
            counts["repetitive"] += 1
        else:
            keys.append(key)
    most = max((len(draws_of[key]) for key in keys), default=0)

    arms = {arm.name: arm for arm in manifest.arms if arm.name in names}
    plain = next((arm.name for arm in manifest.arms if arm.autoregressive), "")  # chosen or not

    def valued(costs: Costs) -> NDArray[np.float64]:
        """[D, n, A], NaN where a row has fewer draws, and where an arm failed."""
        found = np.full((most, len(keys), len(names)), np.nan)
        for row, key in enumerate(keys):
            priced = costs.of_answers(key.running + 1)
            for at, each in enumerate(draws_of[key]):
                made = outcomes[each]
                context = rewards.Context(arms, priced, made.get(plain), options.alpha)
                for column, name in enumerate(names):
                    if name in made:
                        found[at, row, column] = rewards.compute(reward, made[name], context)
        return found

    by_draw = valued(manifest.costs)
    values = _over_draws(by_draw)
    usable = np.flatnonzero(~np.isnan(values).all(axis=1))
    left_out = LeftOut(
        counts["unembedded"], len(keys) - len(usable), counts["repetitive"], counts["other"]
    )
    repeats = manifest.costs.repeats if reward.needs_costs else ()
    measured = [_over_draws(valued(costs))[usable] for costs in repeats]
    keys = [keys[index] for index in usable.tolist()]
    if not keys:
        raise NoRewards(_nothing(collection, left_out, wanted, loads))
    contexts = [_request(queries[key.query], key) for key in keys]
    columns, read = _features(options.features, contexts)
    here = sorted({key.query for key in keys})
    texts = {query: text_name(queries[query].turns[0]) for query in here}
    groups = independent({query: (texts[query], queries[query].group) for query in here})
    left_out = replace(left_out, repeated=len(here) - len(set(texts.values())))
    hot = np.array([key.temperature > 0 for key in keys])
    table = RewardTable(
        query_ids=[key.name for key in keys],
        tasks=[queries[key.query].task for key in keys],
        embeddings=np.array([embeddings.vectors[key.query] for key in keys]),
        arms=list(names),
        rewards=values[usable],
        reward_name=reward.label(options.alpha),
        embedder=embeddings.embedder,
        arms_fingerprint=fingerprint_of(manifest, names),
        groups=[groups[key.query] for key in keys],
        texts=[texts[key.query] for key in keys],
        queries=[key.query for key in keys],
        features=read,
        feature_names=columns,
        losses=np.array([_losses(outcomes, draws_of[key], manifest, names) for key in keys]),
        machine=_machine(manifest),
        repeats=np.array(measured) if measured else None,
        drawn=np.where(hot[:, None], by_draw[:, usable], np.nan) if hot.any() else None,
        timed=reward.needs_measured,
    )
    return _weighted(table, keys, options.weights, collection), left_out


def _weighted(
    table: RewardTable,
    keys: Sequence[OutcomeKey],
    weights: Mapping[tuple[float, int], int],
    collection: Collection,
) -> RewardTable:
    """The table whose rows have the weights of their settings, without those of weight 0."""
    if not weights:
        return table
    settings = [(key.temperature, key.running + 1) for key in keys]
    for temperature, answers in weights:
        if (temperature, answers) not in settings:
            raise DraftpickError(
                f"no row of {collection.folder} is of temperature {temperature:g} with {answers} "
                f"answers at once; leave {temperature:g}@{answers} out of --weights"
            )
    counts = np.array([weights.get(each, 1) for each in settings], dtype=np.float64)
    if not counts.any():
        raise DraftpickError("all settings have the weight 0; give one of them more")
    return replace(table, weights=np.maximum(counts, 1)).rows(np.flatnonzero(counts))


def _over_draws(rewards: NDArray[np.float64]) -> NDArray[np.float64]:
    """[n, A] means of [D, n, A], over the draws on which any arm has a reward; NaN for an arm that
    lacks one of those."""
    some = ~np.isnan(rewards).all(axis=2, keepdims=True)  # [D, n, 1]
    counts = some.sum(axis=0)  # [n, 1]
    total: NDArray[np.float64] = np.where(some, rewards, 0.0).sum(axis=0)
    return np.where(counts > 0, total / np.maximum(counts, 1), np.nan)


def _reward(collection: Collection, asked: str | Reward | None, names: Sequence[str]) -> Reward:
    """The reward asked for, or the default; raises DraftpickError where it needs what was not
    collected."""
    folder, manifest = collection.folder, collection.manifest
    reward = rewards.get(rewards.default(manifest.costs) if asked is None else asked)
    if reward.needs_similarity and not manifest.identity.similarity:
        raise DraftpickError(
            f"the reward {reward.name!r} needs the drafters' own answers, but {folder} was "
            "collected with --no-similarity; take the reward 'modelled', or collect again without "
            "it into another --out"
        )
    if reward.needs_measured and not manifest.identity.measured:
        raise DraftpickError(
            f"the reward {reward.name!r} needs measured times, but {folder} was collected without "
            "--measure; collect again with it into another --out, or take the reward 'modelled'"
        )
    if reward.needs_costs and not manifest.costs.verify_s:
        raise DraftpickError(
            f"the reward {reward.name!r} needs what a pass of the target costs, but {folder} was "
            "collected from endpoints, which have none; take the reward 'measured' or 'speed-price'"
        )
    if reward.needs_prices:
        _require_prices(collection, names)
    return reward


def only_alone(collection: Collection, reward: Reward) -> bool:
    """Whether the reward is of greedy answers on their own; endpoints' times are of all answers."""
    timed = reward.needs_measured and not collection.manifest.costs.verify_s
    return reward.greedy_only and not timed


def _temperatures(
    collection: Collection, reward: Reward, asked: Sequence[float] | None
) -> set[float]:
    stored, alone = collection.manifest.identity.temperatures, only_alone(collection, reward)
    if asked is None:
        return {0.0} if alone else set(stored)
    for temperature in asked:
        if temperature not in stored:
            raise DraftpickError(
                f"{collection.folder} was not collected at temperature {temperature:g} (it has "
                f"{', '.join(f'{each:g}' for each in stored)}); collect into another --out with "
                "--temperatures"
            )
        if temperature > 0 and alone:
            raise DraftpickError(
                f"the reward {reward.name!r} is for greedy answers only, not for temperature "
                f"{temperature:g}; take 'modelled', 'time-saved', 'saved-passes' or 'acceptance'"
            )
    return set(asked)


def _at_once(collection: Collection, reward: Reward, asked: Sequence[int] | None) -> set[int]:
    stored, alone = collection.manifest.identity.at_once, only_alone(collection, reward)
    if asked is None:
        return {1} if alone else set(stored)
    for answers in asked:
        if answers not in stored:
            raise DraftpickError(
                f"{collection.folder} was not collected for {answers} answers at once (it has "
                f"{', '.join(map(str, stored))}); collect into another --out with --at-once"
            )
        if answers > 1 and alone:
            raise DraftpickError(
                f"the reward {reward.name!r} is for one answer at a time, not for "
                f"{answers} at once; take 'modelled', 'time-saved', 'saved-passes' or 'acceptance'"
            )
    return set(asked)


def _request(query: QueryRow, key: OutcomeKey) -> RequestContext:
    return RequestContext(
        prompt_ids=query.prompt_ids,
        max_new_tokens=query.max_new_tokens,
        temperature=key.temperature,
        running=key.running,
    )


def _features(
    asked: Sequence[str] | None, contexts: Sequence[RequestContext]
) -> tuple[tuple[str, ...], NDArray[np.float32]]:
    """Names, and values [n, f]."""
    if asked is None:
        return varying(tuple(FEATURES), contexts)
    names = tuple(dict.fromkeys(asked))
    return names, np.array([feature_vector(names, context) for context in contexts])


def _machine(manifest: Manifest) -> str:
    """The one that the costs are of."""
    hardware = manifest.sessions[0]["hardware"]
    processor = ", ".join(hardware["gpus"]) or hardware["cpu"]
    return f"{processor}, {hardware['cores']} cores, {hardware['threads']} threads"


def _losses(
    outcomes: Mapping[OutcomeKey, Mapping[str, Outcome]],
    draws: Sequence[OutcomeKey],
    manifest: Manifest,
    names: Sequence[str],
) -> list[float]:
    """One row's, in the order of names; NaN for an arm that failed on each of its draws."""
    lossless = {arm.name for arm in manifest.arms if arm.lossless}
    here, greedy = [outcomes[key] for key in draws], outcomes[OutcomeKey(draws[0].query, 0.0)]

    def loss(name: str) -> float:
        if all(name not in arms or arms[name].error is not None for arms in here):
            return float("nan")
        if name in lossless:
            return 0.0
        similarity = greedy[name].rouge_l  # None where it failed there
        return float("nan") if similarity is None else 1 - similarity

    return [loss(name) for name in names]


def _arm_names(manifest: Manifest, asked: Sequence[str] | None) -> tuple[str, ...]:
    stored = tuple(arm.name for arm in manifest.arms)
    for name in asked or ():
        if name not in stored:
            raise NoSuchName("arm in this collection", name, stored)
    return tuple(asked) if asked else stored


def _require_prices(collection: Collection, names: Sequence[str]) -> None:
    priced = ("prompt_price", "completion_price")
    without = [
        arm.name
        for arm in collection.manifest.arms
        if arm.name in names
        and not (
            all(arm.recipe.get(price) is not None for price in priced)
            and any(arm.recipe[price] > 0 for price in priced)
        )
    ]
    if without:
        raise DraftpickError(
            f"{', '.join(without)} of {collection.folder} has no price above 0, as endpoints may "
            "have; give `prompt_price` and `completion_price` in the arms file (of a machine of "
            "your own, what an hour costs over the tokens it gives) and collect into another --out"
        )
