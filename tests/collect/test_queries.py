"""Both forms of query lines are read, and every mistake names its file and line."""

import json
from pathlib import Path
from typing import Any

import pytest

from collect.queries import (
    SPLITS,
    TASKS,
    first_per_task,
    independent,
    ordered,
    read_queries,
    shipped,
)
from decoders.common.errors import DraftpickError

GOOD: dict[str, Any] = {"id": "a", "task": "qa", "turns": ["Why?"]}


def write(path: Path, *records: object) -> Path:
    lines = [r if isinstance(r, str) else json.dumps(r, ensure_ascii=False) for r in records]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_reads_its_own_form(tmp_path: Path) -> None:
    line = {**GOOD, "reference": "Because.", "source": "me", "category": "why", "group": 7}
    (query,) = read_queries(write(tmp_path / "q.jsonl", line))
    assert (query.id, query.task, query.turns) == ("a", "qa", ("Why?",))
    assert (query.reference, query.source, query.category) == ("Because.", "me", "why")
    assert query.group == "7"
    asked = [{"role": "user", "content": "Why?"}]
    assert query.prompt_ids is None and query.prompt(lambda chat: [len(chat), chat == asked]) == [
        1,
        1,
    ]
    (known,) = read_queries(write(tmp_path / "r.jsonl", {**line, "prompt_ids": [3, 1]}))
    assert known.prompt(lambda chat: [0]) == [3, 1]


def test_reads_spec_bench(tmp_path: Path) -> None:
    path = write(
        tmp_path / "question.jsonl",
        {"question_id": 81, "category": "writing", "turns": ["Hi", "More"]},
        {"question_id": 111, "category": "math", "turns": ["1", "2"], "reference": ["r1", "r2"]},
        {"question_id": 401, "category": "math_reasoning", "turns": ["3"], "reference": ["4"]},
        {"question_id": 501, "category": "rag", "turns": ["?"], "reference": [["a", "b"]]},
    )
    queries = read_queries(path)
    assert [q.task for q in queries] == ["mt_bench", "mt_bench", "math", "rag"]
    assert [q.reference for q in queries] == [None, "r1", "4", "a | b"]
    assert queries[0].id == "81"
    assert queries[0].turns == ("Hi", "More")
    assert queries[0].source == "question.jsonl"
    assert queries[1].category == "math"


def test_folder_blank_lines_and_byte_order_mark(tmp_path: Path) -> None:
    write(tmp_path / "b.jsonl", "", {**GOOD, "id": 2}, "  ")
    (tmp_path / "a.jsonl").write_bytes(b"\xef\xbb\xbf" + json.dumps(GOOD).encode())
    (tmp_path / "notes.txt").write_text("not a query")
    assert [q.id for q in read_queries(tmp_path)] == ["a", "2"]


def test_line_separators_inside_text_do_not_split_lines(tmp_path: Path) -> None:
    (query,) = read_queries(write(tmp_path / "q", {**GOOD, "turns": ["one\u2028two\u0085three"]}))
    assert query.turns == ("one\u2028two\u0085three",)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{nonsense", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[1]", "not an object"),
        ({"task": "qa", "turns": ["?"]}, '"id"'),
        ({**GOOD, "id": ""}, '"id"'),
        ({**GOOD, "id": True}, '"id"'),
        ({"id": "a", "turns": ["?"]}, '"task"'),
        ({**GOOD, "task": " "}, "\"task\" must be a non-empty string, not ' '"),
        ({**GOOD, "task": 3}, '"task" must be a non-empty string, not 3'),
        ({**GOOD, "task": "overall"}, "no task may be called 'overall', which stands for all"),
        ({**GOOD, "category": 3}, '"category"'),
        ({"id": "a", "task": "qa"}, '"turns" is missing'),
        ({**GOOD, "turns": []}, '"turns" is empty'),
        ({**GOOD, "turns": ["ok", " \n"]}, "blank message at index 1"),
        ({**GOOD, "turns": "Why?"}, "list of strings"),
        ({**GOOD, "reference": {"a": 1}}, '"reference"'),
        ({**GOOD, "prompt_ids": ["a"]}, '"prompt_ids" must be a list of token ids'),
        ({**GOOD, "prompt_ids": []}, '"prompt_ids" must be a list of token ids'),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: object, says: str) -> None:
    path = write(tmp_path / "q.jsonl", {**GOOD, "id": "fine"}, line)
    with pytest.raises(DraftpickError) as caught:
        read_queries(path)
    assert f"{path}:2:" in str(caught.value)
    assert says in str(caught.value)


