"""The guard: a learned policy is kept only if it is better than the best fixed arm with 95%
confidence.

Candidates are judged by cross-fitting: each is trained on four fifths of the queries, and what it
earns is measured on the rest. The best fixed arm is the one that would be saved instead,
chosen on all of them, which is slightly optimistic. Chosen on four fifths as well it would be too
easy to beat: of nearly tied arms, the one ahead on four folds is behind on the fifth, and so on
every fold. On noise, a test at 2.5 % then passes up to 8 % of candidates, and here about 1 %.
A query counts once, however many rows it has, and queries of one group are not independent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..errors import PolicyError
from ..evaluation.bounds import MIN_BOUNDED_GROUPS, Gain, gain_of, resamples
from ..evaluation.scale import in_words, percent
from ..evaluation.units import Units, units_of
from ..fitting import check_name, check_options, fit, options_of
from ..fixed import fit_best_fixed, one_hot
from ..learners.binned import splitting_features, splitting_pairs
from ..records import Fitted, Float64, RewardTable
from .crossfit import (
    MIN_GROUPS,
    cross_fit,
    earned,
    folds_of,
    gains_by_costs,
    learned,
    too_few,
    usable,
)

AUTO = "auto"
Objection = Callable[[RewardTable, Float64], str]  # of a table and choices [n, A]
FIXED = "best-fixed"
CONSTANT = (FIXED, "fixed", "uniform")  # nothing in them is learnt from a query
LEARNERS: dict[str, dict[str, Any]] = {  # what `auto` tries after the binned policies
    "regression": {},
    "knn": {},
    "logistic": {"weighted": True},
    "reinforce": {},
}


@dataclass(frozen=True)
class Candidate:
    """A policy to try: its name in `POLICIES`, its options, and how it is called in reports."""

    policy: str
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        keys = ("feature", "second_feature")
        features = [self.options[key] for key in keys if self.options.get(key)]
        return f"{self.policy} by {' and '.join(features)}" if features else self.policy


@dataclass(frozen=True)
class Tried:
    """A candidate, and what it gains over the best fixed arm.

    percent: the mean gain in proportion, as of `scale.relative`; None where there is no proportion.
    """

    name: str
    policy: str
    options: dict[str, Any]
    gain: Gain
    percent: float | None


@dataclass(frozen=True, eq=False)
class Guarded:
    """The policy that the guard saves, and why.

    fitted: the policy to save, trained on all rows.
    saved: its name: a candidate's, or "best-fixed".
    best_fixed: the arm that is best on average.
    best_fixed_mean: what that arm earns; nan where nothing was estimated.
    tried: every candidate, simplest first; empty where there were too few queries.
    skipped: candidates of `auto` that could not be trained or may not be saved, and why.
    queries: how many count; groups: how many independent groups they are in.
    left_out: words about rows and answers that failed; empty where none did.
    verdict: all of it in a sentence or two.
    probs: [n, A], what is saved as it would have chosen on every row of the table, from other
        folds; the best fixed arm as it is; 0 on rows that are left out.
    """

    fitted: Fitted
    saved: str
    best_fixed: str
    best_fixed_mean: float
    tried: list[Tried]
    skipped: dict[str, str]
    queries: int
    groups: int
    left_out: str
    verdict: str
    probs: Float64


def check_policy(policy: str, options: Mapping[str, Any] | None = None) -> None:
    """Raise PolicyError for an unknown policy, or an option that it does not take; "auto" takes
    none."""
    if policy == AUTO and options:
        raise PolicyError(
            f"the policy 'auto' takes no options ({', '.join(options)}); name the policy that they "
            "are for"
        )
    if policy != AUTO:
        check_name(policy, AUTO)
        check_options(policy, options or {})


def candidates(
    policy: str, table: RewardTable, options: Mapping[str, Any] | None = None
) -> list[Candidate]:
    """The policies that the guard compares, simplest first.

    A binned policy for each feature that splits the table, and for temperature and load together;
    then the policy asked for, or with "auto" every learner worth trying.

    Raises PolicyError as `check_policy`.
    """
    check_policy(policy, options)
    found = [Candidate("binned", {"feature": name}) for name in splitting_features(table)]
    for feature, second in splitting_pairs(table):
        found.append(Candidate("binned", {"feature": feature, "second_feature": second}))
    if policy == AUTO:
        return found + [Candidate(name, dict(given)) for name, given in LEARNERS.items()]
    asked = Candidate(policy, dict(options or {}))
    if policy == "binned":
        asked = Candidate(policy, {"feature": options_of("binned")["feature"]} | asked.options)
        found = [other for other in found if other.name != asked.name]
    return [*found, asked]


def guarded(
    table: RewardTable,
    validation: RewardTable | None = None,
    seed: int = 0,
    *,
    policy: str = AUTO,
    options: Mapping[str, Any] | None = None,
    fixed: str | None = None,
    objection: Objection = lambda table, probs: "",
) -> Guarded:
    """Train the candidates, and save the simplest that beats the best fixed arm with 95%
    confidence.

    A candidate counts where the lower bound of its gain is above 0 (one-sided 95 %, Bonferroni over
    candidates; see `gain_of`), and replaces a simpler one that counts only where it is itself
    better than that one with 95% confidence. Where none counts, the best fixed arm is saved, as
    where there are fewer than 20 queries or groups of them. The same seed gives the same numbers.

    validation: measured, and never chosen by.
    fixed: the arm that takes the place of the best fixed one, for a caller who may not save that.
    objection: why a candidate that chooses so on other folds may not be saved, "" where it may.

    Raises PolicyError for an unknown policy or option, and for a table that `usable` refuses,
    NoSuchName for an unknown arm.
    """
    asked = candidates(policy, table, options)
    rows = usable(table)
    judged, units = rows.table, units_of(rows.table)
    if fixed is None:
        best = fit_best_fixed(table, validation, seed)
    else:
        best = fit("fixed", table, validation, seed, arm=fixed)
    arm = str(best.policy.origin.options["arm"])
    always = np.tile(one_hot(len(judged.arms), judged.arms.index(arm)), (len(judged), 1))
    probs, skipped = {FIXED: always}, dict[str, str]()
    tried, saved, base_mean = list[Tried](), FIXED, float("nan")
    if units.groups >= MIN_GROUPS and len(judged.arms) > 1:
        crossed, skipped = _cross_fitted(asked, judged, seed, policy != AUTO, objection)
        probs |= crossed
        values = {name: units.by_query(earned(judged, each)) for name, each in probs.items()}
        base_mean = float(values[FIXED].mean())
        named = [one for one in asked if one.name in crossed]
        tried, saved = _selected(named, values, probs, judged, units, seed)
    for one in tried:
        if one.name == saved:
            best = fit(one.policy, table, validation, seed, **one.options)
    every_row = np.zeros(table.rewards.shape)
    every_row[rows.kept] = probs[saved]
    gains = {
        one.name: (one.gain, amount(one.gain.mean, base_mean, table.reward_name)) for one in tried
    }
    return Guarded(
        fitted=best,
        saved=saved,
        best_fixed=arm,
        best_fixed_mean=base_mean,
        tried=tried,
        skipped=skipped,
        queries=units.queries,
        groups=units.groups,
        left_out=rows.words(),
        verdict=verdict(saved, arm, gains, units, len(judged.arms), fixed is None),
        probs=every_row,
    )


def _cross_fitted(
    asked: Sequence[Candidate],
    judged: RewardTable,
    seed: int,
    strict: bool,
    objection: Objection,
) -> tuple[dict[str, Float64], dict[str, str]]:
    """Each candidate's cross-fitted distribution [m, A]; and which could not be trained or may not
    be saved, and why.

    strict: raise what training raises.
    """
    folds = folds_of(judged, seed)
    probs, skipped = dict[str, Float64](), dict[str, str]()
    for one in asked:
        try:
            made = cross_fit(judged, folds, learned(one.policy, seed, one.options))
            if why := objection(judged, made):
                skipped[one.name] = why
            else:
                probs[one.name] = made
        except PolicyError as error:
            if strict:
                raise
            skipped[one.name] = str(error)
    return probs, skipped


def _selected(
    asked: Sequence[Candidate],
    values: Mapping[str, Float64],
    probs: Mapping[str, Float64],
    table: RewardTable,
    units: Units,
    seed: int,
) -> tuple[list[Tried], str]:
    """Every candidate with its gain, and the name of the one to save.

    asked: simplest first.
    values: [Q], what each, and the best fixed arm, earns on every query.
    probs: [n, A], what each chooses.
    """
    counts = resamples(units, seed)

    def over(one: str, other: str) -> Gain:
        by_costs = gains_by_costs(table, probs[one], probs[other], units)
        return gain_of(values[one] - values[other], units, counts, len(asked), by_costs)

    base, tried, saved = float(values[FIXED].mean()), list[Tried](), FIXED
    for one in asked:
        gain = over(one.name, FIXED)
        share = percent(gain.mean, base, table.reward_name)
        tried.append(Tried(one.name, one.policy, one.options, gain, share))
        if gain.above_zero and over(one.name, saved).above_zero:
            saved = one.name
    return tried, saved


def verdict(
    saved: str,
    fixed: str,
    gains: Mapping[str, tuple[Gain, str]],
    units: Units,
    arms: int,
    is_best: bool = True,
) -> str:
    """Say what was saved and why; of the fixed arm also how many queries would settle it.

    gains: each candidate's gain over the fixed arm, and how much that is in words.
    is_best: whether that arm was taken as the best.
    """
    named = f"the {'best ' * is_best}fixed arm ({fixed})"
    if saved in gains:
        gain, words = gains[saved]
        return (
            f"Saved: {saved}. It gains {words} over {named}, and at least {gain.low:.3g} "
            f"({_tests(len(gains))})."
        )
    kept = f"Saved: {named}."
    if arms < 2:
        return f"{kept} The table has no other arm to choose."
    if units.groups < MIN_GROUPS:
        return f"{kept} {too_few(units, 'to estimate what a policy gains')}."
    if not gains:
        return f"{kept} No policy could be trained."
    name, (gain, words) = max(gains.items(), key=lambda item: item[1][0].mean)
    if units.groups < MIN_BOUNDED_GROUPS:
        sure = too_few(units, "to say with confidence what a policy gains", MIN_BOUNDED_GROUPS)
        return f"{kept} {sure} (so far the best, {name}: {words})."
    if gain.needed is None and gain.mean > 0:
        return (
            f"{kept} No policy is better with confidence: the best, {name}, gains "
            f"{words}, but the costs behind the reward are known so loosely "
            f"that they alone may move this by {gain.costs_error or 0:.3g} "
            f"({_tests(len(gains))}). Collect again on an idle machine."
        )
    if gain.needed is None:
        return (
            f"{kept} No policy gained anything over it on queries that it was not trained on (the "
            f"best, {name}: {words}); one arm is enough here."
        )
    return (
        f"{kept} No policy is better with confidence: the best, {name}, gains "
        f"{words}, but its lower bound is {gain.low:.3g} "
        f"({_tests(len(gains))}). About {gain.needed:,} queries would settle it; there are "
        f"{units.queries:,}."
    )


def amount(gain: float, base: float, reward: str) -> str:
    """A gain over a mean reward `base`, in units of the reward and in proportion."""
    if percent(gain, base, reward) is None:
        return f"{gain:.3g}"
    return f"{gain:.3g} ({in_words(gain, base, reward, '.2g')})"


def _tests(tests: int) -> str:
    return "95% confidence" if tests == 1 else f"95% confidence for all {tests} candidates together"
