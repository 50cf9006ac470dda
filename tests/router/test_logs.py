"""The log of decisions: what a line holds, and that nothing which happens to it breaks a reader."""

import errno
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from log_lines import decision
from router_fakes import FakePolicy

import policies
from decoders.common.errors import DraftpickError
from decoders.testing.fake_engine import FakeEngine
from router.logs.judge import judge
from router.logs.reader import read_log
from router.logs.record import LOG_REWARDS, Asked, Result, Vector
from router.logs.rows import usable
from router.logs.writer import DecisionLog, log_files
from router.routing.router import Router

ROOT = Path(__file__).resolve().parents[2]


def ids(folder: Path) -> list[str]:
    return [each.id for each in read_log(folder).decisions]


# -- the folder -----------------------------------------------------------------------------------


def test_what_is_written_is_read(tmp_path: Path) -> None:
    written = [decision("a"), decision("b", group="g", features={"temperature": 0.7})]
    log = DecisionLog(tmp_path / "new" / "log")
    assert not (tmp_path / "new").exists(), "made with the first decision"
    for each in written:
        log.add(each)
    assert read_log(log.folder).decisions == written
    assert all(json.loads(line)["format"] == 1
               for path in log_files(log.folder) for line in path.open())  # fmt: skip


def test_a_full_file_is_followed_by_another(tmp_path: Path) -> None:
    log = DecisionLog(tmp_path, max_bytes=2000)
    for number in range(40):
        log.add(decision(str(number)))
    files = log_files(tmp_path)
    assert len(files) > 5
    assert all(2000 <= path.stat().st_size < 4000 for path in files[:-1])
    DecisionLog(tmp_path, max_bytes=2000).add(decision("40"))  # goes on where the other is
    assert ids(tmp_path) == [str(number) for number in range(41)]


WRITER = """
import sys, threading
from pathlib import Path
sys.path[:0] = [{root!r}, {here!r}]
from log_lines import DecisionLog, decision
log = DecisionLog(sys.argv[1], max_bytes=20_000)
def write(name):
    number = 0
    while number < int(sys.argv[3]):
        log.add(decision(f"{{sys.argv[2]}}-{{name}}-{{number}}", group="x" * (number % 900)))
        number += 1
print("ready", flush=True)
sys.stdin.readline()
threads = [threading.Thread(target=write, args=(name,)) for name in "ab"]
for thread in threads: thread.start()
for thread in threads: thread.join()
sys.exit(log.lost)
"""


