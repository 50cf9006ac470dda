"""Routers that learn, and logs that teach: on an engine whose arms differ in tokens a round."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import Draftpick
from log_lines import decision
from policy_tables import table

import policies
from decoders.common.errors import Cancelled, DraftpickError, NotANumber, UpstreamBroke
from decoders.models.memory import OutOfMemory
from decoders.records import Request
from decoders.testing.fake_engine import TOKENS_A_ROUND, FakeEngine
from policies import PolicyError, RewardTable
from policies.online import OnlinePolicy
from router.logs.reader import read_log
from router.logs.record import Result, Vector
from router.logs.rows import NO_FAULT
from router.logs.writer import DecisionLog
from router.routing.learning import UNIT_ROWS, Learning
from router.routing.router import Router
from router.training.learn import LearnOutcome, _lines, replay

ARMS = list(TOKENS_A_ROUND)


def offline(reward: str = "saved-passes", noise: float = 0.2) -> RewardTable:
    """60 queries as the engine embeds them, on which `small` seems to be the best arm."""
    rng = np.random.default_rng(0)
    embeddings = np.zeros((60, 4), dtype=np.float32)
    embeddings[:, 0], embeddings[:, 1] = np.arange(60) % 2, 1
    means = [0.5 if arm == "small" else 0.3 for arm in ARMS]
    made = table(embeddings, rng.normal(means, noise, size=(60, 3)), ARMS)
    return replace(
        made, reward_name=f"{reward}@1", embedder=FakeEngine.embedder, arms_fingerprint=""
    )


def learner(reward: str = "saved-passes", **options: Any) -> OnlinePolicy:
    """One that is not sure of what the table says."""
    return policies.fit("thompson", offline(reward), prior=20.0, kept=1.0, **options).policy


def ask(router: Router, many: int, start: int = 0) -> list[str]:
    """The arms that answered; the engine's `wide` saves most passes."""
    return [
        router.generate("x" * (20 + i % 7), max_new_tokens=16, seed=start + i).arm
        for i in range(many)
    ]


def test_a_router_learns_which_arm_is_fast() -> None:
    policy = learner(memory=50.0)
    router = Router(FakeEngine(), policy).learning()
    first, _, last = ask(router, 50), ask(router, 200, 50), ask(router, 50, 250)
    assert policy.status.requests == 300
    assert policy.status.best_fixed == "wide"
    assert last.count("wide") > 45 > first.count("wide")


def test_without_learning_the_policy_stays_as_it_is() -> None:
    policy = learner()
    before = policy.fingerprint
    router = Router(FakeEngine(), policy)
    ask(router, 5)
    ask(router.learning().unlogged(), 5)
    router.learning().generate("hello", arm="wide")
    assert policy.fingerprint == before


def test_the_log_of_a_learning_router_teaches_the_same(tmp_path: Path) -> None:
    live, later = learner(), learner()
    log = DecisionLog(tmp_path / "log", embeddings=True)
    router = Router(FakeEngine(), live, log=log).learning()
    ask(router, 60)
    rows = read_log(tmp_path / "log")
    assert log.lost == 0 and len(rows.decisions) == 60
    found = replay(rows, later)
    assert (found.used, found.own, found.rows) == (60, 60, 60)
    assert later.status == live.status
    x = offline().inputs
    np.testing.assert_allclose(later.distribution(x), live.distribution(x))


def test_what_others_drew_teaches_about_arms_alone(tmp_path: Path) -> None:
    log = DecisionLog(tmp_path / "log", embeddings=True)
    shipped = Router(FakeEngine(), learner(), log=log).exploring(1.0)
    for i in range(30):
        shipped.generate("x" * 20, max_new_tokens=16, seed=i, dynamic=True)
    policy = learner()
    found = replay(read_log(tmp_path / "log"), policy)
    assert (found.used, found.own) == (30, 0)
    assert np.isnan(policy.status.gain)
    assert policy.status.requests == 30


def test_the_log_has_the_chances_of_the_draw_not_of_later(tmp_path: Path) -> None:
    """Another request is answered, and learned from, while this one is being decoded."""
    policy = learner()

    class Busy(FakeEngine):
        def decode(self, *given: Any, **named: Any) -> Any:
            for _ in range(20):
                policy.update(offline().inputs[0], "wide", 0.9, 0.5)
            return super().decode(*given, **named)

    log = DecisionLog(tmp_path / "log")
    answer = Router(Busy(), policy, log=log).learning().generate("hello there", seed=1)
    line = read_log(tmp_path / "log").decisions[0]
    assert log.lost == 0
    assert line.probabilities[line.arm] == answer.propensity


