"""Which lines of a log an estimate may use, and all the others counted."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from collect.embedders import same_space
from decoders.common.identity import identity
from policies import Policy, PolicyError, RewardTable, check_compatible
from policies.ope.estimators import Log
from policies.records import ANY

from .reader import DecisionRows
from .record import Asked, LoggedDecision, Result

FORCED = "the arm was forced, so nothing was chosen"
KEPT = "later turns that stayed with the arm of an earlier one"
OTHERS = "of another target, of other arms, or in another embedder's space"
NO_EMBEDDING = "without the embedding that the policy reads"
NO_FEATURE = "without a feature that the policy reads"
NO_REWARD = "without a value of this reward"
NO_FAULT = "broken off or refused for no fault of the arm"


@dataclass(frozen=True, eq=False)
class UsableDecisions:
    """The rows that count.

    decisions: [n], all of one target, one choice of arms and one space of embeddings.
    table: of the same rows, for the policy to read; its rewards are nan but for the arm taken.
    log: what the estimators read.
    offered: [n, A] the chance that every arm had.
    inputs: [n, w] what rewards are predicted from: the embedding where all rows have one, their
        features, and what was asked for: log prompt tokens, and where all rows know them log
        max_new_tokens and temperature.
    excluded: why -> rows left out for it.
    failures: arm -> how often it failed. They are among the decisions: each earned the worst
        reward of the others, as when policies learn.
    shares: arm -> of its rows, the share whose reward is known.
    """

    decisions: list[LoggedDecision]
    table: RewardTable
    log: Log
    offered: NDArray[np.float64]
    inputs: NDArray[np.float32]
    excluded: dict[str, int]
    failures: dict[str, int]
    shares: dict[str, float]


def usable(
    rows: DecisionRows, policy: Policy | None, reward: str, value: Callable[[Result], float]
) -> UsableDecisions:
    """The rows from which this policy can be judged, or the logged ones where it is None.

    reward: name of `value`. Raises PolicyError where none is left, or where the policy is for other
    arms or another embedder than all that were logged.
    """
    excluded: Counter[str] = Counter()
    chosen = [each for each in rows.decisions if each.chosen]
    excluded[KEPT] = sum(each.choice == "kept" for each in rows.decisions)
    excluded[FORCED] = len(rows.decisions) - len(chosen) - excluded[KEPT]
    if not chosen:
        raise PolicyError(
            f"no policy chose in any of the {len(rows.decisions)} lines of {rows.folder}; let it "
            "choose (no --arm) and draw (--explore) while logging"
        )
    kept = _of_one_world(chosen, policy)
    excluded[OTHERS] = len(chosen) - len(kept)
    judged = [each for each in kept if each.outcome.failed or each.outcome.error is None]
    excluded[NO_FAULT], kept = len(kept) - len(judged), judged
    if policy is not None:
        kept = _readable(kept, policy, excluded)
    failures = Counter(each.arm for each in kept if each.outcome.failed)
    failed = [each.outcome.failed for each in kept]
    values = [
        math.nan if none else value(each.outcome) for each, none in zip(kept, failed, strict=True)
    ]
    finite = [one for one in values if math.isfinite(one)]
    excluded[NO_REWARD] = len(kept) - len(finite) - sum(failed)
    if not finite:
        excluded["the arm failed"] = sum(failed)
        reasons = "; ".join(f"{many} {why}" for why, many in excluded.items() if many)
        raise PolicyError(f"no line of {rows.folder} can be used: {reasons}; log more answers")
    earned = [min(finite) if none else one for one, none in zip(values, failed, strict=True)]
    asked, kept = kept, [e for e, one in zip(kept, earned, strict=True) if math.isfinite(one)]
    rewards = np.array([one for one in earned if math.isfinite(one)])
    return _tabled(kept, rewards, reward, excluded, failures, Counter(each.arm for each in asked))


World = tuple[str, frozenset[str], str, str | None]


def _world(each: LoggedDecision) -> World:
    space = None if each.embedder is None else identity(each.embedder)
    return identity(each.target), frozenset(each.probabilities), each.arms_fingerprint, space


def _of_one_world(chosen: list[LoggedDecision], policy: Policy | None) -> list[LoggedDecision]:
    """Rows whose arms and embeddings mean the same: of what the policy fits the most rows, of
    equally many the latest."""
    worlds: dict[World, list[LoggedDecision]] = {}
    for each in chosen:
        worlds.setdefault(_world(each), []).append(each)
    refusal: PolicyError | None = None
    for rows in sorted(worlds.values(), key=lambda rows: (len(rows), rows[-1].time), reverse=True):
        try:
            if policy is not None:
                _check(policy, rows[-1])
            return rows
        except PolicyError as error:
            refusal = refusal or error
    raise PolicyError(f"the log does not fit the policy: {refusal}")


def _check(policy: Policy, one: LoggedDecision) -> None:
    embedder = one.embedder or ""
    if policy.embedder != ANY and embedder and same_space(policy.embedder, embedder):
        embedder = policy.embedder
    # Fingerprints are of all arms together, so only those of the same arms can be compared.
    same = set(policy.arms) == set(one.probabilities)
    check_compatible(
        policy, list(one.probabilities), embedder, one.arms_fingerprint if same else None
    )


def _readable(
    kept: list[LoggedDecision], policy: Policy, excluded: Counter[str]
) -> list[LoggedDecision]:
    """Rows that hold all that the policy reads."""
    before = len(kept)
    if policy.embedder != ANY:
        kept = [each for each in kept if each.embedding is not None]
        excluded[NO_EMBEDDING] = before - len(kept)
        if before and not kept:
            raise PolicyError(
                f"the policy {policy.name!r} reads the request's embedding, which this log does "
                "not keep; log with --log-embeddings"
            )
    before = len(kept)
    needed = set(policy.origin.features)
    kept = [each for each in kept if needed <= set(each.features)]
    excluded[NO_FEATURE] = before - len(kept)
    if before and not kept:
        raise PolicyError(
            f"the policy {policy.name!r} reads the features {', '.join(policy.origin.features)}, "
            "which no line of this log has all of; log with the version that the policy is from"
        )
    return kept


def _tabled(
    kept: list[LoggedDecision],
    rewards: NDArray[np.float64],
    reward: str,
    excluded: Counter[str],
    failures: Counter[str],
    asked: Counter[str],
) -> UsableDecisions:
    """asked: of every arm, with those whose reward is not known."""
    arms = list(kept[-1].probabilities)
    actions = np.array([arms.index(each.arm) for each in kept], dtype=np.intp)
    offered = np.array([[each.probabilities[arm] for arm in arms] for each in kept])  # [n, A]
    taken = np.full(offered.shape, np.nan)
    taken[np.arange(len(kept)), actions] = rewards
    names = sorted(set.intersection(*(set(each.features) for each in kept)))
    groups = [
        f"row {at}" if each.group is None else f"group {each.group}" for at, each in enumerate(kept)
    ]
    table = RewardTable(
        query_ids=[each.id for each in kept],
        tasks=["logged"] * len(kept),
        embeddings=_embeddings(kept),
        arms=arms,
        rewards=taken,
        reward_name=reward,
        embedder=kept[0].embedder or "",
        arms_fingerprint=kept[0].arms_fingerprint,
        groups=groups,
        features=np.array([[each.features[name] for name in names] for each in kept]),
        feature_names=tuple(names),
    )
    rewarded = Counter(each.arm for each in kept)
    shares = {arm: rewarded[arm] / many for arm, many in asked.items()}
    valued = [at for at, arm in enumerate(arms) if shares.get(arm) != 0]
    more = _asked_for([each.request for each in kept])
    log = Log(
        actions,
        rewards,
        np.array([each.propensity for each in kept]),
        np.unique(groups, return_inverse=True)[1],
        np.array([shares[each.arm] for each in kept]),
        offered[:, valued].sum(axis=1) if len(valued) < len(arms) else None,
    )
    inputs = np.concatenate([table.inputs, more], axis=1)
    return UsableDecisions(
        kept, table, log, offered, inputs, dict(excluded), dict(failures), shares
    )


def _asked_for(asked: list[Asked]) -> NDArray[np.float32]:
    """[n, 1 to 3]: as in `UsableDecisions.inputs`."""
    columns = [[math.log1p(one.prompt_tokens) for one in asked]]
    limits = [one.max_new_tokens for one in asked if one.max_new_tokens is not None]
    heats = [one.temperature for one in asked if one.temperature is not None]
    if len(limits) == len(asked):
        columns.append([math.log1p(limit) for limit in limits])
    if len(heats) == len(asked):
        columns.append(heats)
    return np.array(columns, dtype=np.float32).T


def _embeddings(kept: list[LoggedDecision]) -> NDArray[np.float32]:
    """[n, d]; d is 0 unless every row has one."""
    vectors = [each.embedding.array() for each in kept if each.embedding is not None]
    widths = {len(vector) for vector in vectors}
    if len(widths) > 1:
        raise PolicyError(
            f"embeddings of one space have widths {', '.join(map(str, sorted(widths)))}; the log "
            "is damaged, begin another"
        )
    if len(vectors) < len(kept):
        return np.zeros((len(kept), 0), dtype=np.float32)
    return np.stack(vectors)