def writers(folder: Path, many: int, lines: int) -> list[subprocess.Popen[str]]:
    """Processes that begin at once, each with two threads."""
    code = WRITER.format(root=str(ROOT), here=str(Path(__file__).parent))
    made = [
        subprocess.Popen([sys.executable, "-c", code, str(folder), str(name), str(lines)],
                         stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for name in range(many)
    ]  # fmt: skip
    for each in made:
        assert each.stdout.readline() == "ready\n"
    for each in made:
        each.stdin.write("go\n")
        each.stdin.flush()
    return made


def test_four_processes_write_at_once(tmp_path: Path) -> None:
    made, lines = writers(tmp_path, 4, 150), 150
    assert [each.wait(120) for each in made] == [0] * 4
    found = read_log(tmp_path)
    assert found.broken == 0
    expected = {f"{p}-{thread}-{n}" for p in range(4) for thread in "ab" for n in range(lines)}
    counted = Counter(each.id for each in found.decisions)
    assert counted.keys() == expected and set(counted.values()) == {1}
    assert len(log_files(tmp_path)) > 10
    for p in range(4):  # no line overtook another of its own thread
        for thread in "ab":
            own = [i for i in map(str, counted) if i.startswith(f"{p}-{thread}-")]
            assert own == [f"{p}-{thread}-{n}" for n in range(lines)]


def test_a_kill_leaves_a_log_that_is_read_and_goes_on(tmp_path: Path) -> None:
    made = writers(tmp_path, 2, 10**9)
    deadline = time.monotonic() + 30
    while not tmp_path.exists() or len(log_files(tmp_path)) < 5:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    for each in made:
        each.send_signal(signal.SIGKILL)
        each.wait()
    held = read_log(tmp_path)
    assert held.decisions and held.broken <= 2
    DecisionLog(tmp_path).add(decision("after"))
    again = read_log(tmp_path)
    assert again.decisions[:-1] == held.decisions and again.decisions[-1].id == "after"


@given(cut=st.integers(min_value=1))
def test_a_line_cut_anywhere_costs_itself_alone(
    cut: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("log")
    log = DecisionLog(folder)
    log.add(decision("whole"))
    whole = log_files(folder)[0].stat().st_size
    log.add(decision("torn"))
    (path,) = log_files(folder)
    os.truncate(path, whole + cut % (path.stat().st_size - whole - 2) + 1)
    assert (ids(folder), read_log(folder).broken) == (["whole"], 1)
    DecisionLog(folder).add(decision("next"))
    assert (ids(folder), read_log(folder).broken) == (["whole", "next"], 1)


def test_a_full_disk_is_told_once_and_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log, write = DecisionLog(tmp_path), os.write
    router = Router(FakeEngine(), FakePolicy(), log=log)

    def full(stream: int, content: bytes) -> int:
        if len(failures) % 2:
            failures.append("half")
            return write(stream, content[: len(content) // 2])
        failures.append("none")
        raise OSError(errno.ENOSPC, "No space left on device")

    failures: list[str] = []
    monkeypatch.setattr(os, "write", full)
    answers = [router.generate("abcd").result.text for _ in range(4)]
    monkeypatch.undo()
    assert answers == ["ABCD"] * 4 and failures == ["none", "half"] * 2
    told = capsys.readouterr().err
    assert told.count("No space left on device") == told.count("warning") == 1
    assert log.lost == 4
    router.generate("abcd", request_id="room")
    found = read_log(tmp_path)
    assert [each.id for each in found.decisions] == ["room"] and found.broken == 2


def test_standard_error_may_be_full_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = DecisionLog(tmp_path)
    router = Router(FakeEngine(), FakePolicy(), log=log)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(os, "write", full)
        broken.setattr("sys.stderr.write", full)
        assert router.generate("abcd").result.text == "ABCD"
    assert log.lost == 1


def test_nothing_that_goes_wrong_in_the_log_reaches_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    router = Router(FakeEngine(), FakePolicy(), log=tmp_path)

    def broken(_: Any) -> None:
        raise RuntimeError("a mistake of ours")

    monkeypatch.setattr(router.log, "add", broken)
    assert [router.generate("abcd").result.text for _ in range(3)] == ["ABCD"] * 3
    assert router.log.lost == 3
    assert capsys.readouterr().err.count("a mistake of ours") == 1


def test_a_folder_that_cannot_be_one_is_refused_at_the_door(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place in ("file", "file/below"):
        with pytest.raises(DraftpickError, match="is a file"):
            DecisionLog(tmp_path / place)


# -- lines that are refused -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"propensity": 0}, r":2: the arm was taken with propensity 0"),
        ({"propensity": 1.5}, r":2, propensity: .*less than or equal to 1"),
        ({"propensity": 0.5}, r":2: the propensity is not the probability of the arm"),
        ({"propensity": float("nan")}, r":2, propensity"),
        ({"arm": "huge"}, r":2: the arm 'huge' is none of those"),
        ({"probabilities": {"small": 0.7, "wide": 0.25}}, r":2: .*do not sum to 1"),
        ({"format": 2}, r":2 has format 2, this version reads 1; install"),
        ({"outcome": None}, r":2, outcome"),
        ({"time": "yesterday"}, r":2, time"),
        ({"embedding": {"dtype": "<f2", "base64": "YWJj"}}, r":2, embedding"),
        ({"embedding": {"dtype": "<f2", "base64": "?"}}, r":2, embedding"),
    ],
)
def test_a_line_that_cannot_be_judged_is_refused_by_its_number(
    tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    log = DecisionLog(tmp_path)
    log.add(decision())
    line = json.loads(decision().model_dump_json()) | change
    with log_files(tmp_path)[0].open("a") as stream:
        stream.write(json.dumps(line) + "\n")
    with pytest.raises(DraftpickError, match=words):
        read_log(tmp_path)


def test_what_is_no_log_is_said(tmp_path: Path) -> None:
    with pytest.raises(DraftpickError, match="no log at"):
        read_log(tmp_path / "nowhere")
    with pytest.raises(DraftpickError, match=r"holds no decisions-\*\.jsonl"):
        read_log(tmp_path)
    (tmp_path / "decisions-000001.jsonl").write_text('{"id": 3}\n')
    with pytest.raises(DraftpickError, match="not a logged decision"):
        read_log(tmp_path)


def test_fields_of_later_versions_are_passed_over(tmp_path: Path) -> None:
    line = json.loads(decision("later").model_dump_json()) | {"weather": "rain"}
    (tmp_path / "decisions-000001.jsonl").write_text(json.dumps(line) + "\n")
    assert ids(tmp_path) == ["later"]


# -- what the router logs -------------------------------------------------------------------------


def constant(probabilities: tuple[float, ...] = (0.1, 0.6, 0.3)) -> policies.BasePolicy:
    from policies.fixed import ConstantPolicy
    from policies.records import ANY, Origin

    origin = Origin("toy", ("autoregressive", "small", "wide"), ANY)
    return ConstantPolicy(origin, np.array(probabilities))


def test_a_line_holds_the_decision_and_what_came_of_it(tmp_path: Path, engine: FakeEngine) -> None:
    policy = constant()
    router = Router(engine, policy, log=tmp_path)
    before = datetime.now(UTC)
    drawn = router.generate("abcd efgh", dynamic=True, seed=3, request_id="q1", group="g")
    best = router.generate("abcd", temperature=0.5, max_new_tokens=3)
    router.generate("abcd", arm="wide")
    first, second, third = read_log(tmp_path).decisions
    assert (first.id, first.group, first.choice) == ("q1", "g", "drawn")
    assert first.probabilities == {"autoregressive": 0.1, "small": 0.6, "wide": 0.3}
    assert (first.arm, first.propensity) == (drawn.arm, drawn.propensity)
    assert first.policy == policy.fingerprint and first.policy_name == "toy"
    assert first.arms_fingerprint == engine.arms_fingerprint(policy.arms)
    assert (first.target, first.embedder) == (engine.target_fingerprint, engine.embedder)
    assert before <= first.time <= datetime.now(UTC)
    told = first.outcome
    assert (told.new_tokens, told.rounds) == (len(drawn.result.ids), drawn.result.rounds)
    assert (told.drafted, told.accepted) == (drawn.result.drafted, drawn.result.accepted)
    assert told.wall_s == drawn.wall_s and told.tokens_per_s == drawn.tokens_per_s
    assert (told.prefill_s, told.decode_s) == (drawn.result.prefill_s, drawn.result.decode_s)
    assert (second.choice, second.propensity, second.arm) == ("best", 1.0, best.arm)
    assert second.probabilities == {"autoregressive": 0.0, "small": 1.0, "wide": 0.0}
    assert (second.request.temperature, second.request.max_new_tokens) == (0.5, 3)
    assert second.id not in ("", first.id, third.id)
    assert (third.choice, third.policy, third.probabilities) == ("forced", None, {})


def test_neither_text_nor_embedding_unless_asked(tmp_path: Path, engine: FakeEngine) -> None:
    secret = "the secret word is xylophone"
    Router(engine, constant(), log=tmp_path / "plain").generate(secret)
    content = b"".join(path.read_bytes() for path in log_files(tmp_path / "plain")).lower()
    assert b"xylophone" not in content and b"embedding" not in content and b"text" not in content
    asked = DecisionLog(tmp_path / "asked", embeddings=True, text=True)
    routed = Router(engine, constant(), log=asked).generate(secret)
    (line,) = read_log(asked.folder).decisions
    assert (line.text.prompt, line.text.answer) == (secret, routed.result.text)
    assert line.embedding.array().tolist() == [len(f"u:{secret}") % 2, 1.0, 0.0, 0.0]


def test_a_failed_arm_is_logged_and_raised(tmp_path: Path) -> None:
    router = Router(FakeEngine(fails="boom"), constant(), log=tmp_path)
    with pytest.raises(RuntimeError, match="told to fail"):
        router.generate("boom")
    (line,) = read_log(tmp_path).decisions
    assert (line.arm, line.outcome) == ("small", Result(error="RuntimeError", arm_failed=True))


def test_every_feature_is_logged(tmp_path: Path) -> None:
    from collect.features import FEATURES, RequestContext
    from decoders.records import Request
    from policies.fixed import ConstantPolicy
    from policies.records import Origin
    from router.logs.record import Text
    from router.logs.recorder import Recorder, outcome_of
    from router.records import AskOptions, RouteDecision

    origin = Origin("toy", ("small", "wide"), "e", dimension=2, features=("temperature",))
    engine = FakeEngine()
    recorder = Recorder(
        DecisionLog(tmp_path), engine, ConstantPolicy(origin, np.array([0.5, 0.5])), "e"
    )
    x = np.array([1.0, 2.0, 0.0], dtype=np.float32)
    outcome = outcome_of(engine.decode("wide", [1, 2], Request()), 0.0)
    context = RequestContext([1, 2, 1, 2], Request().max_new_tokens, running=3)
    decision = RouteDecision("wide", context, 0.5, x=x, embedding=x[:2], drawn=True)
    recorder.write(decision, Request(), AskOptions(), outcome, Text())
    logged = read_log(tmp_path).decisions[0].features
    assert list(logged) == list(FEATURES)
    assert logged["repeated-bigrams"] == pytest.approx(1 / 3)
    assert logged["requests-running"] == pytest.approx(np.log(4))


@pytest.mark.parametrize(("values", "dtype"), [([0.1, -3.0], "<f2"), ([1e6, 0.1], "<f4")])
def test_vectors_come_back(values: list[float], dtype: str) -> None:
    held = Vector.of(np.array(values, dtype=np.float32))
    assert held.dtype == dtype
    assert held.array() == pytest.approx(values, rel=1e-3)


def test_the_benchmark_logs_what_it_measures_and_not_its_warm_up(
    tmp_path: Path, question_file: Path
) -> None:
    from decoders.records import Request
    from router.specbench.bench import load_questions, specbench

    router = Router(FakeEngine(), FakePolicy(), log=tmp_path / "log")
    asked = load_questions([question_file])
    specbench(router, asked, Request(8), tmp_path / "b", policy_label="p")
    found = read_log(tmp_path / "log").decisions
    turns = sum(len(question.turns) for question in asked)
    assert Counter(each.choice for each in found) == {"forced": 3 * turns, "best": turns}
    assert {each.group for each in found} == {question.id for question in asked}


def test_a_line_may_lack_what_was_not_known_where_the_arm_was_chosen(tmp_path: Path) -> None:
    """A proposer inside another engine knows no temperature and no limit; what all lines know is
    still read."""
    log, chance = DecisionLog(tmp_path), random.Random(0)
    for at in range(80):
        arm = chance.choice(["small", "wide"])
        known = {"max_new_tokens": 8, "temperature": 0.0} if at == 0 else {}
        log.add(
            decision(
                str(at), arm=arm, propensity=0.75 if arm == "small" else 0.25,
                request=Asked(prompt_tokens=5 + at, **known),
            )
        )  # fmt: skip
    held = usable(read_log(tmp_path), None, "tokens_per_s", LOG_REWARDS["tokens_per_s"])
    assert held.inputs.shape == (80, 1) and not any(held.excluded.values())
    assert judge(read_log(tmp_path)).used == 80
