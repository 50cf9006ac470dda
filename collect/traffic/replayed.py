"""Traffic with what every arm would have done: the rows of a collection, without a target."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from decoders.arms import ArmRecipe
from decoders.common.errors import DraftpickError
from decoders.common.hashing import HashingEmbedder
from decoders.costs.measured import Costs
from policies.records import RewardTable

from .. import rewards
from ..features import FEATURES, RequestContext, varying
from ..records import ArmInfo, Outcome, counted
from ..replay.records import Replay
from ..rewards import Reward
from .logged import LoggedReplay
from .records import TokenAnswer

EMBEDDED_CHARACTERS = 8000  # characters of what was asked that are embedded, from the end
OnDone = Callable[[int, int, str], None]


@dataclass(frozen=True, eq=False)
class Traffic:
    """n answers.

    answers: those that were replayed, in their order.
    tasks, groups: [n] of each; answers of one group are not independent.
    running: [n] mean number of answers that were under way; None where the logs do not say.
    arms: as declared, plain decoding first.
    outcomes: arm -> [n] what its loop would have done.
    """

    answers: Sequence[TokenAnswer]
    tasks: Sequence[str]
    groups: Sequence[str]
    running: NDArray[np.float64] | None
    arms: Mapping[str, ArmRecipe]
    outcomes: Mapping[str, Sequence[Outcome]]

    @property
    def plain(self) -> str:
        """The arm without drafts."""
        return next(name for name, arm in self.arms.items() if arm.kind == "autoregressive")

    def without_engines(self) -> Traffic:
        """Only arms of ours, among which requests can be given one each."""
        arms = {name: arm for name, arm in self.arms.items() if arm.kind != "engine"}
        return replace(self, arms=arms, outcomes={name: self.outcomes[name] for name in arms})

    def loads(self, costs: Costs | None) -> list[int]:
        """[n] for each answer the number of answers at once, of those whose costs are known, that
        is nearest to its own; 1 where the logs do not say."""
        known = [1] if costs is None else sorted({1, *costs.at_once})
        if self.running is None:
            return [1] * len(self.answers)
        return nearest(self.running, known)


def replayed(
    answers: Sequence[TokenAnswer],
    tasks: Sequence[str],
    replay: LoggedReplay,
    arms: Mapping[str, ArmRecipe],
    chosen: Sequence[int],
    on_done: OnDone = lambda done, total, arm: None,
) -> Traffic:
    """answers: all of the logs, which suffix decoding draws on.
    chosen: places of those that are replayed.

    Answers that are longer than a draft model's context are left out for all arms. Raises
    DraftpickError where none is left.
    """
    found: dict[str, list[Replay | None]] = {}
    for number, name in enumerate(arms):
        on_done(number, len(arms), name)
        found[name] = replay.replay(name, answers, chosen)
    on_done(len(arms), len(arms), "")
    rows = [
        row
        for row in range(len(chosen))
        if len(answers[chosen[row]].ids) > 1 and all(found[name][row] is not None for name in arms)
    ]
    if not rows:
        raise DraftpickError(
            "no answer of the logs can be replayed: each has one token, or is longer than the "
            "draft model's context"
        )
    kept = [answers[chosen[row]] for row in rows]
    timed = [each.logged.span for each in answers if each.logged.span is not None]
    running = None
    if len(timed) == len(answers):
        running = mean_running(timed)[[chosen[row] for row in rows]]
    outcomes = {
        name: [_outcome(name, kept[i], found[name][row]) for i, row in enumerate(rows)]
        for name in arms
    }
    groups = [group_of(each) for each in kept]
    return Traffic(
        kept, [tasks[chosen[row]] for row in rows], groups, running, dict(arms), outcomes
    )


def reward_table(
    traffic: Traffic, reward: Reward, costs: Costs | None, loads: Sequence[int] = ()
) -> RewardTable:
    """What a policy would learn from.

    costs: of the engine's passes; None for a reward that needs none.
    loads: numbers of answers at once that every answer is priced at, a row each; without any, one
        row an answer, priced at its own load.
    """
    infos = {
        name: ArmInfo(name, arm.kind, 0, True, arm.model_dump(mode="json"))
        for name, arm in traffic.arms.items()
    }
    own = traffic.loads(costs)
    rows = [(at, load) for at in range(len(traffic.answers)) for load in loads or [own[at]]]
    priced = costs or Costs((1.0,), {})

    def valued(costs: Costs) -> NDArray[np.float64]:
        """[rows, arms]"""
        made = np.empty((len(rows), len(infos)))
        for row, (at, load) in enumerate(rows):
            context = rewards.Context(infos, costs.of_answers(load))
            for column, name in enumerate(infos):
                outcome = replace(traffic.outcomes[name][at], running=load - 1)
                made[row, column] = rewards.compute(reward, outcome, context)
        return made

    contexts = [_context(traffic.answers[at], load) for at, load in rows]
    feature_names, features = varying(_features(traffic), contexts)
    embedder = HashingEmbedder()
    vectors = embedder.embed([each.logged.asked[-EMBEDDED_CHARACTERS:] for each in traffic.answers])
    repeats = priced.repeats if reward.needs_costs else ()
    earned = valued(priced)
    heats = [traffic.answers[at].logged.temperature for at, _ in rows]
    sampled = [heat is None or heat > 0 for heat in heats]  # or taken for it where nobody says
    ids = [f"{each.logged.where}#{at}" for at, each in enumerate(traffic.answers)]
    return RewardTable(
        query_ids=[ids[at] if load == 1 else f"{ids[at]}@x{load}" for at, load in rows],
        tasks=[traffic.tasks[at] for at, _ in rows],
        embeddings=vectors[[at for at, _ in rows]],
        arms=list(infos),
        rewards=earned,
        reward_name=reward.label(0.5),
        embedder=embedder.name,
        arms_fingerprint="",
        groups=[traffic.groups[at] for at, _ in rows],
        queries=[ids[at] for at, _ in rows],
        features=features,
        feature_names=feature_names,
        repeats=np.array([valued(each) for each in repeats]) if repeats else None,
        drawn=np.where(np.array(sampled)[:, None], earned, np.nan)[None] if any(sampled) else None,
    )


def require_known(reward: Reward, costs: Costs | None, loads: Sequence[int] = ()) -> None:
    """Raises DraftpickError for a reward that logs say nothing of, and for numbers of answers at
    once whose costs are not known."""
    lacks = (
        reward.needs_similarity or reward.needs_measured or reward.needs_prices or reward.uses_size
    )
    if lacks:
        raise DraftpickError(
            f"the reward {reward.name!r} is not known of logs; take 'time-saved', 'modelled', "
            "'saved-passes' or 'acceptance'"
        )
    if reward.needs_costs and costs is None:
        raise DraftpickError(
            f"the reward {reward.name!r} needs what passes cost; give --costs FILE (`draftpick "
            "costs URL` makes one) or --target, or take 'saved-passes'"
        )
    known = [1] if costs is None else sorted({1, *costs.at_once})
    for load in loads:
        if load not in known:
            raise DraftpickError(
                f"what passes cost for {load} answers at once is not known (it is for "
                f"{', '.join(map(str, known))}); leave it out of --at-once, or measure it"
            )


def _outcome(arm: str, answer: TokenAnswer, replay: Replay | None) -> Outcome:
    assert replay is not None
    return Outcome(
        query_id=answer.logged.where,
        arm=arm,
        temperature=answer.logged.temperature or 0.0,
        parameters=0,
        **counted(replay),
        new_tokens=len(answer.ids),
    )


def _features(traffic: Traffic) -> tuple[str, ...]:
    """Names of those that the logs tell of every answer."""
    logged = [each.logged for each in traffic.answers]
    unknown = set[str]()
    if any(each.limit is None for each in logged):
        unknown.add("log-max-new-tokens")
    if any(each.temperature is None for each in logged):
        unknown |= {"temperature", "greedy"}
    return tuple(name for name in FEATURES if name not in unknown)


def _context(answer: TokenAnswer, load: int) -> RequestContext:
    logged = answer.logged
    return RequestContext(
        prompt_ids=answer.prompt,
        max_new_tokens=logged.limit or 1,
        temperature=logged.temperature or 0.0,
        running=load - 1,
    )


def group_of(answer: TokenAnswer) -> str:
    """The conversation or user; where nobody says, all that begin with the same first user message,
    as the turns of one conversation do."""
    logged = answer.logged
    if logged.group is not None:
        return f"named {logged.group}"
    asked = [m.get("content") for m in logged.messages or () if m.get("role") == "user"]
    if asked:
        return f"asked {asked[0]!r}"
    return f"asked {logged.prompt}" if logged.prompt is not None else logged.where


def mean_running(spans: Sequence[tuple[float, float]]) -> NDArray[np.float64]:
    """[n], the mean number of answers under way over each one's time, itself included.

    spans: when each began and ended, in seconds; one without a duration counts those that were
        under way at that moment beside itself.
    """
    starts, ends = (np.array(column, dtype=np.float64) for column in zip(*spans, strict=True))
    times = np.unique(np.concatenate([starts, ends]))
    began = np.bincount(np.searchsorted(times, starts), minlength=len(times))
    over = np.bincount(np.searchsorted(times, ends), minlength=len(times))
    running = np.cumsum(began - over)  # from each time on to the next
    area = np.array([0.0, *accumulate(running[:-1] * np.diff(times))])
    first, last = np.searchsorted(times, starts), np.searchsorted(times, ends)
    took = ends - starts
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = (area[last] - area[first]) / took
    found: NDArray[np.float64] = np.where(took > 0, mean, 1 + running[first])
    return np.maximum(1.0, found)


def nearest(running: NDArray[np.float64], known: Sequence[int]) -> list[int]:
    """The known number of answers that is nearest in proportion to each."""
    logs = np.log(np.array(known, dtype=np.float64))
    places = np.abs(np.log(running)[:, None] - logs[None]).argmin(axis=1)
    return [known[place] for place in places.tolist()]
