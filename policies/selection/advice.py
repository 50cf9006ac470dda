"""The headroom of a table in figures, and what to do about it: rules from those to sentences."""

from __future__ import annotations

from dataclasses import dataclass

from ..evaluation.bounds import Gain
from ..evaluation.scale import in_words, relative

SMALL_GAIN = 0.02  # in proportion, as of `scale.relative`: less than this is not worth a policy
NEARLY_ALL = 0.8  # the share of rows that makes an arm the best nearly everywhere


@dataclass(frozen=True)
class Choice:
    """A way to choose, and what it earns.

    kind: "fixed", "feature", "learner", "task" (which a policy does not see) or "oracle".
    mean, low, high: with the bootstrap's 95 % interval over queries.
    gain: over the best fixed arm, paired.
    percent: the same in proportion, as of `scale.relative`; None where there is no proportion.
    gap_share: the share of the oracle's gain; None where the oracle gains nothing.
    arms: the share of rows for which each arm is chosen, the most frequent first.
    """

    name: str
    kind: str
    mean: float
    low: float
    high: float
    gain: Gain
    percent: float | None
    gap_share: float | None
    arms: dict[str, float]


@dataclass(frozen=True)
class Part:
    """Some of the rows: a task, or a bin of a feature.

    by: "task", or the feature.
    arm: the best one here, seen with hindsight, and what it earns.
    fixed, oracle: what the best fixed arm of the whole table and the oracle earn here.
    gap_share: of the whole gap between those two, what lies here; None where there is none.
    """

    by: str
    name: str
    rows: int
    arm: str
    arm_mean: float
    fixed: float
    oracle: float
    gap_share: float | None


@dataclass(frozen=True)
class ArmWins:
    """An arm, its mean reward, and the rows on which it is the best.

    wins: their share, ties shared.
    lead: by how much it leads the next best arm there, on average; None where it never wins.
    """

    arm: str
    mean: float
    wins: float
    lead: float | None


@dataclass(frozen=True)
class Headroom:
    """The gain that is possible, where it lies, and what to do about it.

    queries: how many count; one asked in several ways counts once. groups: how many independent
        groups they are in.
    choices: the best fixed arm first, the oracle last.
    repeated, single: as in `headroom.Oracle`.
    optimistic: whether the oracle holds noise that could not be taken off.
    draws: the fewest answers that were drawn for a row at a temperature above 0; 0 where there is
        no such row, or nobody said.
    oracle_at_most: the oracle's mean reward with the noise that repeats and draws take off; theirs,
        among `choices`, is at least what choosing the best arm earns on average.
    left_out: words about what failed; empty where nothing did.
    advice: sentences.
    """

    reward: str
    queries: int
    groups: int
    best_fixed: str
    choices: list[Choice]
    parts: list[Part]
    arms: list[ArmWins]
    repeated: int
    single: int
    optimistic: bool
    draws: int
    oracle_at_most: float
    left_out: str
    advice: list[str]


def advice(found: Headroom, lead: float) -> list[str]:
    """One arm is enough, or what to route by, or which kind of arm is missing; then what to know of
    the figures.

    lead: by how much the best arm leads the best fixed one, where it is another.
    """
    oracle = found.choices[-1].gain
    share = relative(oracle.mean, found.choices[0].mean, found.reward)
    if oracle.mean <= 0 or (share is not None and share <= SMALL_GAIN):
        sentences = [_enough(found, oracle), _missing(found, lead)]
    else:
        sentences = [_route(found, oracle)]
    never = [one.arm for one in found.arms if one.wins == 0]
    if never:
        sentences.append(f"Never the best arm: {', '.join(never)}.")
    if found.repeated:
        at_most = found.oracle_at_most - found.choices[0].mean
        sentences.append(
            "Where a query was timed or drawn several times, the oracle chooses by one half and is "
            f"judged by the other, which leans low: it gains {_percent(found, oracle.mean)} so, "
            f"and {_percent(found, at_most)} chosen and judged by all, which leans high."
        )
    if found.optimistic:
        sentences.append(
            "The oracle is optimistic: the fastest of arms that were timed once, or judged by the "
            "answer to one seed at a temperature above 0 (or one that nobody logged), looks "
            "faster than it is. Repeats and several draws (`draftpick collect --draws`) take that "
            "off; at temperature 0 the reward 'modelled' has no such noise."
        )
    return sentences


