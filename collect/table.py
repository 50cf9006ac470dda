"""From a stored collection to what a policy learns from: a RewardTable.

Split it with `RewardTable.split(held_out, seed)`: by query, every task in the same proportion.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from decoders.errors import DraftpickError, NoSuchName
from policies.records import RewardTable

from . import rewards
from .dataset import OUTCOMES_SCHEMA, SIZES, Manifest, read_manifest, read_table
from .embedders import Embedder
from .embeddings import embeddings_of
from .records import Outcome
from .rewards import Reward
from .rouge import WORDS, rouge_l

# The long columns (tokens, text) are the bulk of the file, and no reward reads them.
_NUMBERS = tuple(
    name
    for name in OUTCOMES_SCHEMA.names
    if name not in ("output_ids", "text", "target_ids", "agree")
)


def read_outcomes(folder: str | Path) -> dict[str, dict[str, Outcome]]:
    """The numbers of every stored row: query id -> arm -> outcome, in stored order.

    rouge_l is by today's words: where it was collected by others, it is computed anew from the
    stored texts.
    """
    found: dict[str, dict[str, Outcome]] = {}
    anew = _likeness_anew(folder)
    for record in read_table(folder, "outcomes", _NUMBERS).to_pylist():
        outcome = Outcome(**record)
        key = (outcome.query_id, outcome.arm)
        if key in anew:
            outcome = replace(outcome, rouge_l=anew[key])
        found.setdefault(outcome.query_id, {})[outcome.arm] = outcome
    return found


def _likeness_anew(folder: str | Path) -> dict[tuple[str, str], float]:
    """(query id, arm) -> rouge_l, of the rows whose stored one is by other words than today's.

    Where both texts are ASCII the words are the same.
    """
    if read_manifest(folder).identity.rouge_words == WORDS:
        return {}
    queries = read_table(folder, "queries", ("query_id", "target_text")).to_pylist()
    targets = {row["query_id"]: row["target_text"] for row in queries}
    columns = ("query_id", "arm", "text", "rouge_l")
    return {
        (row["query_id"], row["arm"]): rouge_l(targets[row["query_id"]], row["text"])
        for row in read_table(folder, "outcomes", columns).to_pylist()
        if row["rouge_l"] is not None
        and not (row["text"].isascii() and targets[row["query_id"]].isascii())
    }


def reward_table(
    folder: str | Path,
    reward: str | Reward = "paper",
    alpha: float = 0.5,
    arms: Sequence[str] | None = None,
    embedder: str | Embedder | None = None,
) -> RewardTable:
    """The rewards of every stored query and arm.

    reward: a name, or a Reward of one's own.
    alpha: weight of likeness against cost.
    arms: a choice of them, None for all; size and latency scores are scaled by the largest and the
        slowest of the choice (Huang et al., A.5).
    embedder: what the policy is to read (see `embeddings_of`), None for what the collection was
        made with.

    A failed (query, arm) is NaN. A query without an embedding, or whose arms all failed, is left
    out. Rows are sorted by query id, so that an interrupted sweep gives the same table.

    Raises DraftpickError for an unknown reward, arm or embedder, an alpha outside [0, 1], an empty
    or damaged collection, a measured reward where nothing was measured, and a reward of sizes where
    an early exit's was counted without the layers that it runs.
    """
    chosen = rewards.get(reward)
    rewards.check_alpha(alpha)
    manifest = read_manifest(folder)
    if chosen.needs_measured and not manifest.identity.measured:
        raise DraftpickError(
            f"the reward {chosen.name!r} needs measured times, but {folder} was collected without "
            "--measure; collect again with it into another --out, or take the reward 'modelled'"
        )
    names = _arm_names(manifest, arms)
    if chosen.uses_size:
        _require_sizes(folder, manifest, names)
    outcomes = read_outcomes(folder)
    embeddings = embeddings_of(folder, embedder)
    queries = read_table(folder, "queries", ("query_id", "task")).to_pylist()
    kept = [
        query
        for query in sorted(queries, key=lambda query: str(query["query_id"]))
        if query["query_id"] in embeddings.vectors
    ]
    values = np.array(
        [
            _rewards_of(outcomes[query["query_id"]], chosen, manifest, names, alpha)
            for query in kept
        ],
        dtype=np.float64,
    ).reshape(len(kept), len(names))
    usable = np.flatnonzero(~np.isnan(values).all(axis=1))
    kept = [kept[index] for index in usable.tolist()]
    if not kept:
        raise DraftpickError(
            f"{folder} holds no query with a reward yet; collect more (`draftpick collect --out "
            f"{folder}`), or look at its errors (`draftpick collect --summary {folder}`)"
        )
    return RewardTable(
        query_ids=[query["query_id"] for query in kept],
        tasks=[query["task"] for query in kept],
        embeddings=np.array([embeddings.vectors[query["query_id"]] for query in kept]),
        arms=list(names),
        rewards=values[usable],
        reward_name=chosen.label(alpha),
        embedder=embeddings.embedder,
        # Of all the arms together: it says nothing of a choice of them.
        arms_fingerprint=manifest.identity.arms_fingerprint if arms is None else "",
    )


def _arm_names(manifest: Manifest, asked: Sequence[str] | None) -> tuple[str, ...]:
    stored = tuple(arm.name for arm in manifest.arms)
    for name in asked or ():
        if name not in stored:
            raise NoSuchName("arm in this collection", name, stored)
    return tuple(asked) if asked else stored


def _require_sizes(folder: str | Path, manifest: Manifest, names: Sequence[str]) -> None:
    exits = [arm.name for arm in manifest.arms if arm.name in names and _has_exit(arm.recipe)]
    if exits and manifest.identity.sizes < SIZES:
        raise DraftpickError(
            f"{folder} was collected when an early exit ({', '.join(exits)}) still counted its "
            "adapter alone, without the layers that it runs; collect again into another --out, "
            "leave the arm out, or take a reward without sizes, such as 'latency-ratio'"
        )


def _has_exit(recipe: Any) -> bool:
    """Whether an arm as declared is an early exit, or holds one."""
    if isinstance(recipe, dict):
        return recipe.get("kind") == "early_exit" or any(map(_has_exit, recipe.values()))
    return isinstance(recipe, list) and any(map(_has_exit, recipe))


def _rewards_of(
    outcomes: dict[str, Outcome],
    reward: Reward,
    manifest: Manifest,
    names: Sequence[str],
    alpha: float,
) -> list[float]:
    """One query's rewards in the order of names; NaN for an arm that failed."""
    plain = next((arm.name for arm in manifest.arms if arm.autoregressive), None)
    baseline = outcomes.get(plain) if plain else None  # chosen or not
    arms = {arm.name: arm for arm in manifest.arms if arm.name in names}
    context = rewards.Context(arms=arms, costs=manifest.costs, autoregressive=baseline, alpha=alpha)
    return [
        rewards.compute(reward, outcomes[name], context) if name in outcomes else float("nan")
        for name in names
    ]
