"""Queries by kind of work, and the part of them that no drafter is trained on."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from collect.queries import Query, read_queries, text_name
from collect.traffic.clusters import tasks_of
from collect.traffic.reading import Logs
from collect.traffic.records import TokenAnswer
from collect.traffic.replayed import group_of
from collect.traffic.tokens import tokenised
from decoders.common.errors import DraftpickError
from decoders.common.files import write_atomically

from ...engines.logs.replaying import Model

REST = "rest"  # the task of queries whose own is too small for a drafter
HELD_OUT = 0.1  # of each group's conversations, the last
MIN_HELD_OUT, MAX_HELD_OUT = 20, 120  # conversations of a group
MIN_GROUP = 60  # conversations, those held out among them, that a drafter of their own needs
NO_TEXT = "(no text)"
ALL = "all"  # the task of all queries, where no kind of work is large enough
TAKEN = ("autoregressive", "shipped", "common", "union", "elsewhere", REST)


@dataclass(frozen=True)
class Traffic:
    """train, held_out: queries whose task is their group.
    groups: those that get a drafter of their own, the largest first.
    written: by the query's id, answers that the logs hold.
    said: sentences about what was left out or joined.
    """

    train: tuple[Query, ...]
    held_out: tuple[Query, ...]
    groups: tuple[str, ...]
    written: dict[str, TokenAnswer]
    said: tuple[str, ...]

    def save(self, folder: Path) -> tuple[Path, Path]:
        """Write both parts as query files. Raises DraftpickError where the folder holds others: its
        drafters would have been trained on what is held out now."""
        folder.mkdir(parents=True, exist_ok=True)
        paths = train, apart = _parts(folder)
        for path, queries in zip(paths, (self.train, self.held_out), strict=True):
            text = "".join(
                json.dumps(_record(query), ensure_ascii=False) + "\n" for query in queries
            )
            if path.is_file() and path.read_text(encoding="utf-8") != text:
                raise DraftpickError(
                    f"{path} holds other queries than those asked for now; name another --out, or "
                    "ask for the same to go on"
                )
            write_atomically(path, text)
        return train, apart


def _parts(folder: Path) -> tuple[Path, Path]:
    return folder / "train.jsonl", folder / "held-out.jsonl"


def of_queries(
    queries: Sequence[Query], apart: set[str] | None, most: int, limit: int | None
) -> Traffic:
    """Queries whose tasks are the groups.

    apart: ids of those that are held out; None is the last tenth.
    most: groups. limit: queries of each group that are trained on; None for all.
    """
    named = [replace(query, task=_slug(query.task)) for query in queries]
    return _grouped(named, apart, most, limit, {}, [])


def of_logs(
    logs: Logs, model: Model, most: int, limit: int | None, show_words: bool, kept: Path
) -> Traffic:
    """Queries of logs, as `draftpick headroom --from-logs` reads them: groups are what lines call
    `task`, else clusters of what was asked. Where an earlier call kept queries they are these,
    though logs have grown since.

    kept: folder that `Traffic.save` has written, or will.
    model: whose tokenizer spells them.
    show_words: whether clusters are called by their words, which stand in what users wrote.
    """
    tokens = tokenised(logs.answers, model.tokenizer, model.eos_ids)
    said = [f"{count:,} answers {reason} are left out" for reason, count in tokens.left_out.items()]
    answers = tokens.answers
    if all(path.is_file() for path in _parts(kept)):
        return _kept(kept, answers)
    if all(each.span for each in answers):
        answers = sorted(answers, key=lambda each: each.span or (0.0, 0.0))
    logged = [each.logged for each in answers]
    tasks = tasks_of(logged, min(most, len(logged) // (2 * MIN_GROUP)))
    if not show_words:
        found = list(dict.fromkeys(t for t, one in zip(tasks, logged, strict=True) if not one.task))
        called = {name: f"group {number}" for number, name in enumerate(found, 1)}
        tasks = [one.task or called[t] for t, one in zip(tasks, logged, strict=True)]
    queries, seen = list[Query](), set[tuple[int, ...]]()
    written: dict[str, TokenAnswer] = {}
    for number, (each, task) in enumerate(zip(answers, tasks, strict=True)):
        prompt = tuple(each.prompt)
        if prompt in seen:
            continue
        seen.add(prompt)
        name, asked = f"log-{number:06d}", each.logged.asked
        queries.append(
            Query(
                name,
                _slug(task),
                (asked if asked.strip() else NO_TEXT,),
                source="log",
                group=group_of(each),
                prompt_ids=prompt,
            )
        )
        written[name] = each
    return _grouped(queries, None, most, limit, written, said)


def _kept(folder: Path, answers: Sequence[TokenAnswer]) -> Traffic:
    """Read what an earlier call saved. Raises DraftpickError where the logs hold none of it."""
    train, held = (tuple(read_queries(path)) for path in _parts(folder))
    logged = {tuple(each.prompt): each for each in reversed(answers)}  # each prompt's first
    asked = {query.id: query.prompt_ids or () for query in (*train, *held)}
    written = {name: logged[prompt] for name, prompt in asked.items() if prompt in logged}
    if not written:
        raise DraftpickError(f"{folder} holds queries of other logs; name another --out")
    said = (
        f"an earlier call took {len(asked):,} queries, which this one goes on with; what logs have "
        "gained since and other --groups or --limit need another --out"
    )
    groups = tuple(dict.fromkeys(query.task for query in held))
    return Traffic(train, held, groups, written, (said,))


def _grouped(
    queries: Sequence[Query],
    apart: set[str] | None,
    most: int,
    limit: int | None,
    written: dict[str, TokenAnswer],
    said: list[str],
) -> Traffic:
    by_task: dict[str, dict[str, list[Query]]] = {}  # task -> conversation -> queries
    for query in queries:
        by_task.setdefault(query.task, {}).setdefault(_conversation(query), []).append(query)
    sizes = Counter({task: len(found) for task, found in by_task.items()})
    if max(sizes.values()) < MIN_GROUP <= sizes.total():
        said.append(f"no kind of work has {MIN_GROUP} conversations, so that all are one group")
        together = [replace(query, task=ALL) for query in queries]
        return _grouped(together, apart, most, limit, written, said)
    ranked = [task for task, size in sizes.most_common() if size >= MIN_GROUP]
    groups = tuple(ranked[:most])
    if not groups:
        raise DraftpickError(
            f"the largest kind of work has {max(sizes.values()):,} conversations, and a drafter "
            f"needs {MIN_GROUP}; give more logs or queries"
        )
    joined = [task for task in by_task if task not in groups]
    if joined:
        said.append(
            f"{', '.join(joined)}: too small for a drafter of their own (fewer than {MIN_GROUP} "
            f"conversations, or beyond the {most} largest); they train the common one"
        )
    rest = [query for task in joined for found in by_task[task].values() for query in found]
    train = [replace(query, task=REST) for query in rest if query.id not in (apart or ())]
    held = list[Query]()
    for task in groups:
        conversations, names = by_task[task], list(by_task[task])
        if apart is None:
            many = min(MAX_HELD_OUT, max(MIN_HELD_OUT, round(HELD_OUT * len(names))))
            last = {query.id for name in names[-many:] for query in conversations[name]}
        else:
            last = apart
        of_task = [query for name in names for query in conversations[name]]
        held += [query for query in of_task if query.id in last]
        train += [query for query in of_task if query.id not in last][:limit]
        if not any(query.task == task for query in held):
            raise DraftpickError(f"--held-out holds no query of the task {task!r}; add some")
    judged = {_conversation(query) for query in held}  # of which another group may have a turn
    train = [query for query in train if _conversation(query) not in judged]
    return Traffic(tuple(train), tuple(held), groups, written, tuple(said))


def _conversation(query: Query) -> str:
    return query.group if query.group is not None else text_name(query.turns[0])


def _slug(task: str) -> str:
    """The task as an arm and a folder can be called, and none of those that are there anyway is."""
    name = re.sub(r"[^\w.-]+", "-", task).strip("-.") or REST
    return f"of-{name}" if name in TAKEN or name.startswith("alone-") else name


def _record(query: Query) -> dict[str, object]:
    record = {"id": query.id, "task": query.task, "turns": list(query.turns)}
    more = {"source": query.source, "group": query.group, "prompt_ids": query.prompt_ids}
    return record | {name: value for name, value in more.items() if value is not None}