def _enough(found: Headroom, oracle: Gain) -> str:
    return (
        f"One arm is enough: {found.best_fixed}. Even the best arm of every query would gain only "
        f"{_percent(found, oracle.mean)}."
    )


def _missing(found: Headroom, lead: float) -> str:
    share = next(one.wins for one in found.arms if one.arm == found.best_fixed)
    if share >= NEARLY_ALL:
        why = f"{found.best_fixed} is the best arm of {share:.0%} of the rows"
    else:
        why = (
            f"the arms are too similar: where {found.best_fixed} is not the best, the best leads "
            f"by {_percent(found, lead)} on average"
        )
    tasks = [part for part in found.parts if part.by == "task"]
    if len(tasks) < 2:
        return f"For more, another arm is needed, since {why}."
    weakest = min(tasks, key=lambda part: part.oracle)
    return (
        f"For more, another arm is needed, since {why}. What is missing most is a drafter that is "
        f"good at {weakest.name}: there even the best arm of every query earns only "
        f"{weakest.oracle:.3g}."
    )


def _route(found: Headroom, oracle: Gain) -> str:
    seen = [one for one in found.choices if one.kind in ("feature", "learner")]
    better = [one for one in seen if one.gain.above_zero]
    if better:
        first, most = better[0], max(better, key=lambda one: one.gain.mean)
        embedding = "the query's embedding"
        what = first.name.removeprefix("best by ") if first.kind == "feature" else embedding
        sentence = f"Route by {what}: {first.name} {_gains(found, first.gain, oracle)}."
        kept = first
        if most.gain.low > first.gain.mean:
            kept = most
            feature = most.kind == "feature"
            named = (
                most.name.replace("best", "Best", 1) if feature else f"{most.name}, of {embedding},"
            )
            gained = f"{_percent(found, most.gain.mean)}, at least {_percent(found, most.gain.low)}"
            sentence += f" {named} is better: it gains {gained}."
        arms = ", ".join(f"{arm} ({share:.0%})" for arm, share in kept.arms.items())
        return f"{sentence} It takes {arms}. `draftpick train` learns it."
    bound = "at most " if found.optimistic else ""
    known = f"The best arm of every query would gain {bound}{_percent(found, oracle.mean)}"
    end = f"Until then one arm is enough: {found.best_fixed}."
    by_task = [one.gain for one in found.choices if one.kind == "task" and one.gain.above_zero]
    if by_task:
        return (
            f"{known}, and the best arm by task {_gains(found, by_task[0], oracle)}, but no "
            "input of a policy predicts it with 95% confidence. Collect more queries, or try "
            f"another embedder (--embedder). {end}"
        )
    best = max(seen, key=lambda one: one.gain.mean)
    if best.gain.needed is None and best.gain.mean > 0:
        return (
            f"{known}, but the error of the costs behind the reward hides what a choice gains: the "
            f"best one, {best.name}, gains {_percent(found, best.gain.mean)}, and the costs alone "
            f"may move that by {_percent(found, best.gain.costs_error or 0.0)}. Collect again on "
            f"an idle machine. {end}"
        )
    if best.gain.needed is None:
        return (
            f"{known}, but no feature of a query predicts it: no choice gains anything on "
            "held-out queries. Another embedder (--embedder) or more "
            f"features may show it. {end}"
        )
    return (
        f"{known}, but no feature of a query predicts it with 95% confidence: the best choice, "
        f"{best.name}, gains {_percent(found, best.gain.mean)}. About {best.gain.needed:,} queries "
        f"would settle it; there are {found.queries:,}. {end}"
    )


def _gains(found: Headroom, gain: Gain, oracle: Gain) -> str:
    return (
        f"gains {_percent(found, gain.mean)} over the best fixed arm ({found.best_fixed}), at "
        f"least {_percent(found, gain.low)}, and {gain.mean / oracle.mean:.0%} of what the best "
        "arm of every query would"
    )


def _percent(found: Headroom, gain: float) -> str:
    return in_words(gain, found.choices[0].mean, found.reward)
