"""What `draftpick headroom --from-logs` says: figures, tables, sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from collect.traffic.engine_rules.recipe import EngineRecipe
from collect.traffic.figures import Drafting, Figure, Speed, drafting, speeds
from collect.traffic.replayed import reward_table
from decoders.arms import ArmRecipe
from policies.errors import PolicyError
from policies.selection.advice import Headroom
from policies.selection.crossfit import MIN_GROUPS
from policies.selection.headroom import headroom

from ...commands.headroom import as_dict, headroom_tables
from ...tabulated import Tabulated, cell, plain
from ..export import ENGINES, Exported, command_line
from .replaying import Found, reward_of

FEWEST = 5  # answers of a task that is shown


@dataclass(frozen=True, eq=False)
class TrafficReport:
    """speeds: at each load that is shown; load None is every answer at its own.
    by_task: task -> its answers and what each arm would have drafted there, the largest first.
    found: what choosing by query would add; None where `why_not` says why not.
    """

    source: Found
    drafting: list[Drafting]
    speeds: dict[int | None, list[Speed]]
    by_task: dict[str, tuple[int, list[Drafting]]]
    found: Headroom | None
    why_not: str

    def as_json(self, advice: Sequence[str]) -> dict[str, Any]:
        traffic, logs = self.source.traffic, self.source.logs
        running = traffic.running
        return {
            "lines": logs.lines,
            "lines_without_answers": logs.without,
            "answers": len(traffic.answers),
            "conversations": len(set(traffic.groups)),
            "left_out": dict(self.source.left_out),
            "tokens": sum(len(each.ids) for each in traffic.answers),
            "running": None if running is None else _spread(running),
            "drafting": [
                plain(one) | {"command": command_of(traffic.arms[one.arm])} for one in self.drafting
            ],
            "speeds": [
                {"at_once": load, "arms": plain(each)} for load, each in self.speeds.items()
            ],
            "tasks": {
                task: {"answers": many, "drafting": plain(each)}
                for task, (many, each) in self.by_task.items()
            },
            "headroom": None if self.found is None else as_dict(self.found),
            "advice": list(advice),
        }


def report(
    source: Found, reward: str | None, loads: Sequence[int], by: Sequence[str], seed: int
) -> TrafficReport:
    """loads: numbers of answers at once to price at; without any, each answer at its own where the
    logs say when answers began and ended, else at all whose costs are known.

    Raises DraftpickError for a feature that is the same for all answers.
    """
    traffic, costs = source.traffic, source.costs
    known = [1] if costs is None else sorted({1, *costs.at_once})
    own = not loads and traffic.running is not None
    shown: list[int | None] = [None] if own else list(loads or known)
    priced = {} if costs is None else {load: speeds(traffic, costs, load, seed) for load in shown}
    counts = Counter(traffic.tasks)
    by_task = {}
    for task, many in counts.most_common():
        where = [at for at, one in enumerate(traffic.tasks) if one == task]
        if many >= FEWEST and len(counts) > 1:
            by_task[task] = many, drafting(traffic, seed, where)
    at_loads = [load for load in shown if load is not None]
    ours = traffic.without_engines()
    found, why_not = None, ""
    if costs is None and reward is None:
        why_not = "what choosing an arm by query would add depends on what passes cost"
    elif len(ours.arms) < 2 or len(set(traffic.groups)) < MIN_GROUPS:
        why_not = (
            f"{len(set(traffic.groups))} conversations are too few to say what choosing an arm by "
            f"query would add; that takes {MIN_GROUPS}, and two arms of draftpick's own"
        )
    else:
        try:
            table = reward_table(ours, reward_of(reward, costs), costs, at_loads)
            found = headroom(table, by, seed)
        except PolicyError as error:
            if by:
                raise
            why_not = str(error)
    return TrafficReport(source, drafting(traffic, seed), priced, by_task, found, why_not)


def sentences(made: TrafficReport) -> list[str]:
    """What to do."""
    said = []
    for load, each in made.speeds.items():
        plain = made.source.traffic.plain
        best = max(each, key=lambda one: one.speedup.mean)
        where = "At the load of the logs" if load is None else f"With {load} at once"
        if best.arm == plain:
            said.append(f"{where} no configuration gains over plain decoding.")
            continue
        sure, many = best.speedup.low > 1, len(each) - 1
        picked = f" (the best of {many}, for which its interval is not corrected)"
        picked = picked if many > 1 else ""
        said.append(
            f"{where} {best.arm} would give {interval_of(best.speedup)} times the speed of plain "
            f"decoding{'' if sure else ', which is not surely more'}{picked}."
        )
    if made.source.costs is None:
        said.append(
            "What passes cost is not known, so that speeds are not either: give --costs FILE, "
            "which `draftpick costs` makes from a server, or --target."
        )
    if made.found is not None:
        said += made.found.advice
    if made.why_not:
        said.append(f"{made.why_not[0].upper()}{made.why_not[1:]}.")
    return said


def notes(source: Found) -> list[str]:
    """What was left out, and what the logs do not say."""
    logs, traffic = source.logs, source.traffic
    said = []
    if logs.without:
        said.append(
            f"{logs.without:,} of {logs.lines:,} lines hold no answer with its prompt by themselves"
        )
    for reason, count in source.left_out.items():
        said.append(f"left out: {count:,} answers {reason}")
    if traffic.running is None:
        said.append("the logs do not say when answers began and ended, so that their load is open")
    models = [name for name, arm in traffic.arms.items() if arm.kind == "neural"]
    hot = any((each.logged.temperature or 0) > 0 for each in traffic.answers)
    if models and hot:
        said.append(
            "some answers are sampled: a draft model is taken to draft its likeliest tokens, as "
            "most engines do; one that draws its drafts has another acceptance"
        )
    return said


def tabulated(made: TrafficReport) -> list[Tabulated]:
    """The report's tables."""
    traffic = made.source.traffic
    rows = [
        [one.arm, interval_of(one.acceptance, ".1%"), interval_of(one.tokens_a_pass)]
        for one in made.drafting
        if one.arm != traffic.plain
    ]
    many = f"{len(traffic.answers):,} answers of {len(set(traffic.groups)):,} conversations"
    heads = ["arm", "drafts accepted", "tokens a pass"]
    tables = [Tabulated(f"What would have been accepted, {many} (95% intervals)", heads, rows)]
    for load, each in made.speeds.items():
        where = "at the load of the logs" if load is None else f"{load} at once"
        rows = [
            [one.arm, interval_of(one.speedup), interval_of(one.tokens_a_second, ".1f")]
            for one in sorted(each, key=lambda one: -one.speedup.mean)
        ]
        title = f"What decoding would gain, {where} (95% intervals)"
        tables.append(Tabulated(title, ["arm", "speed-up", "tokens/s of an answer"], rows))
    if made.by_task:
        kinds = _best_of_kinds(made)
        rows = [
            [task, f"{many:,}", *(cell(of[arm].tokens_a_pass.mean, ".2f") for arm in kinds)]
            for task, (many, each) in made.by_task.items()
            for of in [{one.arm: one for one in each}]
        ]
        tables.append(
            Tabulated("Tokens a pass, by kind of work", ["work", "answers", *kinds], rows)
        )
    if made.found is not None:
        tables += headroom_tables(made.found)
    return tables


