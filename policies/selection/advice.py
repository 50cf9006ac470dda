"""Advice on a table's headroom: rules from its figures to sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
class Facts:
    """The figures that the rules look at.

    choices: besides the best fixed arm, simplest first, the oracle among them.
    wins: each arm's share of rows on which it is the best.
    lead: by how much the best arm leads the best fixed one, where it is another.
    weakest: the task on which even the oracle earns least, and how much; None with a single task.
    optimistic: whether the oracle holds noise.
    at_most: what the oracle gains with the noise that repeats or draws take off; None where there
        are none.
    reward: its name, whose scale says what a gain is in proportion.
    """

    best_fixed: str
    best_mean: float
    choices: Sequence[Choice]
    wins: Mapping[str, float]
    lead: float
    weakest: tuple[str, float] | None
    queries: int
    optimistic: bool = False
    at_most: float | None = None
    reward: str = ""


def advice(facts: Facts) -> list[str]:
    """One arm is enough, or what to route by, or which kind of arm is missing; then what to know of
    the figures."""
    oracle = next(one.gain for one in facts.choices if one.kind == "oracle")
    share = relative(oracle.mean, facts.best_mean, facts.reward)
    if oracle.mean <= 0 or (share is not None and share <= SMALL_GAIN):
        sentences = [_enough(facts, oracle), _missing(facts)]
    else:
        sentences = [_route(facts, oracle)]
    never = [arm for arm, share in facts.wins.items() if share == 0]
    if never:
        sentences.append(f"Never the best arm: {', '.join(never)}.")
    if facts.at_most is not None:
        sentences.append(
            "Where a query was timed or drawn several times, the oracle chooses by one half and is "
            f"judged by the other, which leans low: it gains {_percent(facts, oracle.mean)} so, "
            f"and {_percent(facts, facts.at_most)} chosen and judged by all, which leans high."
        )
    if facts.optimistic:
        sentences.append(
            "The oracle is optimistic: the fastest of arms that were timed once, or judged by the "
            "answer to one seed at a temperature above 0 (or one that nobody logged), looks "
            "faster than it is. Repeats and several draws (`draftpick collect --draws`) take that "
            "off; at temperature 0 the reward 'modelled' has no such noise."
        )
    return sentences


def _enough(facts: Facts, oracle: Gain) -> str:
    return (
        f"One arm is enough: {facts.best_fixed}. Even the best arm of every query would gain only "
        f"{_percent(facts, oracle.mean)}."
    )


def _missing(facts: Facts) -> str:
    share = facts.wins[facts.best_fixed]
    if share >= NEARLY_ALL:
        why = f"{facts.best_fixed} is the best arm of {share:.0%} of the rows"
    else:
        why = (
            f"the arms are too similar: where {facts.best_fixed} is not the best, the best leads "
            f"by {_percent(facts, facts.lead)} on average"
        )
    if facts.weakest is None:
        return f"For more, another arm is needed, since {why}."
    task, reward = facts.weakest
    return (
        f"For more, another arm is needed, since {why}. What is missing most is a drafter that is "
        f"good at {task}: there even the best arm of every query earns only {reward:.3g}."
    )


def _route(facts: Facts, oracle: Gain) -> str:
    seen = [one for one in facts.choices if one.kind in ("feature", "learner")]
    found = [one for one in seen if one.gain.above_zero]
    if found:
        first, most = found[0], max(found, key=lambda one: one.gain.mean)
        embedding = "the query's embedding"
        what = first.name.removeprefix("best by ") if first.kind == "feature" else embedding
        sentence = f"Route by {what}: {first.name} {_gains(facts, first.gain, oracle)}."
        kept = first
        if most.gain.low > first.gain.mean:
            kept = most
            feature = most.kind == "feature"
            named = (
                most.name.replace("best", "Best", 1) if feature else f"{most.name}, of {embedding},"
            )
            gained = f"{_percent(facts, most.gain.mean)}, at least {_percent(facts, most.gain.low)}"
            sentence += f" {named} is better: it gains {gained}."
        arms = ", ".join(f"{arm} ({share:.0%})" for arm, share in kept.arms.items())
        return f"{sentence} It takes {arms}. `draftpick train` learns it."
    bound = "at most " if facts.optimistic else ""
    known = f"The best arm of every query would gain {bound}{_percent(facts, oracle.mean)}"
    end = f"Until then one arm is enough: {facts.best_fixed}."
    by_task = [one.gain for one in facts.choices if one.kind == "task" and one.gain.above_zero]
    if by_task:
        return (
            f"{known}, and the best arm by task {_gains(facts, by_task[0], oracle)}, but no "
            "input of a policy predicts it with 95% confidence. Collect more queries, or try "
            f"another embedder (--embedder). {end}"
        )
    best = max(seen, key=lambda one: one.gain.mean)
    if best.gain.needed is None and best.gain.mean > 0:
        return (
            f"{known}, but the error of the costs behind the reward hides what a choice gains: the "
            f"best one, {best.name}, gains {_percent(facts, best.gain.mean)}, and the costs alone "
            f"may move that by {_percent(facts, best.gain.costs_error or 0.0)}. Collect again on "
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
        f"{best.name}, gains {_percent(facts, best.gain.mean)}. About {best.gain.needed:,} queries "
        f"would settle it; there are {facts.queries:,}. {end}"
    )


def _gains(facts: Facts, gain: Gain, oracle: Gain) -> str:
    return (
        f"gains {_percent(facts, gain.mean)} over the best fixed arm ({facts.best_fixed}), at "
        f"least {_percent(facts, gain.low)}, and {gain.mean / oracle.mean:.0%} of what the best "
        "arm of every query would"
    )


def _percent(facts: Facts, gain: float) -> str:
    return in_words(gain, facts.best_mean, facts.reward)
