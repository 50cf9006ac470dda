"""Estimates from a log: of the policies that wrote it, of every arm, and of another policy."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from decoders.common.errors import NoSuchName
from policies import Policy, PolicyError
from policies.evaluation.evaluate import aligned, greedy_probs
from policies.fixed import one_hot
from policies.ope.comparison import Comparison, compare, cross_fitted, on_policy
from policies.ope.estimators import Estimate, Log
from policies.records import Float64

from .reader import DecisionRows
from .record import LOG_REWARDS, TIMED
from .rows import KEPT, UsableDecisions, usable

SMALL_PROPENSITY = 0.01  # a propensity below which one row weighs as much as a hundred
MIN_EFFECTIVE_ROWS = 50  # independent effective rows below which an interval is not to be trusted
HEAVY = 0.1  # of all weight, on one row or group, or above tau
MIN_REPORTED_ROWS = 10  # effective rows below which an arm is not reported
UNKNOWN = 0.001  # of a policy's choices, on arms of which nothing could be known
UNEVEN = 0.02  # between arms' shares of rows without the reward


@dataclass(frozen=True)
class Version:
    """The rows of one policy that chose in one way, and their mean reward: its value, as it was.

    policy: its fingerprint. choice: "drawn" or "best".
    """

    policy: str
    name: str
    choice: str
    rows: int
    value: Estimate


@dataclass(frozen=True)
class ArmFigures:
    """One arm in the log.

    taken: rows. failed: those of them whose answer failed, which earned the worst reward of the
        log.
    mean: reward of the rows that took it; None where none did. Not what the arm is worth, since the
        policy chose them.
    always: what taking it always would have earned (doubly robust); None where some requests could
        not have drawn it, and below MIN_REPORTED_ROWS effective rows.
    effective: independent rows behind `always`.
    """

    arm: str
    taken: int
    failed: int
    mean: float | None
    always: Estimate | None
    effective: float


@dataclass(frozen=True)
class Judgement:
    """All that `draftpick evaluate --logs` reports.

    rows: decisions in the log; excluded: why -> how many of them do not count; broken: lines cut
        short.
    unknown: "greedy" or "dynamic" -> the share of the policy's choices that fall on arms which
        could not have been drawn.
    comparisons: of the policy, taking its best arm ("greedy") and drawing ("dynamic"), one where
        both are the same; empty without a policy.
    warnings: sentences.
    """

    reward: str
    rows: int
    used: int
    broken: int
    excluded: dict[str, int]
    logged: Estimate
    versions: list[Version]
    arms: list[ArmFigures]
    policy: str | None = None
    comparisons: dict[str, Comparison] = field(default_factory=dict)
    unknown: dict[str, float] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)


def judge(
    rows: DecisionRows,
    policy: Policy | None = None,
    reward: str = "tokens_per_s",
    *,
    tau: float = 10.0,
    seed: int = 0,
) -> Judgement:
    """Judge a policy by a log, or the log alone.

    reward: a name of LOG_REWARDS. tau: of switch-dr.

    Raises NoSuchName for another reward, PolicyError where the log has no row that counts, or the
    policy never takes an arm that was logged.
    """
    if reward not in LOG_REWARDS:
        raise NoSuchName("reward of a log", reward, tuple(LOG_REWARDS))
    held = usable(rows, policy, reward, LOG_REWARDS[reward])
    log, warnings = held.log, list[str]()
    predicted = _predicted(held, seed, warnings)
    if rows.broken:
        warnings.append(
            f"{_count(rows.broken, 'line')} cut short, by a kill or a full disk, left out"
        )
    units = int(log.units.max()) + 1
    if units < MIN_EFFECTIVE_ROWS:
        what = "row" if units == len(held.decisions) else "group"
        warnings.append(
            f"only {_count(units, what)} to judge by; below {MIN_EFFECTIVE_ROWS} an interval "
            "promises too much"
        )
    small = int((log.propensities < SMALL_PROPENSITY).sum())
    if small:
        warnings.append(
            f"{_count(small, 'row')} with a propensity below {SMALL_PROPENSITY:g}: one alone may "
            "decide an estimate; log with a larger --explore"
        )
    warnings += _missing(held) + _beside(held, reward)
    ways: dict[str, Float64] = {}
    if policy is not None:
        if policy.origin.arms_fingerprint and set(policy.arms) != set(held.table.arms):
            warnings.append(
                "the policy chooses among other arms than were logged together, so it cannot be "
                "checked that their recipes are the same"
            )
        probs = aligned(policy, held.table)
        ways = {"greedy": greedy_probs(probs), "dynamic": probs}
        if np.array_equal(ways["greedy"], probs):
            del ways["dynamic"]
    probs_of = ways | _always(held)
    made = compare(log, probs_of, predicted, held.offered, tau=tau, seed=seed)
    logged = next(iter(made.values())).logged if made else on_policy(log, seed=seed)
    found = {way: made[way] for way in ways}
    silent = np.array([held.shares.get(arm) == 0 for arm in held.table.arms])
    lost = (held.offered == 0) | silent  # [n, A]
    unknown = {way: float((probs * lost).sum(axis=1).mean()) for way, probs in ways.items()}
    for way in ways:
        warnings += _doubts(way, found[way], unknown[way])
    return Judgement(
        reward=reward,
        rows=len(rows.decisions),
        used=len(held.decisions),
        broken=rows.broken,
        excluded={why: many for why, many in held.excluded.items() if many},
        logged=logged,
        versions=_versions(held, logged, seed),
        arms=_arms(held, made),
        policy=None if policy is None else policy.name,
        comparisons=found,
        unknown=unknown,
        warnings=warnings,
    )


def _count(many: int, what: str) -> str:
    return f"{many} {what}{'s' * (many != 1)}"


def _predicted(held: UsableDecisions, seed: int, warnings: list[str]) -> Float64 | None:
    try:
        return cross_fitted(held.inputs, held.log, len(held.table.arms), seed=seed)
    except PolicyError as error:
        warnings.append(f"{error}; dm, dr and switch-dr are left out")
        return None


def _missing(held: UsableDecisions) -> list[str]:
    """What follows where some arms have rows without the reward, and others have not."""
    shares = {arm: 1 - share for arm, share in held.shares.items()}
    silent = [arm for arm, share in shares.items() if share == 1]
    warnings = []
    if silent:
        warnings.append(
            f"no answer of {', '.join(silent)} has a value of this reward; what the logged choices "
            "earned is not known, and gains are left out; values are of requests that could have "
            "drawn another arm"
        )
    partly = {arm: share for arm, share in shares.items() if share < 1}
    if max(partly.values()) - min(partly.values()) > UNEVEN:
        told = ", ".join(f"{arm} {share:.0%}" for arm, share in partly.items())
        warnings.append(
            f"rows without a value of this reward are more of some arms than of others ({told}); "
            "the other rows of each arm stand for them"
        )
    return warnings


def _beside(held: UsableDecisions, reward: str) -> list[str]:
    """What a row's reward leaves out of what its arm did to other rows."""
    warnings = []
    if kept := held.excluded.get(KEPT):
        warnings.append(
            f"values are of the turns at which an arm was chosen; what it then did to "
            f"{_count(kept, 'later turn')} that stayed with it is in none"
        )
    shared = [each.features.get("requests-running", 0) > 0 for each in held.decisions]
    if reward in TIMED and any(shared):
        warnings.append(
            f"{np.mean(shared):.0%} of the rows were answered beside others, which may share its "
            "passes: an arm's speed is that among neighbours of the logged mix, not where all take "
            "it; saved-passes does not depend on them"
        )
    return warnings


