"""Queries and the JSON lines they are read from: this project's own form, and Spec-Bench's.

Own form:        {"id", "task", "turns", "reference"?, "source"?, "category"?, "group"?,
                 "prompt_ids"?}
Spec-Bench form: {"question_id", "category", "turns", "reference"?}
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from decoders.common.errors import DraftpickError, NoSuchName

from .lines import json_lines

TASKS = ("mt_bench", "translation", "summarization", "qa", "math", "rag")  # of Spec-Bench
OVERALL = "overall"  # what all tasks together are called in every table, so that none may be

# Spec-Bench's categories. Its "math" is eight-category chat (MT-Bench); its word problems are
# "math_reasoning". The rest carry the task's own name.
MT_BENCH_CATEGORIES = (
    "writing",
    "roleplay",
    "reasoning",
    "math",
    "coding",
    "extraction",
    "stem",
    "humanities",
)
CATEGORY_TASKS: dict[str, str] = {
    **dict.fromkeys(MT_BENCH_CATEGORIES, "mt_bench"),
    "math_reasoning": "math",
}


@dataclass(frozen=True)
class Query:
    """One user's question, or a chat of several.

    id: unique among the queries read together.
    task: any name but "overall".
    turns: the user's messages in order, at least one, none blank.
    reference: an accepted answer to the first turn, several joined with " | ", or None.
    source: where it came from (the file's name if the line does not say).
    category: Spec-Bench's finer label, or None.
    group: what the query shares with others that name the same, such as a passage that is asked
        about; queries of one group are not independent. None for a query that shares nothing.
    prompt_ids: what the model reads, where that is more than the first turn in the chat template,
        such as a conversation so far; token ids of one model.
    """

    id: str
    task: str
    turns: tuple[str, ...]
    reference: str | None = None
    source: str = ""
    category: str | None = None
    group: str | None = None
    prompt_ids: tuple[int, ...] | None = None

    def prompt(self, encode_chat: Callable[[list[dict[str, str]]], list[int]]) -> list[int]:
        """Token ids of what the model reads for the first turn."""
        if self.prompt_ids is not None:
            return list(self.prompt_ids)
        return list(encode_chat([{"role": "user", "content": self.turns[0]}]))


SPLITS = ("train", "test")  # of the queries that ship, next to this file


def shipped_folder(split: str) -> Path:
    """The folder of query files that ships: "train" or "test"; written for this project."""
    if split not in SPLITS:
        raise NoSuchName("split", split, SPLITS)
    return Path(__file__).parent / "shipped" / split


def shipped(split: Literal["train", "test"]) -> list[Query]:
    """The queries of one split, task by task: Spec-Bench's, then `json`, `rust` and `sql`.

    Raises DraftpickError for a split other than "train" and "test".
    """
    folder = shipped_folder(split)
    tasks = ordered(path.stem for path in folder.glob("*.jsonl"))
    return read_queries([folder / f"{task}.jsonl" for task in tasks])


def task_of(category: str) -> str:
    """The task that a Spec-Bench category belongs to; one of its own where Spec-Bench has none."""
    return CATEGORY_TASKS.get(category, category)


def ordered(tasks: Iterable[str]) -> list[str]:
    """Each task once: Spec-Bench's as it orders them, then the others by name."""
    found = set(tasks)
    return [task for task in TASKS if task in found] + sorted(found - set(TASKS))


def read_queries(paths: str | Path | Iterable[str | Path]) -> list[Query]:
    """The queries of one or more JSON-lines files, in order; a folder means its *.jsonl files.

    Raises DraftpickError naming file and line for: a missing or empty file, a line that is not
    JSON, a missing or wrong field, and an id that occurs twice.
    """
    if isinstance(paths, str | Path):
        paths = [paths]
    queries: list[Query] = []
    first_seen: dict[str, str] = {}
    for path in _expand(paths):
        for where, record in _records(path):
            query = _parse(record, where, source=path.name)
            if query.id in first_seen:
                raise DraftpickError(
                    f"{where}: the id {query.id!r} was used before, at {first_seen[query.id]}; "
                    "give each query an id of its own"
                )
            first_seen[query.id] = where
            queries.append(query)
    return queries


def text_name(text: str) -> str:
    """The same for texts that differ in spaces alone, and not the text itself."""
    return "text:" + hashlib.sha256(" ".join(text.split()).encode()).hexdigest()[:32]


def independent(known: Mapping[str, tuple[str, str | None]]) -> dict[str, str]:
    """Each query's group: of queries with one text or one group, and of all that are so joined.

    known: by id, the text's name and the query's own group. A group is called as its first query
    that says one has it, else by its first query, as "query:ID" where a group has that name.
    """
    joined: dict[str, str] = {}  # towards the first of what is joined

    def first(name: str) -> str:
        while joined.setdefault(name, name) != name:
            name = joined[name]
        return name

    for query, (text, group) in known.items():
        for name in [text] if group is None else [text, "group:" + group]:
            joined[first(name)] = first("query:" + query)
    called: dict[str, str] = {}
    for query, (_, group) in known.items():
        if group is not None:
            called.setdefault(first("query:" + query), group)
    taken = set(called.values())
    for query in known:
        name = "query:" + query
        called.setdefault(first(name), name if query in taken else query)
    return {query: called[first("query:" + query)] for query in known}


def first_per_task(queries: Sequence[Query], limit: int | None) -> list[Query]:
    """The first `limit` queries of every task, in their order; None keeps all of them."""
    if limit is None:
        return list(queries)
    if limit < 1:
        raise DraftpickError(f"the limit must be at least 1 query a task, not {limit}")
    taken: Counter[str] = Counter()
    kept: list[Query] = []
    for query in queries:
        if taken[query.task] < limit:
            taken[query.task] += 1
            kept.append(query)
    return kept


def _expand(paths: Iterable[str | Path]) -> Iterator[Path]:
    for path in map(Path, paths):
        if not path.is_dir():
            yield path
            continue
        files = sorted(path.glob("*.jsonl"))
        if not files:
            raise DraftpickError(f"{path}: the folder holds no .jsonl file; name a query file")
        yield from files


def _records(path: Path) -> Iterator[tuple[str, dict[str, object]]]:
    for where, record in json_lines(path, "query file"):
        if not isinstance(record, dict):
            raise DraftpickError(
                f"{where}: holds a {type(record).__name__}, not an object; write "
                '{"id": ..., "task": ..., "turns": [...]}'
            )
        yield where, record


def _parse(record: dict[str, object], where: str, source: str) -> Query:
    turns = _turns(record, where)
    stated_source = record.get("source")
    return Query(
        id=_id(record, where),
        task=_task(record, where),
        turns=turns,
        reference=_reference(record.get("reference"), len(turns), where),
        source=stated_source if isinstance(stated_source, str) else source,
        category=_category(record, where),
        group=_group(record, where),
        prompt_ids=_prompt_ids(record.get("prompt_ids"), where),
    )


def _id(record: dict[str, object], where: str) -> str:
    for field in ("id", "question_id"):
        value = record.get(field)
        if isinstance(value, str) and value.strip():
            return value
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        if value is not None:
            raise DraftpickError(f'{where}: "{field}" must be a non-empty string or an integer')
    raise DraftpickError(f'{where}: the field "id" (or Spec-Bench\'s "question_id") is missing')


def _category(record: dict[str, object], where: str) -> str | None:
    value = record.get("category")
    if value is not None and not isinstance(value, str):
        raise DraftpickError(f'{where}: "category" must be a string')
    return value


def _group(record: dict[str, object], where: str) -> str | None:
    value = record.get("group")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, str | int) or not str(value).strip():
        raise DraftpickError(f'{where}: "group" must be a non-empty string or an integer')
    return str(value)