def test_learning_never_reaches_an_answer(capsys: pytest.CaptureFixture[str]) -> None:
    policy = learner()

    def broken(*_: Any, **__: Any) -> None:
        raise OSError("no memory")

    policy.update = broken
    router = Router(FakeEngine(), policy).learning()
    assert len(ask(router, 3)) == 3
    told = capsys.readouterr().err
    assert told.count("nothing was learned from an answer (no memory)") == 1


def test_an_arm_that_fails_is_learned_from_and_a_reader_who_leaves_is_not(tmp_path: Path) -> None:
    policy = learner()
    router = Router(FakeEngine(fails="boom"), policy).learning()
    with pytest.raises(RuntimeError, match="told to fail"):
        router.generate("boom")
    assert policy.status.requests == 1

    def ends(router: Router, error: BaseException) -> None:
        """An answer that ends so."""

        class Gone:
            def put(self, _: Any) -> None:
                raise error

            end = put

        with pytest.raises(type(error)):
            router.generate("hello", streamer=Gone())

    router = Router(FakeEngine(), policy, log=DecisionLog(tmp_path, embeddings=True)).learning()
    others = [BrokenPipeError(), Cancelled(), KeyboardInterrupt(), DraftpickError("no logprobs")]
    for error in others:
        ends(router, error)
        assert policy.status.requests == 1
    for at, error in enumerate(own := [UpstreamBroke("wide", "x"), NotANumber(), OutOfMemory()]):
        ends(router, error)
        assert policy.status.requests == 2 + at
    ask(router, 3)
    again = replay(read_log(tmp_path), learner())
    assert (again.used, again.excluded) == (3 + len(own), {NO_FAULT: len(others)})


def test_one_seed_for_all_requests_does_not_draw_one_arm_for_all() -> None:
    def arms() -> list[str]:
        router = Router(FakeEngine(), learner(explore=0.5, budget=0.9)).learning()
        return [router.generate("x" * 20, max_new_tokens=16, seed=42).arm for _ in range(40)]

    drawn = arms()
    assert len(set(drawn)) > 1 and drawn == arms()


def test_what_was_learned_is_saved_every_so_often(tmp_path: Path) -> None:
    folder = tmp_path / "policy"
    router = Router(FakeEngine(), learner()).learning(folder, every=10)
    ask(router, 9)
    assert not folder.exists()
    ask(router, 16, 9)
    assert policies.load(folder).status.requests == 20
    router.save_learned()
    assert policies.load(folder).status.requests == 25


def test_tokens_a_second_are_learned_in_the_unit_of_the_offline_reward() -> None:
    """40 tokens a second where 0.4 was expected: a unit of 100."""
    policy = learner("modelled")
    learning, x = Learning(policy), offline().inputs
    assert learning.reward == "decode_tokens_per_s"
    asked = Result(new_tokens=81, decode_s=2.0)
    for i in range(UNIT_ROWS - 1):
        learning.learn(x[i], ARMS[i % 3], asked, 0.5)
    assert policy.status.requests == 0
    learning.learn(x[0], ARMS[1], asked, 0.5)
    assert policy.status.requests == UNIT_ROWS
    expected = np.mean([policies.fit("regression", offline()).policy.scores(x[i])[0, i % 3]
                        for i in range(UNIT_ROWS)])  # fmt: skip
    assert learning._unit == pytest.approx(40 / expected, rel=0.05)
    assert learning.failed == 0


def test_rewards_that_say_something_else_are_refused() -> None:
    with pytest.raises(DraftpickError, match="trained on the reward 'saved-passes', and 'acc"):
        Learning(learner(), "acceptance")
    with pytest.raises(DraftpickError, match="unknown reward of a log 'speed'"):
        Learning(learner(), "speed")


def test_policies_that_do_not_learn_are_refused() -> None:
    fixed = policies.fixed_policy(ARMS, "wide")
    with pytest.raises(PolicyError, match="does not learn while it serves; train one that does"):
        Router(FakeEngine(), fixed).learning()
    with pytest.raises(DraftpickError, match="no policy to learn with"):
        Router(FakeEngine(), None).learning()
    with pytest.raises(DraftpickError, match="explores on its own"):
        Router(FakeEngine(), learner()).learning().exploring(0.1)


def test_generate_learns_and_saves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, draftpick: Draftpick
) -> None:
    from router.routing import loading

    monkeypatch.setattr(loading, "load_engine", lambda *_, **__: FakeEngine())
    saved, prompts, out = learner().save(tmp_path / "p"), tmp_path / "asked.jsonl", tmp_path / "new"
    prompts.write_text('{"prompt": "hello there"}\n' * 3)
    draftpick("generate", "--prompts", prompts, "--policy", saved, "--learn", out, "--seed", 1)
    assert policies.load(out).status.requests == 3


