"""`draftpick specialise` on a tiny target: every step, resumed, and what it refuses."""

import json
import re
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner, Result

from collect.align import write
from collect.align.kept_states import DATA, INDEX, KeptStates
from collect.align.packed_batch import Stream
from collect.align.recipe import RecurrentRecipe
from collect.align.recurrent import DistillationLoss, new_cell
from collect.align.teacher import Teacher
from collect.align.tokens import Tokens
from collect.queries import Query, read_queries, text_name
from collect.store.collection import Collection
from collect.summary import cautions
from collect.traffic.reading import read_logs
from collect.traffic.records import LoggedAnswer, TokenAnswer
from decoders import Engine, Request
from decoders.arms import load_arms
from decoders.backends.recurrent.cell import CellConfig
from decoders.common.errors import DraftpickError
from decoders.common.locks import sole_writer
from decoders.models.targets import encode_chat
from decoders.options import EngineOptions
from decoders.sampling.draft_vocab import DraftVocab
from router.cli import make_app
from router.training.specialise import drafters, saving
from router.training.specialise.command import traffic_of, trained
from router.training.specialise.drafters import Lesson
from router.training.specialise.judging import own_arm
from router.training.specialise.options import SpecialiseOptions
from router.training.specialise.traffic import (
    MIN_GROUP,
    REST,
    Traffic,
    of_logs,
    of_queries,
)


def lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def queries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two tasks of 70 queries, and one of 5."""
    rows = [
        {"id": f"{task}{i}", "task": task, "turns": [f"w{i % 20} w{20 + i // 20 + 10 * at}"]}
        for at, (task, many) in enumerate({"bills of sale": 70, "qa": 70, "few": 5}.items())
        for i in range(many)
    ]
    rows[70 + 50]["turns"] = ["w1 " * 256]  # held out, and too long for the target
    return lines(tmp_path_factory.mktemp("asked") / "queries.jsonl", rows)


def run(*given: object) -> Result:
    return CliRunner().invoke(make_app(), ["specialise", *map(str, given)], catch_exceptions=False)


def refused(*given: object) -> str:
    with pytest.raises(DraftpickError) as error:
        run(*given)
    return str(error.value)


def asked_for(target: Path, queries: Path, out: Path) -> list[object]:
    given = ["--queries", queries, "--target", target, "--device", "cpu", "--minutes", 0.02]
    given += ["--max-new-tokens", 12, "--timed", 2, "--at-once", 1]
    return [*given, "--tracking-uri", f"sqlite:///{out}/ml.db", "--out", out / "special"]


@pytest.fixture(scope="module")
def made(target: Path, queries: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(saving, "MOST_LOST", 1.0)
        patch.setattr(saving, "EACH_ELSEWHERE", 2)
        first = run(*asked_for(target, queries, out))
    assert first.exit_code == 0, first.output
    said = " ".join(first.output.split())
    assert "few: too small for a drafter of their own" in said
    assert "the query 'qa50' is left out: the prompt has" in said
    return out / "special"


@pytest.mark.slow
def test_the_same_command_again_trains_nothing(made: Path, target: Path, queries: Path) -> None:
    weights = made / "drafters/qa/model/recurrent.safetensors"
    before, given = weights.stat().st_mtime_ns, asked_for(target, queries, made.parent)
    assert run(*given).exit_code == 0 and weights.stat().st_mtime_ns == before
    page = (made / "README.md").read_text()
    lost = re.search(r"unlike all groups what is saved gives (\S+)", page)
    assert lost is not None and float(lost[1]) >= 0.99  # the arms that lose there are not saved
    assert "holds other queries" in refused(*given, "--limit", 30)


def test_it_saves_what_serves_the_traffic(made: Path, target: Path) -> None:
    arms = load_arms(made / "arms.yaml")
    assert {"autoregressive", "shipped"} <= set(arms)  # others where they pay
    page = (made / "README.md").read_text()
    assert "draftpick serve" in page and "--chat-template" not in page
    assert page.count("| as saved |") == 3  # at two temperatures, and timed
    assert "| bills-of-sale |" in page and "By replay, temperature 0.7" in page and "Timed" in page
    assert (made / "matrix.png").read_bytes().startswith(b"\x89PNG")
    app, asked = CliRunner(), ["generate", "w1 w2", "--target", str(target), "--device", "cpu"]
    asked += ["--config", str(made / "arms.yaml"), "--max-new-tokens", "8"]
    answers = {
        app.invoke(make_app(), [*asked, *more], catch_exceptions=False).stdout
        for more in (["--policy", str(made / "policy")], ["--arm", "autoregressive"])
    }
    assert len(answers) == 1  # drafting never changes an answer


def test_no_drafter_is_trained_on_what_judges_it(made: Path) -> None:
    train, held = (read_queries(made / f"queries/{part}.jsonl") for part in ("train", "held-out"))
    assert not {q.turns for q in train} & {q.turns for q in held}
    assert {q.task for q in held} == {"bills-of-sale", "qa"} and REST in {q.task for q in train}
    card = json.loads((made / "drafters/union/model/card.json").read_text())
    assert card["queries"] == len(train)
    place = made / "drafters/qa/model/card.json"
    own = json.loads(place.read_text())
    assert own["tasks"] == ["qa"]
    collection = Collection.open(made / "rewards")
    assert not any("was trained on" in each for each in cautions(collection))
    own["trained_on"].append(text_name(held[0].turns[0]))  # what a careless split would do
    place.write_text(json.dumps(own))
    (told,) = (each for each in cautions(collection) if "the drafter of qa was trained on" in each)
    assert f"trained on 1 of these {len(collection.queries)} queries" in told


def test_groups_hold_out_their_last_conversations(queries: Path, tmp_path: Path) -> None:
    traffic = of_queries(read_queries(queries), None, most=1, limit=10)
    assert len(traffic.groups) == 1 and [q.task for q in traffic.train].count(REST) == 75
    assert [q.id for q in traffic.held_out] == [f"bills of sale{i}" for i in range(50, 70)]
    apart = lines(tmp_path / "apart.jsonl", [{"id": "x", "task": "qa", "turns": ["w1"]}])
    rows = [{"id": str(i), "task": "union", "turns": [f"w{i}"]} for i in range(MIN_GROUP)]
    taken = lines(tmp_path / "taken.jsonl", rows)
    assert of_queries(read_queries(taken), None, most=1, limit=None).groups == ("of-union",)
    mixed = [Query(str(i), f"kind {i % 3}", (f"w{i}",)) for i in range(MIN_GROUP)]
    together = of_queries(mixed, None, most=4, limit=None)
    assert together.groups == ("all",) and "all are one group" in together.said[0]
    named = of_queries(read_queries([queries, apart]), {"x"}, most=1, limit=None)
    assert named.groups == ("qa",) and [q.id for q in named.held_out] == ["x"]


def test_a_log_gives_prompts_and_its_own_answers(target: Path, tmp_path: Path) -> None:
    from router.engines.logs.options import TrafficOptions
    from router.engines.logs.replaying import model_of

    rows, said = [], {"choices": [{"text": "w5 w6", "finish_reason": "stop"}]}
    later = [{"role": "assistant", "content": "w3"}, {"role": "user", "content": "w4"}]
    for i in range(2 * MIN_GROUP):
        first = {"role": "user", "content": f"w{i // 2 % 20} w{20 + i // 40}"}
        request = {"messages": [first, *later * (i % 2)], "temperature": 0}
        rows.append({"request": request, "response": said})
    log = lines(tmp_path / "log.jsonl", rows)
    model = model_of(TrafficOptions(from_logs=[log], target=str(target)))

    def read() -> Traffic:
        return of_logs(read_logs([log]), model, 3, None, False, tmp_path / "kept")

    traffic = read()
    assert traffic.groups and all(name.startswith("group-") for name in traffic.groups)
    held = {query.group for query in traffic.held_out}
    assert held and not held & {query.group for query in traffic.train}  # whole conversations
    one = next(query for query in traffic.train if query.turns == ("w4",))
    assert one.prompt_ids is not None and len(one.prompt_ids) == 4  # the conversation so far
    assert traffic.written[one.id].logged.temperature == 0 and len(traffic.written[one.id].ids) == 3
    path, _ = traffic.save(tmp_path / "kept")
    assert read_queries(path)[0].prompt_ids == traffic.train[0].prompt_ids
    # the server goes on logging, and an old line goes
    more = [{"request": {"prompt": f"w{i} w1 w2"}, "response": said} for i in range(2 * MIN_GROUP)]
    lines(log, rows[1:] + more)
    again = read()
    assert (again.train, again.held_out, again.groups) == (
        traffic.train,
        traffic.held_out,
        traffic.groups,
    )
    assert "what logs have gained since" in again.said[0]
    assert len(again.written) == len(traffic.written) - 1
    again.save(tmp_path / "kept")
    lesson = Lesson(EngineOptions(str(target), device="cpu"), tmp_path, None, 64, 10)
    assert lesson.take_over(again.train, again, "train") is not None
    lines(log, more)
    with pytest.raises(DraftpickError, match="queries of other logs; name another --out"):
        read()


def test_chats_of_logs_are_spelled_by_the_template_that_is_named(
    target: Path, tmp_path: Path
) -> None:
    said = {"choices": [{"message": {"content": "w5 w6"}, "finish_reason": "stop"}]}
    rows: list[dict[str, Any]] = [
        {"request": {"messages": [{"role": "user", "content": f"w{i % 20} w{i // 20}"}]}}
        for i in range(2 * MIN_GROUP)
    ]
    log = lines(tmp_path / "log.jsonl", [row | {"response": said} for row in rows])
    asked = SpecialiseOptions(
        out=tmp_path / "out", from_logs=[log], target=str(target),
        chat_template="{% for m in messages %}w7 w8 {{ m.content }}{% endfor %}",
    )  # fmt: skip
    lesson = Lesson(asked.engine, tmp_path, None, 64, 10)
    for query in traffic_of(asked, read_logs([log])).train:
        chat = [{"role": "user", "content": query.turns[0]}]
        assert query.prompt_ids == tuple(encode_chat(lesson.tokenizer, chat))
        assert len(query.prompt_ids) == 4


def test_only_answers_of_the_target_are_taken_over(target: Path, tmp_path: Path) -> None:
    """Of a log with two models mixed, some sampled, some by a server that says what it is."""
    options = EngineOptions(str(target), device="cpu", dtype="float32")
    engine, rows = Engine.from_options(options), list[Query]()
    ours = engine.target_fingerprint
    written, kept = dict[str, TokenAnswer](), set[str]()
    for at, (temperature, wrote, own) in enumerate(
        [
            (0.0, None, True),
            (0.0, None, False),
            (0.7, None, True),
            (None, ours, True),
            (0.7, ours, True),
            (0.0, "other@12345678/int4", True),
        ]
    ):
        prompt = engine.encode_chat([{"role": "user", "content": f"w{at} w7"}])
        ids = engine.decode("autoregressive", prompt, Request(10)).ids
        name = f"q{at}"
        rows.append(Query(name, "qa", ("w1",), prompt_ids=tuple(prompt)))
        logged = LoggedAnswer(where="", temperature=temperature, target=wrote)
        written[name] = TokenAnswer(
            prompt=[1], ids=list(ids if own else range(3, 13)), logged=logged
        )
        if wrote == ours or (wrote is None and own and temperature == 0):
            kept.add(name)
    lesson = Lesson(options, tmp_path, None, 64, 10)
    traffic = Traffic(tuple(rows), (), ("qa",), written, ())
    assert lesson.take_over(rows, traffic, "train") == len(kept) == 3
    path = tmp_path / "answers/train/outputs.jsonl"
    found = [json.loads(line) for line in path.read_text().splitlines()]
    assert {row["id"] for row in found} == kept
    assert [row["temperature"] for row in found] == [0, 0, 0.7]
    assert lesson.take_over(rows, traffic, "train") is None  # once


def test_what_another_target_wrote_is_not_gone_on_from(
    target: Path, folder: Path, tmp_path: Path
) -> None:
    """Such as one that was fine-tuned again in its folder."""
    same = EngineOptions(str(target), device="cpu")
    Lesson(same, tmp_path, None, 64, 10)
    Lesson(same, tmp_path, None, 64, 10)
    for other in replace(same, target=str(folder)), replace(same, chat_template="{{ 'w1' }}"):
        with pytest.raises(DraftpickError, match="other weights or another chat template"):
            Lesson(other, tmp_path, None, 64, 10)


@pytest.mark.parametrize("command", ["specialise", "align"])
def test_a_folder_that_another_run_fills_is_refused(
    command: str, target: Path, queries: Path, tmp_path: Path
) -> None:
    words = [command, "--queries", str(queries), "--target", str(target), "--out", str(tmp_path)]
    with sole_writer(tmp_path), pytest.raises(DraftpickError, match="another process is writing"):
        CliRunner().invoke(make_app(), words, catch_exceptions=False)


def test_a_group_of_its_own_has_the_union() -> None:
    found = [own_arm(task, ["shipped", "union", "qa"]) for task in ("qa", "french", "elsewhere")]
    assert found == ["qa", "union", "shipped"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([], "give either --from-logs FILE or --queries FILE"),
        (["--queries", "a", "--from-logs", "b"], "give either"),
        (["--from-logs", "a", "--held-out", "b"], "--held-out goes with --queries"),
        (["--queries", "a", "--minutes", "0"], "--minutes must be a number above 0"),
    ],
)
def test_options_that_do_not_go_together(given: list[str], words: str, tmp_path: Path) -> None:
    assert words in refused("--out", tmp_path / "out", *given)


def test_too_few_queries_are_refused(target: Path, tmp_path: Path) -> None:
    few = lines(tmp_path / "few.jsonl", [{"id": "a", "task": "qa", "turns": ["w1"]}])
    words = refused("--queries", few, "--target", target, "--out", tmp_path / "out")
    assert f"has 1 conversations, and a drafter needs {MIN_GROUP}" in words


def test_kept_states_are_what_the_target_reads(
    teacher: Teacher, tokens: Tokens, tmp_path: Path
) -> None:
    def again() -> KeptStates:
        return KeptStates(tmp_path, teacher.hidden, teacher.dtype)

    kept, some = again(), tokens.pick(np.arange(5))
    kept.read(some, teacher)
    with (tmp_path / DATA).open("ab") as data, (tmp_path / INDEX).open("ab") as index:
        data.write(b"half a row"), index.write(b"half a record")  # a run that was killed
    kept, seen = again(), list[int]()
    kept.read(tokens, teacher, lambda done, total: seen.append(total))
    answered = tokens.lengths > tokens.answer
    assert seen[-1] == int(tokens.lengths[5:][answered[5:]].sum())  # five are not read again
    kept = again()
    for row in np.flatnonzero(answered).tolist():
        ids, answer = tokens.text(row), int(tokens.answer[row])
        alone = teacher.states(torch.from_numpy(ids.astype(np.int64))[None])[0]
        assert torch.allclose(kept.of(ids, answer), alone[answer - 1 : -1], atol=1e-5)


def test_the_target_keeps_its_states_while_it_writes(
    target: Path, queries: Path, tmp_path: Path
) -> None:
    options = EngineOptions(str(target), device="cpu", dtype="float32")
    lesson = Lesson(options, tmp_path, None, 64, 6)
    path = lesson.write(queries, None)
    tokens, many = lesson.tokens(queries, path), len(lesson.states)
    assert many == len({tokens.text(row).tobytes() for row in range(len(tokens))})
    lesson.states.read(tokens, lesson.target.teacher)
    assert len(lesson.states) == many  # nothing is left to read
    ids, answer = tokens.text(0), int(tokens.answer[0])
    alone = lesson.target.teacher.states(torch.from_numpy(ids.astype(np.int64))[None])[0]
    told = lesson.states.of(ids, answer)
    assert torch.allclose(told.float(), alone[answer - 1 : -1].float(), atol=0.05, rtol=0.05)


def test_a_group_without_an_answer_is_left_out_before_training(
    target: Path, queries: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """As --write-minutes may leave it."""
    wrote, answered = drafters.write_outputs, [REST]

    def some(paths: Any, out: Any, options: Any, most: int, tasks: Any, minutes: Any, kept: Any):
        return wrote(paths, out, options, most, answered if minutes else tasks, None, kept)

    monkeypatch.setattr(drafters, "write_outputs", some)
    asked = SpecialiseOptions(
        out=tmp_path, queries=[queries], target=str(target), device="cpu", minutes=0.01,
        write_minutes=1.0, max_new_tokens=6,
    )  # fmt: skip
    traffic = of_queries(read_queries(queries), None, most=4, limit=None)
    parts = traffic.save(tmp_path / "queries")
    lesson = Lesson(asked.engine, tmp_path, None, 64, 6)
    with pytest.raises(DraftpickError, match="raise --write-minutes"):
        trained(asked, traffic, lesson, *parts)
    answered.append("qa")
    names, _ = trained(asked, traffic, lesson, *parts)
    assert names == ["union"] and (tmp_path / "drafters/union/model").is_dir()
    assert "bills-of-sale: the target answered none of it in time" in capsys.readouterr().out
    answered.append("bills-of-sale")  # too late: the drafter goes on with the texts that it has
    assert trained(asked, traffic, lesson, *parts)[0] == ["union"]
    assert "queries stay without an answer" in capsys.readouterr().out


def test_the_first_answers_are_of_every_task(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write, "BATCH", 4)
    rows = [
        {"id": f"{task}{i}", "task": task, "turns": [f"w{i} " * (1 + 4 * at)]}
        for at, (task, many) in enumerate({"a": 30, "b": 2, "c": 30, "d": 2}.items())
        for i in range(many)
    ]
    asked = lines(tmp_path / "asked.jsonl", rows)
    options = EngineOptions(str(target), device="cpu", dtype="float32")
    path = write.write_outputs([asked], tmp_path / "out", options, 2, None)
    order = [json.loads(line)["task"] for line in path.read_text().splitlines()]
    assert set(order[:16]) == {"a", "b", "c", "d"} and len(order) == len(rows)


def test_training_on_kept_states_is_training_on_the_target(
    teacher: Teacher, vocab: DraftVocab, tokens: Tokens, tmp_path: Path
) -> None:
    tokens = tokens.pick(tokens.lengths > tokens.answer)
    kept = KeptStates(tmp_path, teacher.hidden, teacher.dtype)
    kept.read(tokens, teacher)
    loss = DistillationLoss(teacher, vocab, RecurrentRecipe(steps=2))
    cell = new_cell(teacher, CellConfig(teacher.hidden, 16), torch.ones(1, 8, dtype=torch.long), 0)
    plain, known = (
        Stream(tokens, 100, 99, 1, 0, answers=True, states=states) for states in (None, kept.of)
    )
    for one, other in islice(zip(plain.batches(), known.batches(), strict=True), 6):
        ends = np.flatnonzero(np.append(one.at[1:].numpy() == 0, True))  # each text's last place
        assert other.final is not None and other.positions == one.positions - len(ends)
        stays = torch.from_numpy(np.delete(np.arange(len(one.at)), ends))
        short = replace(one, where=one.where[stays], at=one.at[stays], positions=len(stays))
        assert torch.equal(short.ids, other.ids) and torch.equal(short.at, other.at)
        assert torch.allclose(loss.loss(cell, short), loss.loss(cell, other), atol=1e-5)
    cut = Stream(tokens, 100, 7, 1, 0, states=kept.of)
    for batch in islice(cut.batches(), 4):
        assert batch.final is not None and len(batch.final) == len(batch.at)
