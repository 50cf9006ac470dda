"""A policy's model card: what it was trained on, what it gains, and what it is not for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from decoders.common.files import write_atomically
from decoders.common.provenance import git_state, versions

from ..evaluation.decisions import Closed, Regret
from ..evaluation.evaluate import Evaluation
from ..evaluation.scale import in_words, relative
from ..evaluation.units import units_of
from ..records import ANY, Origin, RewardTable

if TYPE_CHECKING:
    from ..selection.guard import Guarded

FILE = "card.md"
JUDGED = {
    "folds": "every query, chosen for by a policy trained without it (five folds)",
    "validation": "held-out queries",
    "train": "the training queries themselves, which is optimistic",
}
LEAST_SHARE = 0.005  # of a task's queries, below which an arm is not shown


def write_card(folder: Path, text: str) -> None:
    write_atomically(folder / FILE, text)


def card(
    origin: Origin,
    table: RewardTable,
    evaluation: Evaluation,
    left: Regret,
    closed: Sequence[Closed],
    guarded: Guarded | None,
    evaluated_on: str,
) -> str:
    """The card as Markdown.

    table: trained on.
    evaluated_on: as in `TrainedRun`.
    """
    what = [
        f"Picks one of {len(origin.arms)} arms for every query, from {reads(origin)}.",
        *([] if guarded is None else [guarded.verdict]),
    ]
    parts = [
        f"# Policy: {origin.name}",
        " ".join(what),
        "## Trained on",
        _trained_on(origin, table),
        "## What it gains",
        f"Mean reward ({table.reward_name}) on {JUDGED[evaluated_on]}. Intervals are 95%, over "
        "queries.",
        _gains(evaluation, table.reward_name, left, closed),
        "## Which arm it takes",
        _arms(evaluation, table.arms),
        "## What it is not for",
        _limits(origin, table, evaluated_on),
        "## Made by",
        _made_by(),
    ]
    return "\n\n".join(parts) + "\n"


def reads(origin: Origin) -> str:
    """What a policy reads, in words."""
    features = ", ".join(origin.features)
    if origin.embedder == ANY:
        return features or "nothing: the query makes no difference"
    return f"the query's embedding ({origin.embedder})" + (f", {features}" if features else "")


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
        "seed": str(origin.seed),
        "options": options or "none",
        "table's digest": table.digest,
    }
    return _table(("", ""), [[name, value] for name, value in lines.items()])


def _gains(evaluation: Evaluation, reward: str, left: Regret, closed: Sequence[Closed]) -> str:
    base = evaluation["best-fixed"].mean
    rows = [
        [name, f"{row.mean:.4f}", f"{row.low:.4f} to {row.high:.4f}", str(row.queries)]
        for name, row in (
            ("policy, its most likely arm", evaluation["greedy"]),
            (f"best fixed arm ({evaluation.best_fixed})", evaluation["best-fixed"]),
            ("best arm for every query", evaluation["oracle"]),
            ("policy less best fixed arm", evaluation.gain),
        )
    ]
    parts = [_table(("", "mean", "interval", "rows"), rows)]
    if relative(evaluation.gain.mean, base, reward) is not None:
        parts.append(f"That gains {in_words(evaluation.gain.mean, base, reward, '+.1f')}.")
    if left.worse_than_plain is not None:
        parts.append(
            f"On {left.worse_than_plain:.1%} of the queries its arm earns less than plain decoding."
        )
    shares = [
        [one.task, f"{one.share:.0%}", f"{one.low:.0%} to {one.high:.0%}", str(one.queries)]
        for one in closed
        if one.share is not None
    ]
    if shares:
        parts.append("Of the gap between the best fixed arm and the best arm for every query:")
        parts.append(_table(("task", "closed", "interval", "queries"), shares))
    return "\n\n".join(parts)


def _arms(evaluation: Evaluation, arms: Sequence[str]) -> str:
    rows = []
    for task, shares in zip(evaluation.tasks, evaluation.choices, strict=True):
        order = sorted(zip(shares, arms, strict=True), key=lambda one: -one[0])
        shown = [f"{arm} {share:.0%}" for share, arm in order if share >= LEAST_SHARE]
        rows.append([task, ", ".join(shown)])
    return _table(("task", "share of its queries"), rows)


def _limits(origin: Origin, table: RewardTable, evaluated_on: str) -> str:
    machine = f" ({origin.machine})" if origin.machine else ""
    limits = [
        "Other arms, or the same names declared otherwise: collect and train again.",
        f"Another machine than the one the rewards are of{machine}: what is fastest there may not "
        "be here.",
        f"Other tasks than {', '.join(sorted(set(table.tasks)))}, other languages or much longer "
        "prompts: what it gains there is not known.",
        "Judging answers: its reward says nothing of whether they are right or safe.",
    ]
    if origin.embedder != ANY:
        limits.insert(0, f"Other embeddings than {origin.embedder}: it is refused with them.")
    if evaluated_on == "train":
        limits.append("Claims about its gain: none was measured on queries that it had not seen.")
    return "\n".join(f"- {one}" for one in limits)


def _made_by() -> str:
    git = git_state()
    rows = [["date", datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")]]
    if git is not None:
        rows.append(["commit", git["sha"] + (" with changes" if git["dirty"] else "")])
    return _table(("", ""), [*rows, *([name, version] for name, version in versions().items())])


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *([cell.replace("|", "\\|") for cell in r] for r in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
