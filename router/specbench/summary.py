"""summary.json: every method on every task, and what the policy gained over fixed choices."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from collect.queries import OVERALL, ordered
from collect.rouge import WORDS

from .metrics import Pair, bootstrap, cell, mean_over_tasks, over_questions, speed_table, speedup
from .records import BASELINE, ROUTED, Answer, Row

VERSION = 1
ORACLE_FIELDS = "choices", "note"  # beside its cells
ORACLE_NOTE = (
    "per question the arm that turned out fastest, timing noise included: an optimistic bound"
)
BEST_FIXED_NOTE = "the arm that turned out fastest overall on these very questions"


def summarise(
    rows: Sequence[Row],
    *,
    greedy: bool,
    eos_ids: Sequence[int] = (),
    seed: int = 0,
    about: dict[str, Any] | None = None,
    candidates: Sequence[str] = (),
) -> dict[str, Any]:
    """The object that summary.json holds. about: settings, hardware and versions, passed through.

    candidates: the methods that are policies under a name. Their cells are under `candidates`, and
    the answers that each arm wrote under `candidate_choices`; neither is there without candidates.

    Under `arms.<name>`, `routed` and `oracle` is a cell for `overall` and for each task; a
    cell's fields are those of `metrics.Cell`. `routed` and what follows from it are None where no
    policy ran.
    """
    methods = list(dict.fromkeys(method for row in rows for method in row.answers))
    arms = [method for method in methods if method != ROUTED and method not in candidates]
    tasks = ordered(row.task for row in rows)

    def cells(answers: Sequence[Answer]) -> dict[str, Any]:
        pairs = [
            Pair(row.task, row.source, row.reference, answer, row.answers[BASELINE])
            for row, answer in zip(rows, answers, strict=True)
        ]
        made: dict[str, Any] = {}
        for name in (OVERALL, *tasks):
            chosen = [p for p in pairs if name in (OVERALL, p.task)]
            value = cell(chosen, greedy=greedy, eos_ids=eos_ids, seed=seed)
            made[name] = None if value is None else asdict(value)
        return made

    by_arm = {arm: cells(_answers(rows, arm)) for arm in arms}
    best = best_fixed(by_arm, tasks)
    oracle_arms = [oracle_arm(row, arms) for row in rows]
    oracle = [_answer(row, arm) for row, arm in zip(rows, oracle_arms, strict=True)]
    routed = _answers(rows, ROUTED) if ROUTED in methods else None
    overhead, overhead_share = policy_overhead(routed or ())
    more = {}
    if candidates:
        more = {
            "candidates": {method: cells(_answers(rows, method)) for method in candidates},
            "candidate_choices": {
                method: _choices(rows, [_arms_of(a) for a in _answers(rows, method)], tasks)
                for method in candidates
            },
        }
    return {
        "version": VERSION,
        "written": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        **(about or {}),
        "rouge_words": WORDS,
        "questions": len(rows),
        "disturbed": sum(row.disturbed for row in rows),
        "tasks": {task: sum(row.task == task for row in rows) for task in tasks},
        "arms": by_arm,
        **more,
        "routed": None if routed is None else cells(routed),
        "oracle": {
            **cells(oracle),
            "choices": _choices(rows, [[arm] if arm else [] for arm in oracle_arms], tasks),
            "note": ORACLE_NOTE,
        },
        "best_fixed": best,
        "routed_vs_best_fixed": None
        if routed is None or best is None
        else _against(rows, routed, _answers(rows, best["arm"]), seed),
        "policy_overhead_s": overhead,
        "policy_overhead_share": overhead_share,
        "policy_choices": None
        if routed is None
        else _choices(rows, [_arms_of(answer) for answer in routed], tasks),
        "errors": [
            {"question_id": row.question_id, "method": method, "error": answer.error}
            for row in rows
            for method, answer in row.answers.items()
            if answer.error is not None
        ],
    }


def best_fixed(by_arm: dict[str, dict[str, Any]], tasks: Sequence[str]) -> dict[str, Any] | None:
    """The fastest single arm overall, with its figures, and the fastest of each task."""

    def fastest(name: str) -> tuple[str, dict[str, Any]] | None:
        found = {
            arm: cells[name]
            for arm, cells in by_arm.items()
            if cells[name] is not None and cells[name]["speedup_vs_ar"] is not None
        }
        if not found:
            return None
        arm = max(found, key=lambda arm: found[arm]["speedup_vs_ar"])
        return arm, found[arm]

    overall = fastest(OVERALL)
    if overall is None:
        return None
    arm, figures = overall
    averages = "speedup_mean_over_tasks", "speedup_mean_over_questions"
    kept = ("speedup_vs_ar", "ci95", *averages, "tokens_per_s")
    return {
        "arm": arm,
        "overall": {name: figures[name] for name in kept},
        "per_task": {
            task: {"arm": found[0], **{name: found[1][name] for name in kept}}
            for task in tasks
            if (found := fastest(task)) is not None
        },
        "note": BEST_FIXED_NOTE,
    }


def oracle_arm(row: Row, arms: Sequence[str]) -> str | None:
    """The arm with the most tokens a second on this question; None where all failed."""
    rates = {
        arm: answer.tokens / answer.wall_s
        for arm in arms
        if (answer := row.answers[arm]).error is None and answer.wall_s > 0
    }
    return max(rates, key=lambda arm: rates[arm]) if rates else None


def policy_overhead(routed: Sequence[Answer]) -> tuple[float | None, float | None]:
    """Seconds that embedding and policy take of a turn, and their share of all of decoding."""
    turns = [turn for answer in routed for turn in answer.turns]
    spent = sum(turn.embed_s + turn.policy_s for turn in turns)
    decoding = sum(turn.decode_s for turn in turns) - spent
    mean = spent / len(turns) if turns else None
    return mean, spent / decoding if decoding > 0 else None


def _against(
    rows: Sequence[Row], ours: Sequence[Answer], theirs: Sequence[Answer], seed: int
) -> dict[str, Any]:
    both = [
        (row, a, b)
        for row, a, b in zip(rows, ours, theirs, strict=True)
        if a.error is None and b.error is None
    ]
    table = speed_table([a for _, a, _ in both], [b for _, _, b in both])
    return {
        "ratio": speedup(table),
        "ci95": bootstrap(table, [row.source for row, _, _ in both], seed),
        "mean_over_tasks": mean_over_tasks(table, [row.task for row, _, _ in both]),
        "mean_over_questions": over_questions(table),
    }


def _choices(
    rows: Sequence[Row], arms: Sequence[Sequence[str]], tasks: Sequence[str]
) -> dict[str, dict[str, int]]:
    """task -> arm -> how often. arms: those chosen for each row."""
    counts: dict[str, Counter[str]] = {task: Counter() for task in tasks}
    for row, chosen in zip(rows, arms, strict=True):
        counts[row.task].update(chosen)
    return {task: dict(counted.most_common()) for task, counted in counts.items()}


def _arms_of(answer: Answer) -> list[str]:
    return [turn.result.arm for turn in answer.turns]


def _answers(rows: Sequence[Row], method: str) -> list[Answer]:
    return [_answer(row, method) for row in rows]


def _answer(row: Row, method: str | None) -> Answer:
    if method is None or method not in row.answers:
        return Answer(error="no answer")
    return row.answers[method]
