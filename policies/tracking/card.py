"""A policy's model card: what it was trained on, what it gains, and what it is not for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from ..evaluation.decisions import Decisions, Regret
from ..evaluation.evaluate import Evaluation
from ..evaluation.scale import in_words, relative
from ..evaluation.units import units_of
from ..records import ANY, Origin, RewardTable
from ..selection.guard import Guarded

FILE = "card.md"
JUDGED = {
    "folds": "every query, chosen for by a policy trained without it (five folds)",
    "validation": "held-out queries",
    "train": "the training queries themselves, which is optimistic",
}
MIN_SHARE = 0.005  # of a task's queries, below which an arm is not shown


@dataclass(frozen=True, eq=False)
class Judged:
    """A policy's worth on the queries that judge it.

    on: "validation"; without any, "folds" where the guard judged, all queries by policies that were
        trained without them; else "train".
    """

    on: str
    evaluation: Evaluation
    regret: Regret
    decisions: Decisions


def card(origin: Origin, table: RewardTable, found: Judged, guarded: Guarded | None) -> str:
    """The card as Markdown. table: trained on."""
    reads = ", ".join(origin.features)
    if origin.embedder != ANY:
        reads = f"the query's embedding ({origin.embedder})" + (f", {reads}" if reads else "")
    what = f"Picks one of {len(origin.arms)} arms for every query, from {reads or 'nothing of it'}."
    limits = [
        "Other arms, or the same names declared otherwise: collect and train again.",
        f"Another machine than that of its rewards ({origin.machine or 'unknown'}): what is "
        "fastest there may not be here.",
        f"Other tasks than {', '.join(sorted(set(table.tasks)))}, other languages or much longer "
        "prompts: what it gains there is not known.",
        "Judging answers: its reward says nothing of whether they are right or safe.",
    ]
    parts = [
        f"# Policy: {origin.name}",
        what if guarded is None else f"{what} {guarded.verdict}",
        "## Trained on",
        _trained_on(origin, table),
        "## What it gains",
        f"Mean reward ({table.reward_name}) on {JUDGED[found.on]}. Intervals are 95%, over "
        "queries.",
        _gains(found, table.reward_name),
        "## Which arm it takes",
        _arms(found.evaluation, table.arms),
        "## What it is not for",
        "\n".join(f"- {one}" for one in limits),
    ]
    return "\n\n".join(parts) + "\n"


def _trained_on(origin: Origin, table: RewardTable) -> str:
    tasks = Counter(table.tasks)
    units = units_of(table)
    sources = "" if units.groups == units.queries else f" of {units.groups} sources"
    rows = "" if len(table) == units.queries else f", in {len(table)} rows"
    options = ", ".join(f"{name}={value}" for name, value in origin.options.items())
    failed = int((table.rewards != table.rewards).sum())
    lines = {
        "queries": f"{units.queries}{sources}{rows}",
        "rows by task": ", ".join(f"{task} {count}" for task, count in sorted(tasks.items())),
        "arms": ", ".join(origin.arms),
        "reward": table.reward_name,
        "answers that failed": f"{failed} of {table.rewards.size}, counted as their query's worst",
        "machine": origin.machine or "unknown",
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "seed": str(origin.seed),
        "options": options or "none",
        "table's digest": table.digest,
    }
    return _table(("", ""), [[name, value] for name, value in lines.items()])


def _gains(found: Judged, reward: str) -> str:
    evaluation, left = found.evaluation, found.regret
    base = evaluation["best-fixed"].mean
    rows = [
        [name, f"{row.mean:.4f}", row.interval(), str(row.queries)]
        for name, row in (
            ("policy, its most likely arm", evaluation["greedy"]),
            (f"best fixed arm ({evaluation.best_fixed})", evaluation["best-fixed"]),
            (
                f"best arm for every query{', optimistic' if evaluation.optimistic else ''}",
                evaluation["oracle"],
            ),
            ("policy less best fixed arm", evaluation.gain),
        )
    ]
    parts = [_table(("", "mean", "interval", "queries"), rows)]
    if relative(evaluation.gain.mean, base, reward) is not None:
        parts.append(f"That gains {in_words(evaluation.gain.mean, base, reward, '+.1f')}.")
    if left.worse_than_plain is not None:
        parts.append(
            f"On {left.worse_than_plain:.1%} of the queries its arm earns less than plain decoding."
        )
    return "\n\n".join(parts)


def _arms(evaluation: Evaluation, arms: Sequence[str]) -> str:
    rows = []
    for task, shares in zip(evaluation.tasks, evaluation.choices, strict=True):
        order = sorted(zip(shares, arms, strict=True), key=lambda one: -one[0])
        shown = [f"{arm} {share:.0%}" for share, arm in order if share >= MIN_SHARE]
        rows.append([task, ", ".join(shown)])
    return _table(("task", "share of its queries"), rows)


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *([cell.replace("|", "\\|") for cell in r] for r in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