def _prompt_ids(value: object, where: str) -> tuple[int, ...] | None:
    if value is None:
        return None
    if not isinstance(value, list) or not value or not all(type(each) is int for each in value):
        raise DraftpickError(f'{where}: "prompt_ids" must be a list of token ids')
    return tuple(value)


def _task(record: dict[str, object], where: str) -> str:
    task = record.get("task")
    if task is None:
        category = _category(record, where)
        if category is None:
            raise DraftpickError(
                f'{where}: the field "task" (or Spec-Bench\'s "category") is missing; give any '
                f"name, or one of Spec-Bench's: {', '.join(TASKS)}"
            )
        task = task_of(category)
    if not isinstance(task, str) or not task.strip():
        raise DraftpickError(f'{where}: "task" must be a non-empty string, not {task!r}')
    if task == OVERALL:
        raise DraftpickError(
            f"{where}: no task may be called {OVERALL!r}, which stands for all of them in tables"
        )
    return task


def _turns(record: dict[str, object], where: str) -> tuple[str, ...]:
    turns = record.get("turns")
    if turns is None:
        raise DraftpickError(f'{where}: the field "turns" is missing')
    if not isinstance(turns, list) or not all(isinstance(turn, str) for turn in turns):
        raise DraftpickError(f'{where}: "turns" must be a list of strings, the user\'s messages')
    if not turns:
        raise DraftpickError(f'{where}: "turns" is empty; it needs at least one message')
    for index, turn in enumerate(turns):
        if not turn.strip():
            raise DraftpickError(f'{where}: "turns" has a blank message at index {index}')
    return tuple(turns)


def _reference(value: object, turn_count: int, where: str) -> str | None:
    """One string for the first turn. Spec-Bench gives a list: an entry a turn in a chat, else
    the accepted answers, which may be lists themselves (rag)."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, list):
        entries = value[:1] if turn_count > 1 and len(value) == turn_count else value
        answers = [
            answer
            for entry in entries
            for answer in (entry if isinstance(entry, list) else [entry])
            if answer is not None
        ]
        if all(isinstance(answer, str | int | float) for answer in answers):
            return " | ".join(map(str, answers)) or None
    raise DraftpickError(f'{where}: "reference" must be a string, a list of strings, or null')
