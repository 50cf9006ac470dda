"""`draftpick specbench`: run (or resume) a benchmark and write all its files."""

from __future__ import annotations

import json
import random
import re
import uuid
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from collect.queries import Query, ordered, read_queries
from decoders.arms import AUTOREGRESSIVE
from decoders.common.errors import DraftpickError, NoSuchName
from decoders.common.files import write_atomically
from decoders.common.locks import sole_writer
from decoders.common.provenance import measured_on, versions
from decoders.common.terminal import progress
from decoders.records import DecodeResult, Request

from ..routing.router import Router
from . import markdown
from .candidates import Candidate
from .journal import OF_SPEED, Journal, read_rows
from .quality import check_measures
from .records import Row
from .report import speedups
from .run import Asker, choose_methods
from .summary import ORACLE_FIELDS, summarise


def load_questions(
    paths: Iterable[str | Path],
    limit: int | None = None,
    seed: int = 0,
    tasks: Sequence[str] | None = None,
) -> list[Query]:
    """Read question files and keep `limit` questions a task, or all of them.

    Raises DraftpickError for a missing or bad file, a repeated id, a task that no question has,
    or one that is to be judged by an unknown measure.
    """
    if limit is not None and limit < 1:
        raise DraftpickError(f"--limit must be at least 1 question a task, not {limit}")
    queries = read_queries(list(paths))
    found = ordered(query.task for query in queries)
    for task in tasks or ():
        if task not in found:
            raise NoSuchName("task", task, found)
    queries = [query for query in queries if not tasks or query.task in tasks]
    for task in {query.task for query in queries}:
        check_measures(task)
        if task in ORACLE_FIELDS:
            raise DraftpickError(f"no task may be called {task!r}, a field of the summary's")
    return select(queries, limit, seed)


def select(queries: Sequence[Query], limit: int | None, seed: int) -> list[Query]:
    """At most `limit` questions a task, spread evenly over its categories, in file order.

    The choice depends on the seed and the ids alone, so a larger limit keeps every question of a
    smaller one.
    """
    if limit is None:
        return list(queries)
    groups: dict[str, dict[str, list[Query]]] = defaultdict(lambda: defaultdict(list))
    for query in queries:
        groups[query.task][query.category or ""].append(query)
    kept: set[str] = set()
    for task, categories in groups.items():
        drawn = []
        for category, members in sorted(categories.items()):
            members.sort(key=lambda query: query.id)
            random.Random(f"{seed}/{task}/{category}").shuffle(members)
            drawn += [(rank, category, query.id) for rank, query in enumerate(members)]
        # Sorting by rank first takes one question of every category before a second of any.
        kept.update(identity for _, _, identity in sorted(drawn)[:limit])
    return [query for query in queries if query.id in kept]


def spec_bench_category(query_task: str, category: str | None) -> str:
    """The category by which Spec-Bench's scripts find rows: mt_bench's eight, or the task."""
    if query_task == "mt_bench":
        return category or query_task
    return "math_reasoning" if query_task == "math" else query_task


def specbench(
    router: Router,
    questions: Sequence[Query],
    request: Request,
    out: Path,
    *,
    arms: Sequence[str] | None = None,
    policy_label: str | None = None,
    seed: int = 0,
    hardware: dict[str, Any] | None = None,
    ask: bool = True,
    candidates: Sequence[Candidate] = (),
) -> dict[str, Any]:
    """Ask all questions, write rows, answers, summary.json, summary.md and a picture into `out`.

    Returns the summary. Call it again with the same settings to resume, or to add questions; other
    settings raise DraftpickError.

    ask: False sums up what `out` holds of them.
    candidates: further policies to run, besides the router's own.
    """
    if AUTOREGRESSIVE not in router.engine.arm_names:
        raise DraftpickError(
            "specbench compares every arm with plain decoding by a target, which endpoints lack; "
            "collect their times instead: `draftpick collect`, then `draftpick collect --summary`"
        )
    methods = [*choose_methods(router, arms), *(one.method for one in candidates)]
    asker = Asker(router, methods, request, seed, candidates, policy_label)
    rows = ask_all(asker, questions, out, ask=ask)
    summary = summarise(
        rows,
        greedy=request.sampling.greedy,
        eos_ids=router.engine.eos_ids,
        seed=seed,
        candidates=[one.method for one in candidates],
        about={
            "target": router.engine.target_name,
            "arms_fingerprint": asker.settings["arms"],
            "settings": asker.settings,
            "hardware": hardware or measured_on(),
            "versions": versions(),
        },
    )
    write_answers(out, router.engine.target_name, rows)
    write_atomically(out / "summary.json", json.dumps(summary, indent=2) + "\n")
    write_atomically(out / "summary.md", markdown.render(summary))
    write_atomically(out / "speedup.png", speedups(summary))
    return summary