# -- the command ----------------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return learner().save(tmp_path / "policy")


def test_the_command(tmp_path: Path, saved: Path, draftpick: Draftpick) -> None:
    policy = policies.load(saved)
    log = DecisionLog(tmp_path / "log", embeddings=True)
    for i in range(12):
        Router(FakeEngine(), policy, log=log).generate(
            "x" * 20, max_new_tokens=16, seed=i, dynamic=True
        )
    out = tmp_path / "policy-2"
    words = ["learn", "--logs", tmp_path / "log", "--policy", saved, "--out", out]
    told = draftpick(*words, "--json").json
    assert (told["used"], told["own"], told["reward"]) == (12, 12, "saved-passes")
    assert told["status"]["requests"] == 12
    assert any("a drift detector needs" in words for words in told["remarks"])
    assert policies.load(out).status.requests == 12
    seen = draftpick(*words)
    assert "12 of 12 decisions taught the policy, 12 of them its own" in seen.err
    assert "best fixed arm: small" in seen.err


@pytest.mark.parametrize(("tests", "said"), [(1, "80% between"), (2, "93.33% between")])
def test_the_interval_is_called_what_it_is(
    tests: int, said: str, tmp_path: Path, draftpick: Draftpick
) -> None:
    """tests: one more than there were changes, of which each takes less of the level."""
    policy = learner(level=0.2)
    for _ in range(tests - 1):
        policy._state.control = policy._state.control.again()
    saved = policy.save(tmp_path / "policy")
    log = DecisionLog(tmp_path / "log", embeddings=True)
    router = Router(FakeEngine(), policies.load(saved), log=log)
    router.generate("x" * 20, max_new_tokens=16, seed=0, dynamic=True)
    words = "--logs", tmp_path / "log", "--policy", saved, "--out", tmp_path / "new"
    told = " ".join(draftpick("learn", *words).err.split())
    assert "gain over it since the last change: " in told and said in told


def test_no_gain_is_told_where_nothing_followed_a_change() -> None:
    policy = learner()
    policy._state.control = policy._state.control.again()
    found = LearnOutcome("saved-passes", 1, 1, 1, {}, {}, {}, policy.status, [])
    assert not any("gain" in line for line in _lines(found))


def test_a_log_of_other_arms_is_refused(tmp_path: Path, saved: Path, draftpick: Draftpick) -> None:
    log = DecisionLog(tmp_path / "log")
    vector = Vector.of(np.ones(4))
    log.add(decision(embedding=vector, embedder=FakeEngine.embedder))
    words = ["learn", "--logs", tmp_path / "log", "--policy", saved, "--out", tmp_path / "new"]
    told = draftpick(*words, code=2).error
    assert "the log does not fit the policy" in told
    assert "missing: autoregressive" in told
    assert not (tmp_path / "new").exists()


def test_lines_of_an_arm_that_the_policy_does_not_have_are_counted(tmp_path: Path) -> None:
    chances = dict.fromkeys([*ARMS, "beam"], 0.25)
    log = DecisionLog(tmp_path / "log")
    for arm in ("beam", "wide", "small"):
        one = decision(embedding=Vector.of(np.ones(4)), embedder=FakeEngine.embedder)
        log.add(one.model_copy(update={"arm": arm, "probabilities": chances}))
    found = replay(read_log(tmp_path / "log"), learner())
    assert found.used == 2
    assert found.excluded == {"of an arm that the policy does not have": 1}


def test_a_policy_that_cannot_learn_is_told(tmp_path: Path, draftpick: Draftpick) -> None:
    fixed = policies.fit("regression", offline()).policy.save(tmp_path / "fixed")
    words = ["learn", "--logs", tmp_path, "--policy", fixed, "--out", tmp_path / "new"]
    assert "does not learn while it serves" in draftpick(*words, code=2).err


def test_a_server_learns_from_what_it_answers(tmp_path: Path) -> None:
    from serve_toys import Heard, generation

    from router.serve.queue import FairQueue
    from router.serve.scheduler import DEFAULT, Scheduler

    policy = learner()
    router = Router(FakeEngine(), policy).learning(tmp_path / "learned", every=4)
    scheduler = Scheduler({DEFAULT: router}, FairQueue(16))
    told = [Heard() for _ in range(6)]
    for number, heard in enumerate(told):
        scheduler.submit(
            generation("bc" + "defghi"[number], request=Request(8, seed=number)), heard
        )
    assert all(heard.ended.wait(10) and heard.result for heard in told)
    scheduler.close()
    assert policy.status.requests == 6
    assert policies.load(tmp_path / "learned").status.requests == 4
    router.save_learned()
    assert policies.load(tmp_path / "learned").status.requests == 6