def test_duplicate_ids_name_both_places(tmp_path: Path) -> None:
    one, two = write(tmp_path / "1", GOOD), write(tmp_path / "2", {**GOOD, "id": "b"}, GOOD)
    with pytest.raises(DraftpickError, match="used before") as caught:
        read_queries([one, two])
    assert f"{two}:2" in str(caught.value)
    assert f"{one}:1" in str(caught.value)


def test_missing_empty_and_binary_files(tmp_path: Path) -> None:
    with pytest.raises(DraftpickError, match="no such query file"):
        read_queries(tmp_path / "nowhere.jsonl")
    empty = tmp_path / "empty.jsonl"
    empty.write_text("\n \n")
    with pytest.raises(DraftpickError, match="is empty"):
        read_queries(empty)
    empty.write_bytes(b"\xff\xfe\n")
    with pytest.raises(DraftpickError, match=r":1: not UTF-8"):
        read_queries(empty)
    (tmp_path / "folder").mkdir()
    with pytest.raises(DraftpickError, match=r"holds no \.jsonl"):
        read_queries(tmp_path / "folder")


def test_first_per_task_keeps_order(tmp_path: Path) -> None:
    lines = [{**GOOD, "id": i, "task": t} for i, t in enumerate(["qa", "qa", "rag", "qa", "rag"])]
    queries = read_queries(write(tmp_path / "q", *lines))
    assert [q.id for q in first_per_task(queries, 2)] == ["0", "1", "2", "4"]
    assert first_per_task(queries, None) == queries
    with pytest.raises(DraftpickError, match="at least 1"):
        first_per_task(queries, 0)


def test_tasks_are_free(tmp_path: Path) -> None:
    lines: list[Any] = [{**GOOD, "id": "1", "task": "code"}]
    lines += [{"question_id": 2, "category": "cooking", "turns": ["How?"]}, {**GOOD, "id": "3"}]
    tasks = [query.task for query in read_queries(write(tmp_path / "q.jsonl", *lines))]
    assert tasks == ["code", "cooking", "qa"]
    assert ordered([*tasks, "mt_bench", "qa"]) == ["mt_bench", "qa", "code", "cooking"]


def test_the_shipped_queries() -> None:
    train, test = shipped("train"), shipped("test")
    for task in (*TASKS, "json", "rust", "sql"):
        assert sum(q.task == task for q in train) >= 40
        assert sum(q.task == task for q in test) >= 10
    for queries in (train, test):
        assert any(len(q.turns) == 2 for q in queries if q.task == "mt_bench")
    assert not {q.turns[0] for q in train} & {q.turns[0] for q in test}
    assert not {q.id for q in train} & {q.id for q in test}
    with pytest.raises(DraftpickError, match="unknown split"):
        shipped("dev")


def test_a_group_called_as_another_query_is_another_group() -> None:
    known = {"1": ("a", None), "2": ("b", "1"), "3": ("b", None), "4": ("c", "1"), "5": ("d", None)}
    found = independent(known)
    assert {found[each] for each in "234"} == {"1"} and found["5"] == "5"
    assert len(set(found.values())) == 3


def test_shipped_queries_that_share_a_passage_share_a_group() -> None:
    groups: dict[str, set[str | None]] = {}
    for query in shipped("train") + shipped("test"):
        for passage in query.turns[0].split("\n"):
            if query.task == "rag" and len(passage) > 100:
                groups.setdefault(passage, set()).add(query.group)
    assert len(groups) >= 70 and all(len(of) == 1 and None not in of for of in groups.values())
    train, test = ({q.group for q in shipped(split) if q.group} for split in SPLITS)
    assert len({group for group in train if group.startswith("rag")}) == 10
    assert not train & test, "schemas and shapes of the test are of its own"