def ask_all(asker: Asker, questions: Sequence[Query], out: Path, *, ask: bool = True) -> list[Row]:
    """The measuring itself: every question through every method, paired, interleaved, journaled in
    `out`, with a progress bar. A row for each question; with `ask` False, for each that was asked
    before, on whichever machine."""
    settings = asker.settings
    if not ask:
        settings = {name: value for name, value in settings.items() if name not in OF_SPEED}
        held = {row.question_id for row in read_rows(out)}
        questions = [question for question in questions if question.id in held]
        if not questions:
            raise DraftpickError(f"{out} holds none of these questions yet; ask them first")
    methods = f"{len(asker.methods)} methods"
    with sole_writer(out), progress(methods, "questions") as tick:
        journal = Journal(out, settings)
        tick(len(journal.rows), len(questions))
        rows = asker.run(questions, journal, lambda: tick(len(journal.rows), len(questions)))
    by_id = {row.question_id: row for row in rows}
    return [by_id[question.id] for question in questions]


def write_answers(folder: Path, target: str, rows: Sequence[Row]) -> None:
    """One `answers/<target>-<method>.jsonl` a method; failed answers are left out of it."""
    methods = list(dict.fromkeys(method for row in rows for method in row.answers))
    for method in methods:
        model_id = re.sub(r"[^\w.+-]+", "_", f"{target}-{method}")
        lines = [
            json.dumps(_answer(row, method, model_id), ensure_ascii=False) + "\n"
            for row in sorted(rows, key=lambda row: _question_id(row.question_id, pad=True))
            if method in row.answers and row.answers[method].error is None
        ]
        write_atomically(folder / "answers" / f"{model_id}.jsonl", "".join(lines))


def accept_lengths(result: DecodeResult) -> list[int]:
    """Tokens that each round gave, the target's own included, the longest first.

    Rebuilt from how often each position was accepted, so the rounds' order is not kept. A last
    round that ends inside its draft gives no token of the target's own: one length is lowered for
    it.
    """
    at_least = [result.rounds, *result.accepted_per_position, 0]  # rounds with n or more accepted
    lengths = [
        accepted + 1
        for accepted in range(len(at_least) - 2, -1, -1)
        for _ in range(at_least[accepted] - at_least[accepted + 1])
    ]
    excess = sum(lengths) - max(len(result.ids) - 1, 0)
    if lengths and 0 < excess < lengths[0]:
        lengths[0] -= excess
    return lengths


def _answer(row: Row, method: str, model_id: str) -> dict[str, Any]:
    turns = row.answers[method].turns
    return {
        "question_id": _question_id(row.question_id),
        "category": spec_bench_category(row.task, row.category),
        "answer_id": uuid.uuid5(uuid.NAMESPACE_OID, f"{model_id}/{row.question_id}").hex,
        "model_id": model_id,
        "choices": [
            {
                "index": 0,
                "turns": [turn.result.text.strip() for turn in turns],
                "decoding_steps": [turn.result.rounds for turn in turns],
                "new_tokens": [len(turn.result.ids) for turn in turns],
                "wall_time": [turn.wall_s for turn in turns],
                "accept_lengths": [n for turn in turns for n in accept_lengths(turn.result)],
            }
        ],
        "tstamp": row.tstamp,
    }


def _question_id(identity: str, pad: bool = False) -> int | str:
    """Spec-Bench's ids are numbers; ours stay as they are. pad: a string that sorts by number."""
    if not identity.isdecimal():
        return identity
    return identity.zfill(12) if pad else int(identity)