def _best_of_kinds(made: TrafficReport) -> list[str]:
    """The length with the best speed, or the most tokens a pass, of each kind."""
    value = {one.arm: one.tokens_a_pass.mean for one in made.drafting}
    if made.speeds:
        value = {one.arm: one.speedup.mean for one in next(iter(made.speeds.values()))}
    best: dict[str, str] = {}
    for arm in value:
        if arm == made.source.traffic.plain:
            continue
        kind, _, length = arm.rpartition("-")  # ngram-8 is of the kind ngram
        kind = kind if kind and length.isdecimal() else arm
        if kind not in best or value[arm] > value[best[kind]]:
            best[kind] = arm
    return list(best.values())


def to_paste(made: TrafficReport) -> list[str]:
    """How engines are told to draft so: the best length of each kind that is accepted at all."""
    arms = made.source.traffic.arms
    some = {one.arm for one in made.drafting if one.acceptance.mean > 0}
    found = [(name, command_of(arms[name])) for name in _best_of_kinds(made) if name in some]
    return [f"{name}: {command}" for name, command in found if command is not None]


def command_of(arm: ArmRecipe) -> str | None:
    """The command that starts an engine which drafts so; None for an arm of ours."""
    if not isinstance(arm, EngineRecipe):
        return None
    return command_line(ENGINES[arm.engine].command, Exported(arm.options))


def interval_of(figure: Figure, form: str = ".2f") -> str:
    mean, low, high = (cell(each, form) for each in (figure.mean, figure.low, figure.high))
    return mean if low == "-" else f"{mean} ({low} to {high})"


def _spread(running: Any) -> dict[str, float]:
    low, middle, high = np.quantile(running, [0.05, 0.5, 0.95]).tolist()
    return {"p5": low, "median": middle, "p95": high}