def _doubts(way: str, found: Comparison, unknown: float) -> list[str]:
    """What speaks against trusting an estimate, and what would help."""
    warnings = []
    if unknown > UNKNOWN:
        warnings.append(
            f"{way}: {unknown:.0%} of the policy's choices fall on arms that could not have been "
            "drawn, or whose reward is never known; of these only dm, dr and switch-dr say "
            "anything, by prediction alone; log with --explore, which gives every arm a chance, "
            "and a reward that every arm has"
        )
    if found.effective < MIN_EFFECTIVE_ROWS:
        more = math.ceil(found.rows * (MIN_EFFECTIVE_ROWS / found.effective - 1))
        warnings.append(
            f"{way}: the log is worth {found.effective:.1f} independent rows logged by the policy "
            f"itself, too little for an estimate; about {more:,} more rows like its {found.rows} "
            f"make {MIN_EFFECTIVE_ROWS}"
        )
    elif found.heaviest > HEAVY:
        warnings.append(f"{way}: one row or group carries {found.heaviest:.0%} of all weight")
    if "switch-dr" in found.values and found.cut > HEAVY:
        warnings.append(
            f"{way}: {found.cut:.0%} of all weight is above --tau; there switch-dr is dm alone, "
            "and its interval leaves out the prediction's error"
        )
    gain = found.gains.get("dr", found.gains["snips"])
    if gain.low <= 0 <= gain.high and gain.value and found.effective >= MIN_EFFECTIVE_ROWS:
        needed = found.rows * (1.96 * gain.standard_error / gain.value) ** 2
        more = math.ceil(max(needed - found.rows, 0))
        warnings.append(
            f"{way}: whether the policy is better than what was logged is not settled"
            + (f"; at this difference it would take about {more:,} more rows" if more else "")
        )
    return warnings


def _versions(held: UsableDecisions, logged: Estimate, seed: int) -> list[Version]:
    """logged: the mean reward of the whole log."""
    keys = [(each.policy or "", each.policy_name or "", each.choice) for each in held.decisions]
    counts = Counter(keys).most_common()

    def value(key: tuple[str, str, str]) -> Estimate:
        if len(counts) == 1:
            return logged
        part = _part(held.log, np.array([each == key for each in keys]))
        return on_policy(part, seed=seed)

    return [Version(*key, many, value(key)) for key, many in counts]


def _part(log: Log, rows: np.ndarray) -> Log:
    groups = None if log.groups is None else log.groups[rows]
    shares = None if log.shares is None else log.shares[rows]
    return Log(log.actions[rows], log.rewards[rows], log.propensities[rows], groups, shares)


def _always(held: UsableDecisions) -> dict[str, Float64]:
    """ "fixed/ARM" -> [n, A] always taking it, of the arms that every request could have drawn."""
    size = len(held.table.arms)
    return {
        f"fixed/{arm}": np.tile(one_hot(size, at), (len(held.log.actions), 1))
        for at, arm in enumerate(held.table.arms)
        if (held.log.actions == at).any() and (held.offered[:, at] > 0).all()
    }


def _arms(held: UsableDecisions, always: Mapping[str, Comparison]) -> list[ArmFigures]:
    figures = []
    for at, arm in enumerate(held.table.arms):
        took, found = held.log.actions == at, always.get(f"fixed/{arm}")
        effective = found.effective if found else 0.0
        value = found.values.get("dr", found.values["snips"]) if found else None
        mean = float(held.log.rewards[took].mean()) if took.any() else None
        figures.append(
            ArmFigures(
                arm,
                taken=int(took.sum()),
                failed=held.failures.get(arm, 0),
                mean=mean,
                always=value if effective >= MIN_REPORTED_ROWS else None,
                effective=effective,
            )
        )
    return figures
